//! Waits for the end of a child without reaping it, so its process id cannot be reused meanwhile. A child without a pidfd that is
//! dropped is reaped here, too, by a thread of the pool.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use async_task::Task;
use rustix::process::{Pid, WaitId, WaitIdOptions};

use crate::wait::{self, Stop, pool};
use crate::worker::context::{self, Caller};

/// The way to learn that a child has ended.
pub(super) enum Exit {
    /// A pidfd. It becomes readable when the child ends.
    Pidfd(OwnedFd),
    /// waitid(2) on the pool for blocking work: for a kernel without pidfds, a sandbox that forbids them, or a process without a free
    /// descriptor.
    Pool(OnPool),
}

/// A child whose end one thread of the pool waits for.
pub(super) struct OnPool {
    pid: Pid,
    /// A wait that nobody needed to its end, for the next one: its thread is taken until the child ends.
    waiting: Option<(Task<io::Result<()>>, Arc<Left>)>,
}

/// The place where a child is left to the thread that waits for its end. The thread drops it after that end, which reaps the child.
#[derive(Default)]
struct Left(Mutex<Option<Child>>);

impl Drop for Left {
    fn drop(&mut self) {
        let child = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // It runs still if the thread has failed. An error means that other code has waited for the child.
        if let Some(mut child) = child
            && let Ok(None) = child.try_wait()
        {
            adopt_without_pidfd(child);
        }
    }
}

impl OnPool {
    fn new(pid: Pid) -> OnPool {
        OnPool { pid, waiting: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let pid = self.pid;
        let (waiting, _) = match &mut self.waiting {
            Some(waiting) => waiting,
            none => {
                let left = Arc::<Left>::default();
                let theirs = Arc::clone(&left);
                let wait = move || {
                    let ended = wait_for(pid);
                    drop(theirs);
                    ended
                };
                none.insert((pool::try_spawn(wait)?, left))
            }
        };
        let ended = ready!(Pin::new(waiting).poll(cx));
        self.waiting = None;
        Poll::Ready(ended)
    }

    /// Leaves the child to the thread that waits for its end, to be reaped. Hands the child back if there is none.
    pub(super) fn leave(&mut self, child: Child) -> Option<Child> {
        let Some((waiting, left)) = self.waiting.take() else {
            return Some(child);
        };
        // It is not cancelled, even if it has not begun.
        waiting.detach();
        *left.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        None
    }
}

impl Exit {
    /// The child must not have been waited for yet: until then its process id cannot be reused.
    pub(super) fn of(child: &Child) -> Exit {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("the system gave it as a positive i32");
        pidfd(pid).map_or_else(|| Exit::Pool(OnPool::new(pid)), Exit::Pidfd)
    }

    pub(super) fn wait(&mut self) -> io::Result<()> {
        match self {
            Exit::Pidfd(fd) => crate::io::readable(fd, None),
            Exit::Pool(pool) => match context::caller(|caller| matches!(caller, Caller::Worker)) {
                // Fails before it begins. Otherwise it would depend on the pool's speed whether the call works.
                true => Err(Stop::NotHere.into()),
                false => wait::wait(None, None, |cx| pool.poll(cx))?,
            },
        }
    }

    pub(super) async fn wait_async(&mut self) -> io::Result<()> {
        match self {
            Exit::Pidfd(fd) => crate::io::readable_async(fd).await.map(drop),
            Exit::Pool(pool) => poll_fn(|cx| pool.poll(cx)).await,
        }
    }
}

/// Reaps the child on a thread of the pool. If the system starts none, the next dropped child tries again.
pub(super) fn adopt_without_pidfd(child: Child) {
    static WAITING: Mutex<Vec<Child>> = Mutex::new(Vec::new());
    let mut waiting = WAITING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    waiting.push(child);
    // The threads take the children from the list, so a child whose thread does not start stays there.
    let missing = waiting.len();
    drop(waiting);
    for _ in 0..missing {
        let reap = || {
            let next = WAITING.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
            if let Some(mut child) = next {
                drop(child.wait());
            }
        };
        let _ = pool::try_spawn(reap).map(Task::detach);
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

/// Whether the child has ended. It is not reaped, so it keeps its number. Fails if it has been reaped: by other code, or by the system where
/// `SIGCHLD` is ignored.
pub(super) fn has_ended(pid: Pid) -> io::Result<bool> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let ended = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), look))?;
    Ok(ended.is_some())
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
        [Exit::Pidfd(fd), Exit::Pool(OnPool::new(pid))]
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

    /// A test of its own process: it counts the threads of the pool.
    #[cfg(target_os = "linux")]
    #[test]
    fn waits_that_are_given_up_take_one_thread_together() {
        let test = "process::exit::tests::waits_that_are_given_up_take_one_thread_together";
        let ran = testkit::in_a_child(test, || {
            let mut child = cat();
            let [_, mut exit] = both_ways(&child);
            let limit = Duration::from_millis(5);
            crate::run(|| {
                for _ in 0..20 {
                    assert!(crate::timeout(limit, || exit.wait()).is_err());
                    assert!(crate::timeout(limit, || crate::block_on(exit.wait_async())).is_err());
                }
            });
            let threads = std::fs::read_dir("/proc/self/task").unwrap();
            let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
            assert_eq!(names.filter(|name| name == "osier-pool\n").count(), 1);
            drop(child.stdin.take());
            exit.wait().unwrap();
            assert!(child.try_wait().unwrap().expect("it has ended").success());
        });
        if let Some(ran) = ran {
            assert!(ran.status.success(), "{ran:?}");
        }
    }

    /// A test of its own process: it counts the threads.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_thread_of_a_wait_that_is_given_up_reaps_a_dropped_child() {
        let test = "process::exit::tests::the_thread_of_a_wait_that_is_given_up_reaps_a_dropped_child";
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let ran = testkit::in_a_child(test, || {
            let mut child = cat();
            let (folder, input) = (format!("/proc/{}", child.id()), child.stdin.take());
            let [_, mut exit] = both_ways(&child);
            let limit = Duration::from_millis(5);
            let waited = crate::run(|| crate::timeout(limit, || crate::block_on(exit.wait_async())));
            assert!(waited.is_err());
            let before = threads();
            crate::process::reaper::adopt(child, &mut exit);
            assert!(threads() <= before);
            drop(input);
            testkit::eventually("it is reaped", || !std::path::Path::new(&folder).exists());
        });
        if let Some(ran) = ran {
            assert!(ran.status.success(), "{ran:?}");
        }
    }
}
