//! The old process hands over: the new one serves, and the connections move there. If the new one fails, this one serves again.

use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::error::Error;
use super::new::adopt;
use super::old::{Successor, is_last_of_its_name};
use super::part::{Link, Part};
use super::program::wait_for_end;
use super::{CLOSED, Registered, Upgrade};
use crate::conn::handover::format::Message;
use crate::conn::moving::{Collecting, collect};
use crate::conn::serve::Local;
use crate::conn::worker::Closes;
use crate::lock;
use crate::server::accept::on_worker;

/// The time from the handover to the answer that the new process serves.
const ANSWER: Duration = Duration::from_secs(10);

/// The longest wait for accepting fibers to end. A busy worker delays them.
const CLOSING: Duration = Duration::from_secs(1);

/// The time in which the handover to this process must end by itself, before this process hands over.
const FINISHING: Duration = Duration::from_secs(3);

/// The time for connections at rest to move when the new process itself hands over: a few passes of the collecting fibers.
const LAST_PASS: Duration = Duration::from_millis(100);

/// Time between two looks of the handover at the remaining connections: the first ones, and late ones.
const TICK: Duration = Duration::from_millis(2);
const LATE_TICK: Duration = Duration::from_millis(50);

impl Successor {
    /// Hands over: the new process serves, and connections at rest move there. In-flight requests end here, and their connections move
    /// afterwards. Calls `serving` when the new process serves alone, and the addresses that it does not have are free.
    ///
    /// # Suspends
    ///
    /// Until the last connection has moved or ended, the [drain](super::Program::drain) is over, or the handover shall [end
    /// soon](Upgrade::end_soon).
    ///
    /// # Cancellation
    ///
    /// Ends the new process, if that does not serve yet. One that serves goes on, and gets no more connections.
    ///
    /// # Errors
    ///
    /// The new process does not serve, or has ended meanwhile. This process then serves as before. If the new process has served, the
    /// servers that it did not have are over, but for those that were [kept](Successor::keep).
    pub fn hand_over(mut self, serving: impl FnOnce()) -> Result<(), Error> {
        let (dialog, upgrade) = (Arc::clone(&self.dialog), self.upgrade.clone());
        wait_for_predecessor(&upgrade).map_err(Error::new)?;
        let parts: Vec<(Link, Arc<dyn Part>)> = upgrade
            .parts()
            .into_iter()
            .map(|(name, part)| (Link::new(&name, &dialog), part))
            .collect();
        parts.iter().for_each(|(link, part)| part.leave(link));
        dialog.post(Message::Go);
        let accepts = dialog.wait_for(ANSWER, |heard| heard.accepting.then_some(()));
        if let Some(why) = match accepts {
            Ok(Some(())) => None,
            Ok(None) => Some(format!("the new process did not serve within {ANSWER:?}")),
            Err(why) => Some(format!("the new process did not serve: {why}")),
        } {
            parts.iter().for_each(|(_, part)| part.alone());
            return Err(Error::new(why));
        }
        let child = self.child.take();
        let servers = upgrade.servers();
        close(&servers);
        self.release_the_rest(&servers);
        serving();
        dialog.post(Message::Part {
            name: CLOSED.to_owned(),
            bytes: Vec::new(),
        });
        let begun = osier::time::now();
        match self.move_connections(&servers, begun) {
            Ok(()) => {
                parts.iter().for_each(|(link, part)| part.left(link));
                dialog.finish(Message::Done);
                self.end_sender();
                // Connections that a new process which stops has not taken end here, and their tunnels are told of.
                drop(dialog.take_back());
            }
            Err(why) if self.has_ended(child) => {
                self.serve_again(&servers);
                parts.iter().for_each(|(_, part)| part.alone());
                return Err(Error::new(format!(
                    "the new process has failed, and this one serves again: {why}"
                )));
            }
            Err(why) => {
                self.keep_the_rest(&servers);
                upgrade.log(format_args!(
                    "upgrade: the new process takes no more connections: {why}; they end here"
                ));
                parts.iter().for_each(|(_, part)| part.alone());
            }
        }
        // They are the new process's to tell. The end of this one says nothing to them.
        lock(&upgrade.0.elders).clear();
        self.end_servers(&servers, begun);
        // The new process goes on without this one. The upgrade stays busy, because this process ends.
        std::mem::forget(self);
        Ok(())
    }

