//! Waits for the end of a child without reaping it, so its process id cannot be reused meanwhile.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::process::Child;

use rustix::process::{Pid, WaitId, WaitIdOptions};

use crate::wait::{self, Stop, pool};
use crate::worker::context::{self, Caller};

/// The way to learn that a child has ended.
pub(super) enum Exit {
    /// A pidfd. It becomes readable when the child ends.
    Pidfd(OwnedFd),
    /// waitid(2) on the pool for blocking work: for a kernel without pidfds, or a sandbox that forbids them.
    Pool(Pid),
}

impl Exit {
    /// The child must not have been waited for yet: until then its process id cannot be reused.
    pub(super) fn of(child: &Child) -> Exit {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("the system gave it as a positive i32");
        pidfd(pid).map_or(Exit::Pool(pid), Exit::Pidfd)
    }

    pub(super) fn wait(&self) -> io::Result<()> {
        match self {
            Exit::Pidfd(fd) => crate::io::readable(fd, None),
            &Exit::Pool(pid) => match context::caller(|caller| matches!(caller, Caller::Worker)) {
                // Fails before it begins. Otherwise it would depend on the pool's speed whether the call works.
                true => Err(Stop::NotHere.into()),
                false => {
                    let mut ending = pin!(pool::try_spawn(move || wait_for(pid))?);
                    wait::wait(None, None, |cx| ending.as_mut().poll(cx))?
                }
            },
        }
    }

    pub(super) async fn wait_async(&self) -> io::Result<()> {
        match self {
            Exit::Pidfd(fd) => crate::io::readable_async(fd).await.map(drop),
            &Exit::Pool(pid) => pool::try_spawn(move || wait_for(pid))?.await,
        }
    }
}

#[cfg(target_os = "linux")]
fn pidfd(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn pidfd(_: Pid) -> Option<OwnedFd> {
    None
}

fn wait_for(pid: Pid) -> io::Result<()> {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), ended))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn cat() -> Child {
        Command::new("cat").stdin(Stdio::piped()).spawn().unwrap()
    }

    fn both_ways(child: &Child) -> [Exit; 2] {
        let Exit::Pidfd(fd) = Exit::of(child) else {
            println!("skipped: this kernel has no pidfd");
            return [Exit::of(child), Exit::of(child)];
        };
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        [Exit::Pidfd(fd), Exit::Pool(pid)]
    }

    #[test]
    fn the_end_is_told_with_and_without_a_pidfd_and_in_every_colour() {
        for place in 0..2 {
            for colour in 0..3 {
                let mut child = cat();
                let exit = both_ways(&child).into_iter().nth(place).unwrap();
                assert!(child.try_wait().unwrap().is_none());
                drop(child.stdin.take());
                match colour {
                    0 => exit.wait().unwrap(),
                    1 => crate::run(|| exit.wait()).unwrap(),
                    _ => crate::block_on(exit.wait_async()).unwrap(),
                }
                assert!(child.try_wait().unwrap().expect("it has ended").success());
            }
        }
    }
}
