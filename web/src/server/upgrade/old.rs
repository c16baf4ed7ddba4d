//! The old process: it starts the new one, gives it what it needs, and listens to it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use osier::JoinHandle;

use super::error::Error;
use super::new::hello;
use super::program::{Program, wait_or_kill};
use super::{ELDERS, Items, LISTENERS, Registered, Upgrade};
use crate::conn::handover::channel::{self, Receiving, Sending};
use crate::conn::handover::dialog::Dialog;
use crate::conn::handover::format::{DESCRIPTORS_MAX, Message};

/// A new process that is ready. Its drop ends the new process.
pub struct Successor {
    pub(super) upgrade: Upgrade,
    pub(super) dialog: Arc<Dialog>,
    /// Present until the new process serves. From then on nothing here may end it.
    pub(super) child: Option<Child>,
    pub(super) sender: Option<JoinHandle<()>>,
    /// The names of its servers.
    pub(super) servers: Vec<String>,
    /// The names of servers of this process whose sockets stay open until the handover is over.
    pub(super) kept: Vec<String>,
    /// Runs before the first socket closes.
    pub(super) before_closing: Option<Box<dyn FnOnce() + Send + Sync>>,
    pub(super) drain: Duration,
    /// As in [`Program`].
    pub(super) ending: Duration,
}

osier_queue::impl_debug!(Successor, self => { id: self.id(), servers: self.servers, drain: self.drain, .. });

impl Upgrade {
    /// Starts the program and hands over to it. When this returns, the upgradable servers of this process have been
    /// [shut down](crate::ShutdownHandle::shutdown): end the process when they have ended.
    ///
    /// # Suspends
    ///
    /// Until the last connection has moved or ended, or the [drain](Program::drain) is over.
    ///
    /// # Errors
    ///
    /// One line: why the upgrade has failed. This process then serves as before.
    ///
    /// # Cancellation
    ///
    /// Unwinds as [`start`](Upgrade::start) and [`hand_over`](Successor::hand_over) do.
    pub fn run(&self, program: &Program) -> Result<(), Error> {
        self.start(program)?.hand_over(|| ())
    }

    /// Starts the program, and waits until it is ready to serve.
    ///
    /// # Suspends
    ///
    /// Until then.
    ///
    /// # Errors
    ///
    /// One line: why the upgrade has failed. Another upgrade runs, or the program cannot be started, has ended, refuses to serve, speaks
    /// another version or is not ready in time. Nothing has changed then.
    ///
    /// # Cancellation
    ///
    /// Unwinds, and ends the new process. This process serves as before.
    pub fn start(&self, program: &Program) -> Result<Successor, Error> {
        self.start_by(program, |theirs| osier::unblock(program.spawn(theirs)).map(Some))
    }

    /// Starts the program by a call of `spawn`, which may start something that is no process.
    pub(super) fn start_by(
        &self,
        program: &Program,
        spawn: impl FnOnce(UnixStream) -> io::Result<Option<Child>>,
    ) -> Result<Successor, Error> {
        if !self.serves() {
            return Err(Error::new(
                "this process has not taken over from the one before it yet; try again",
            ));
        }
        if std::process::id() == 1 {
            return Err(Error::new(
                "this is process 1, and the container ends with it: start another container",
            ));
        }
        if !self.begin() {
            return Err(Error::new("another upgrade is under way"));
        }
        // From here on, the drop of the successor ends the upgrade.
        let mut successor = Successor {
            upgrade: self.clone(),
            dialog: Arc::new(Dialog::new()),
            child: None,
            sender: None,
            servers: Vec::new(),
            kept: Vec::new(),
            before_closing: None,
            drain: program.drain,
            ending: program.ending,
        };
        let cannot = |error: io::Error| Error::new(format!("cannot start '{}': {error}", program.path().display()));
        let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
        let (sending, receiving) = channel::open(ours).map_err(cannot)?;
        successor.child = spawn(theirs).map_err(cannot)?;
        successor.talk(sending, receiving, Arc::clone(&program.items));
        let ready = successor.dialog.wait_for(program.patience, |heard| heard.ready.take());
        match ready {
            Ok(Some(servers)) => successor.servers = servers,
            Ok(None) => {
                let (path, seconds) = (program.path().display(), program.patience.as_secs_f64());
                return Err(Error::new(format!("'{path}' was not ready within {seconds} s")));
            }
            Err(why) => return Err(Error::new(successor.why_ended(program.path(), why))),
        }
        Ok(successor)
    }
}

impl Successor {
    /// The id of the new process.
    pub fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// The names of its [upgradable](crate::Server::upgradable) servers.
    pub fn servers(&self) -> &[String] {
        &self.servers
    }

    /// Leaves the sockets of these servers open until the handover is over, although the new process does not have them: this process could
    /// not open them again. Clients wait there meanwhile.
    pub fn keep(&mut self, servers: Vec<String>) {
        self.kept = servers;
    }

    /// Calls `before` when the new process serves, before the sockets that it does not have close.
    pub fn before_closing(&mut self, before: impl FnOnce() + Send + Sync + 'static) {
        self.before_closing = Some(Box::new(before));
    }