    /// Whether the new process has this server.
    fn has(&self, server: &Registered) -> bool {
        self.servers.iter().any(|name| **name == *server.name)
    }

    /// Whether the server serves again if the new process fails.
    fn may_serve_again(&self, server: &Registered) -> bool {
        self.has(server) || self.kept.iter().any(|name| **name == *server.name)
    }

    /// Frees the addresses that the new process does not have.
    fn release_the_rest(&mut self, servers: &[Registered]) {
        if let Some(before) = self.before_closing.take() {
            before();
        }
        let rest = servers.iter().filter(|server| !self.may_serve_again(server));
        rest.clone().for_each(|server| server.stop.release());
        wait_closing(|| rest.clone().all(|server| server.sockets.are_closed()));
    }

    /// Whether the new process is being shut down.
    fn stops(&self) -> bool {
        self.dialog.look(|heard| heard.stopping)
    }

    /// Whether the new process has ended. One that says that it takes no more connections has not.
    fn has_ended(&self, child: Option<Child>) -> bool {
        let (lives, limit) = (self.dialog.look(|heard| heard.failed), self.ending);
        let goes_on = |mut child| matches!(osier::unblock(move || wait_for_end(&mut child, limit)), Ok(None));
        !lives && !child.is_some_and(goes_on)
    }

    /// Moves connections until none is left, the drain is over, or the new process takes no more because it leaves or stops itself.
    ///
    /// # Errors
    ///
    /// Why the new process takes no more.
    fn move_connections(&self, servers: &[Registered], begun: Instant) -> Result<(), String> {
        let dialog = &self.dialog;
        // Ends with this call, also if that is cancelled.
        let goes_on = Arc::new(());
        let passed = Arc::new(AtomicUsize::new(0));
        let mut collecting = Vec::new();
        let (moving, fixed): (Vec<Registered>, Vec<Registered>) =
            servers.iter().cloned().partition(|server| self.has(server));
        // The new process has no such servers. Their connections are served while the upgrade may fail.
        set_closes(&fixed, Closes::All);
        for server in &moving {
            for worker in 0..server.service.state.connections.len() {
                let service = server.service.clone();
                let task = Collecting {
                    dialog: Arc::clone(dialog),
                    server: Arc::clone(&server.name),
                    goes_on: Arc::downgrade(&goes_on),
                    passed: Arc::clone(&passed),
                };
                collecting.push(on_worker(worker, "upgrade", move || collect(&service, task)));
            }
        }
        let mut streams_end = false;
        while since(begun) < self.drain && !self.stops() && dialog.is_open() {
            if dialog.look(|heard| heard.leaving) || self.upgrade.ends() {
                // The last connections at rest move. The others end here, with their next response.
                set_closes(&moving, Closes::All);
                osier::sleep(LAST_PASS);
                break;
            }
            if !streams_end && passed.load(Ordering::Acquire) == collecting.len() && dialog.has_delivered() {
                // Event streams end, and their clients reconnect to the new process.
                streams_end = true;
                servers.iter().for_each(|server| server.service.state.shutdown.set());
            }
            if open(&moving) == 0 && dialog.has_delivered() {
                break;
            }
            dialog.wait_a_while(pause(begun));
        }
        drop(goes_on);
        for fiber in collecting {
            let _ = fiber.join();
        }
        match dialog.why_broken() {
            Some(why) if !self.stops() => Err(why),
            _ => Ok(()),
        }
    }

    /// Waits until the sender has sent what is queued. A new process that does not take it is not waited for.
    fn end_sender(&mut self) {
        if let Some(sender) = self.sender.take()
            && osier::timeout(ANSWER, || sender.join()).is_err()
        {
            self.dialog.break_off(|| "it takes no more".into());
        }
    }

