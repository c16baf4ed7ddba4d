//! Waits for the end of a child without reaping it, so its process id cannot be reused meanwhile.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;

use rustix::process::Pid;

use super::lookout;
use crate::wait::{self, Stop};
use crate::worker::context::{self, Caller};

/// The way to learn that a child has ended.
pub(super) enum Exit {
    /// A pidfd. It becomes readable when the child ends.
    Pidfd(OwnedFd),
    /// The lookout: for a kernel without pidfds, a sandbox that forbids them, or a process without a free descriptor.
    Lookout(lookout::Wait),
}

impl Exit {
    /// The child must not have been waited for yet: until then its process id cannot be reused.
    pub(super) fn of(child: &Child) -> Exit {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("the system gave it as a positive i32");
        pidfd(pid).map_or_else(|| Exit::Lookout(lookout::Wait::new(pid)), Exit::Pidfd)
    }

    pub(super) fn wait(&mut self) -> io::Result<()> {
        match self {
            Exit::Pidfd(fd) => crate::io::readable(fd, None),
            Exit::Lookout(end) => match context::caller(|caller| matches!(caller, Caller::Worker)) {
                // Fails before it begins. Otherwise it would depend on the thread's speed whether the call works.
                true => Err(Stop::NotHere.into()),
                false => wait::wait(None, None, |cx| end.poll(cx))?,
            },
        }
    }

    pub(super) async fn wait_async(&mut self) -> io::Result<()> {
        match self {
            Exit::Pidfd(fd) => crate::io::readable_async(fd).await.map(drop),
            Exit::Lookout(end) => poll_fn(|cx| end.poll(cx)).await,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    fn cat() -> Child {
        Command::new("cat").stdin(Stdio::piped()).spawn().unwrap()
    }

    fn both_ways(child: &Child) -> [Exit; 2] {
        let Exit::Pidfd(fd) = Exit::of(child) else {
            println!("skipped: this kernel has no pidfd");
            return [Exit::of(child), Exit::of(child)];
        };
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        [Exit::Pidfd(fd), Exit::Lookout(lookout::Wait::new(pid))]
    }

    #[test]
    fn the_end_is_told_with_and_without_a_pidfd_and_in_every_colour() {
        for place in 0..2 {
            for colour in 0..3 {
                let mut child = cat();
                let mut exit = both_ways(&child).into_iter().nth(place).unwrap();
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

    /// The number of this process's threads whose names begin so.
    #[cfg(target_os = "linux")]
    fn threads(named: &str) -> usize {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with(named)).count()
    }

    /// A test of its own process: it counts the threads.
    #[cfg(target_os = "linux")]
    #[test]
    fn children_without_pidfds_take_one_thread_together() {
        let test = "process::exit::tests::children_without_pidfds_take_one_thread_together";
        let ran = testkit::in_a_child(test, || {
            let mut children: Vec<_> = (0..20).map(|_| cat()).collect();
            let mut exits: Vec<_> = children.iter().map(both_ways).map(|[_, exit]| exit).collect();
            let limit = Duration::from_millis(5);
            crate::run(|| {
                for exit in &mut exits {
                    assert!(crate::timeout(limit, || exit.wait()).is_err());
                    assert!(crate::timeout(limit, || crate::block_on(exit.wait_async())).is_err());
                }
            });
            assert_eq!((threads("osier-children"), threads("osier-pool")), (1, 0));
            for (child, exit) in children.iter_mut().zip(&mut exits) {
                drop(child.stdin.take());
                crate::run(|| exit.wait()).unwrap();
                assert!(child.try_wait().unwrap().expect("it has ended").success());
            }
            testkit::eventually("the thread ends", || threads("osier-children") == 0);
        });
        if let Some(ran) = ran {
            assert!(ran.status.success(), "{ran:?}");
        }
    }

    /// A test of its own process: it counts the threads.
    #[cfg(target_os = "linux")]
    #[test]
    fn dropped_children_without_pidfds_are_reaped_by_that_thread() {
        let test = "process::exit::tests::dropped_children_without_pidfds_are_reaped_by_that_thread";
        let ran = testkit::in_a_child(test, || {
            let mut children: Vec<_> = (0..3).map(|_| cat()).collect();
            let inputs: Vec<_> = children.iter_mut().map(|child| child.stdin.take()).collect();
            let folders: Vec<_> = children.iter().map(|child| format!("/proc/{}", child.id())).collect();
            let exits = children.iter().map(both_ways).map(|[_, exit]| exit);
            let mut exits: Vec<_> = exits.collect();
            // One is waited for before.
            let limit = Duration::from_millis(5);
            let waited = crate::run(|| crate::timeout(limit, || crate::block_on(exits[0].wait_async())));
            assert!(waited.is_err());
            for (child, exit) in children.into_iter().zip(&exits) {
                crate::process::reaper::adopt(child, exit);
            }
            // A thread names itself after its start.
            testkit::eventually("one thread", || threads("osier-children") == 1);
            assert_eq!(threads("osier-pool"), 0);
            drop(inputs);
            for folder in folders {
                testkit::eventually("it is reaped", || !std::path::Path::new(&folder).exists());
            }
            testkit::eventually("the thread ends", || threads("osier-children") == 0);
        });
        if let Some(ran) = ran {
            assert!(ran.status.success(), "{ran:?}");
        }
    }
}