    /// Starts the fibers that send and receive.
    fn talk(&mut self, sending: Sending, mut receiving: Receiving, items: Arc<Items>) {
        let (dialog, servers) = (Arc::clone(&self.dialog), self.upgrade.servers());
        let elders = self.upgrade.elders();
        let sender = osier::fiber::Builder::new().name("upgrade: sender");
        self.sender = Some(sender.spawn(move || match give(&sending, &items, &servers, &elders) {
            Ok(()) => dialog.send_all(&sending),
            Err(error) => dialog.break_off_writing(&error),
        }));
        let (dialog, upgrade) = (Arc::clone(&self.dialog), self.upgrade.clone());
        let reader = osier::fiber::Builder::new().name("upgrade: reader");
        drop(reader.spawn(move || listen(&mut receiving, &dialog, &upgrade)));
    }

    /// The reason why the new process has ended, with its status if it ended by itself.
    fn why_ended(&mut self, path: &Path, why: String) -> String {
        let path = path.display();
        if why != ENDED {
            return format!("'{path}' cannot take over: {why}");
        }
        let (child, limit) = (self.child.take(), self.ending);
        // The socket is closed a moment before the process has ended.
        let status = child.and_then(|mut child| osier::unblock(move || wait_or_kill(&mut child, limit)));
        match status {
            Some(status) => format!("'{path}' has ended before it was ready ({status})"),
            None => format!("'{path}' has closed the connection to this process"),
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The new process does not serve yet, and may be stuck.
            let _ = child.kill();
            osier::unblock(move || child.wait()).ok();
        }
        self.dialog.break_off(|| "the upgrade was given up".into());
        self.upgrade.end();
    }
}

/// The reason for the end of a channel without a message.
const ENDED: &str = "it has ended";

/// Whether a server accepts: the last one of a name does.
pub(super) fn is_last_of_its_name(servers: &[Registered], index: usize) -> bool {
    !servers[index + 1..]
        .iter()
        .any(|later| later.name == servers[index].name)
}

/// Gives the new process everything that it needs to become ready.
fn give(sending: &Sending, items: &Items, servers: &[Registered], elders: &[Arc<OwnedFd>]) -> io::Result<()> {
    sending.send(&hello(), &[])?;
    for (name, item) in items {
        let message = Message::Item {
            name: name.clone(),
            bytes: item.bytes.clone(),
        };
        let descriptors: Vec<_> = item.descriptors.iter().map(AsFd::as_fd).collect();
        sending.send(&message, &descriptors)?;
    }
    for (index, server) in servers.iter().enumerate() {
        // An earlier server may have other sockets, whose file has been removed.
        if !is_last_of_its_name(servers, index) {
            continue;
        }
        for listeners in server.sockets.all().chunks(DESCRIPTORS_MAX) {
            let message = Message::Item {
                name: format!("{LISTENERS}{}", server.name),
                bytes: Vec::new(),
            };
            let descriptors: Vec<_> = listeners.iter().map(|listener| listener.as_fd()).collect();
            sending.send(&message, &descriptors)?;
        }
    }
    for elders in elders.chunks(DESCRIPTORS_MAX) {
        let message = Message::Item {
            name: ELDERS.to_owned(),
            bytes: Vec::new(),
        };
        let descriptors: Vec<_> = elders.iter().map(|elder| elder.as_fd()).collect();
        sending.send(&message, &descriptors)?;
    }
    sending.send(&Message::Start, &[])
}

/// The work of the reader's fiber: notes what the new process says.
fn listen(receiving: &mut Receiving, dialog: &Arc<Dialog>, upgrade: &Upgrade) {
    loop {
        match receiving.receive() {
            Ok(Some((Message::Part { name, bytes }, _))) if dialog.look(|heard| !heard.failed) => {
                upgrade.deliver(&name, &bytes, dialog);
            }
            Ok(Some((Message::Taken { batch }, _))) => dialog.hear_taken(batch),
            Ok(Some((Message::Refused { why }, _))) => return dialog.break_off(|| why),
            Ok(Some((Message::Failed { why }, _))) => {
                dialog.hear(|heard| heard.failed = true);
                // It may say later that it stops.
                dialog.break_off(|| why);
            }
            Ok(Some((message, _))) => dialog.hear(|heard| match message {
                Message::Ready { servers } => heard.ready = Some(servers),
                Message::Accepting => heard.accepting = true,
                Message::Leaving => heard.leaving = true,
                Message::Stopping => heard.stopping = true,
                _ => {}
            }),
            Ok(None) => return dialog.break_off(|| ENDED.into()),
            // The kernel reports a reset when a crashed process has left bytes unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return dialog.break_off(|| ENDED.into()),
            Err(error) => return dialog.break_off(|| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_takes_no_more_connections_is_heard_on() {
        osier::run(|| {
            let (near, far) = UnixStream::pair().unwrap();
            let ((_near, mut receiving), (far, _)) = (channel::open(near).unwrap(), channel::open(far).unwrap());
            let dialog = Arc::new(Dialog::new());
            let why = "it is full".to_owned();
            for message in [Message::Failed { why }, Message::Stopping] {
                far.send(&message, &[]).unwrap();
            }
            drop(far);
            listen(&mut receiving, &dialog, &Upgrade::made(None));
            assert!(dialog.look(|heard| heard.failed && heard.stopping));
            assert_eq!(dialog.why_broken().as_deref(), Some("it is full"));
        });
    }
}