    /// Ends the servers of this process, when their requests have ended or shall end.
    fn end_servers(&self, servers: &[Registered], begun: Instant) {
        for server in servers {
            match self.has(server) {
                // This process never serves again, and the next one may give an address up.
                true => {
                    server.stop.leave_file();
                    server.stop.release();
                }
                false => server.stop.shutdown(),
            }
        }
        // In-flight requests are left if the next upgrade has begun.
        while open(servers) > 0 && since(begun) < self.drain && !self.upgrade.ends() && !self.stops() {
            osier::sleep(pause(begun));
        }
        servers.iter().for_each(|server| server.stop.shutdown());
    }

    /// Serves again after the end of the new process.
    fn serve_again(&mut self, servers: &[Registered]) {
        set_closes(servers, Closes::None);
        for (index, server) in servers.iter().enumerate() {
            if !self.may_serve_again(server) {
                server.stop.shutdown();
                continue;
            }
            server.service.state.shutdown.reset();
            // Earlier servers of a name have settings that a reload has replaced. They only had connections left.
            if is_last_of_its_name(servers, index) {
                server.stop.reopen();
            }
        }
        self.adopt_untaken(servers);
    }

    /// Serves what has not moved: each connection until its next response, and event streams no longer.
    fn keep_the_rest(&mut self, servers: &[Registered]) {
        set_closes(servers, Closes::All);
        servers.iter().for_each(|server| server.service.state.shutdown.set());
        self.adopt_untaken(servers);
    }

    /// Adopts the connections that the new process has not taken. The dialog is broken.
    fn adopt_untaken(&mut self, servers: &[Registered]) {
        self.end_sender();
        for moving in self.dialog.take_back() {
            let server = servers.iter().rfind(|server| *server.name == *moving.record.server);
            if let Some(server) = server {
                adopt(&self.upgrade, server.service.clone(), moving);
            }
        }
    }
}

/// Makes servers stop accepting, and waits until they have stopped.
fn close(servers: &[Registered]) {
    servers.iter().for_each(|server| server.stop.close());
    wait_closing(|| servers.iter().all(|server| server.stop.is_closed()));
}

/// Waits until `is_done`, for [`CLOSING`] at most.
fn wait_closing(is_done: impl Fn() -> bool) {
    let asked = osier::time::now();
    while !is_done() && since(asked) < CLOSING {
        osier::sleep(TICK);
    }
}

/// The time to the next look of a wait that has begun then: it makes the wait a sixteenth longer at most.
fn pause(begun: Instant) -> Duration {
    (since(begun) / 16).clamp(TICK, LATE_TICK)
}

fn since(begun: Instant) -> Duration {
    osier::time::now().saturating_duration_since(begun)
}

fn open(servers: &[Registered]) -> usize {
    servers.iter().map(|server| server.service.state.total()).sum()
}

/// Waits until the process before this one has handed over everything. After [`FINISHING`], asks that process to keep its remaining
/// requests.
fn wait_for_predecessor(upgrade: &Upgrade) -> Result<(), String> {
    let begun = osier::time::now();
    let mut is_told = false;
    while let Some(predecessor) = upgrade.predecessor() {
        if upgrade.ends() {
            return Err("this process shuts down".into());
        }
        if since(begun) >= FINISHING && !is_told {
            is_told = true;
            predecessor.post(Message::Leaving);
        }
        if since(begun) >= FINISHING + ANSWER {
            return Err("the process before this one has not ended its handover; try again later".into());
        }
        osier::sleep(pause(begun));
    }
    Ok(())
}

/// Sets which connections of servers end with their next response, and waits for that.
fn set_closes(servers: &[Registered], closes: Closes) {
    let mut setting = Vec::new();
    for server in servers {
        for worker in 0..server.service.state.connections.len() {
            let service = server.service.clone();
            let set = move || Local::here(&service).worker.closes.set(closes);
            setting.push(on_worker(worker, "upgrade", set));
        }
    }
    for fiber in setting {
        let _ = fiber.join();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    use osier::time::VirtualClock;

    use super::super::Program;
    use super::super::new::{Arriving, hello};
    use super::*;
    use crate::conn::handover::channel;
    use crate::conn::handover::dialog::Moving;
    use crate::conn::handover::record::Record;
    use crate::conn::tunnel::{EndedTunnel, TunnelEnd, TunnelReport};
    use crate::{Router, Server};

    #[test]
    fn a_server_whose_socket_has_moved_leaves_the_file() {
        let folder = testkit::Folder::new();
        let path = folder.join("socket");
        for moves in [true, false] {
            let at = path.clone();
            osier::run(move || {
                let listening = Server::new(Router::new()).bind_unix(at).unwrap();
                let stop = listening.handle();
                if moves {
                    stop.leave_file();
                }
                stop.shutdown();
                listening.run();
            });
            assert_eq!(path.exists(), moves);
        }
    }

    /// A tunnel on its way. The end is noted.
    fn tunnel(ends: &Arc<Mutex<Vec<TunnelEnd>>>) -> Moving {
        let ends = Arc::clone(ends);
        let hook = Box::new(move |ended: &EndedTunnel<'_>| lock(&ends).push(ended.end()));
        let socket = || osier::net::UnixStream::from(UnixStream::pair().unwrap().0).into();
        Moving {
            record: Record {
                server: "web".into(),
                peer: ([127, 0, 0, 1], 1).into(),
                is_proxied: false,
                is_fresh: false,
                is_announced: false,
                received: Vec::new(),
                tls: None,
                http2: None,
                session: None,
                tunnel: None,
            },
            socket: socket(),
            backend: None,
            report: Some(TunnelReport::new(hook, "backend")),
        }
    }

    #[test]
    fn tunnels_that_a_process_which_stops_has_not_taken_are_told_of() {
        osier::run(|| {
            let spawn = |theirs| {
                drop(osier::spawn(move || {
                    let (sending, mut receiving) = channel::open(theirs).unwrap();
                    let ready = Message::Ready { servers: Vec::new() };
                    for message in [hello(), ready, Message::Accepting, Message::Stopping] {
                        sending.send(&message, &[]).unwrap();
                    }
                    while let Some((message, _)) = receiving.receive().unwrap()
                        && !matches!(message, Message::Connections { .. })
                    {}
                }));
                Ok(None)
            };
            let successor = Upgrade::made(None).start_by(&Program::new("/none"), spawn).unwrap();
            let ends = Arc::default();
            assert!(successor.dialog.post_connection(tunnel(&ends)));
            // A message ends the batch, so the second tunnel stays in the queue.
            successor.dialog.post(Message::Leaving);
            assert!(successor.dialog.post_connection(tunnel(&ends)));
            assert_eq!(successor.hand_over(|| ()), Ok(()));
            // The sender may still let go of its batch.
            let begun = osier::time::now();
            while lock(&ends).len() < 2 && since(begun) < ANSWER {
                osier::sleep(TICK);
            }
            assert_eq!(*lock(&ends), [TunnelEnd::Shutdown; 2]);
        });
    }

    /// The new process is a fiber, and time is virtual.
    #[test]
    fn a_process_that_is_ready_and_does_not_serve_fails_the_upgrade() {
        let runtime = osier::Runtime::builder().workers(1).clock(VirtualClock::new());
        runtime.build().unwrap().run(|| {
            let spawn = |theirs| {
                drop(osier::spawn(move || {
                    let arrived = Upgrade::made(Some(Arriving::by(theirs).unwrap()));
                    arrived.wait_for_turn().unwrap();
                    osier::sleep(10 * ANSWER); // on the virtual clock
                }));
                Ok(None)
            };
            let upgrade = Upgrade::made(None);
            let successor = upgrade.start_by(&Program::new("/none"), spawn).unwrap();
            let asked = osier::time::now();
            let handed = successor.hand_over(|| panic!("it does not serve"));
            let why = handed.unwrap_err().to_string();
            assert_eq!(why, "the new process did not serve within 10s");
            assert!(since(asked) >= ANSWER && since(asked) < 2 * ANSWER);
            let next = upgrade.start(&Program::new("/none")).unwrap_err().to_string();
            assert!(next.contains("cannot start"), "{next}");
        });
    }
}
