//! The new process: it receives items, reports that it is ready, and adopts connections.

use std::env;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use osier::net::{Stream, TcpStream};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::part::Link;
use super::{CLOSED, Item, Items, LISTENERS, Upgrade, family_of};
use crate::conn::Conn;
use crate::conn::handover::channel::{self, Receiving, Sending};
use crate::conn::handover::dialog::{Dialog, Moving};
use crate::conn::handover::fields::Malformed;
use crate::conn::handover::format::Message;
use crate::conn::handover::record::Record;
use crate::conn::serve::{Local, Service};
use crate::lock;
use crate::server::accept::on_worker;

/// The variable of the environment that names the old process.
pub(super) const VARIABLE: &str = "OSIER_UPGRADE";

/// The longest wait for the old process to close its listeners. It waits for a second itself.
const ALONE: Duration = Duration::from_secs(2);

/// The channel to the old process, of which everything up to `Start` has been read.
pub(super) struct Arriving {
    sending: Sending,
    receiving: Receiving,
}

impl Arriving {
    /// If an upgrade has started this process, takes the channel from the standard input and receives the items of the old process.
    pub(super) fn of_this_process() -> io::Result<Option<(Arriving, Items)>> {
        let old = env::var(VARIABLE).ok().and_then(|pid| pid.parse::<i32>().ok());
        let parent = rustix::process::getppid().map(rustix::process::Pid::as_raw_pid);
        // Programs that the new process starts inherit the variable, but have another parent.
        if old.is_none() || old != parent || !is_stream_socket() {
            return Ok(None);
        }
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // From here on, no reader of the standard input and no child can reach the channel.
        let (nobody, _) = UnixStream::pair()?;
        rustix::stdio::dup2_stdin(&nobody)?;
        Arriving::by(socket).map(Some)
    }

    /// Takes what the old process gives over a channel.
    pub(super) fn by(socket: UnixStream) -> io::Result<(Arriving, Items)> {
        let (sending, mut receiving) = channel::open(socket)?;
        sending.send(&hello(), &[])?;
        let given = receive_items(&mut receiving).inspect_err(|error| {
            let why = error.to_string();
            let _ = sending.send(&Message::Refused { why }, &[]);
        })?;
        Ok((Arriving { sending, receiving }, given))
    }
}

/// Whether the standard input is a connected Unix socket.
fn is_stream_socket() -> bool {
    let stdin = io::stdin();
    sockopt::socket_type(&stdin) == Ok(SocketType::STREAM) && family_of(&stdin) == Ok(AddressFamily::UNIX)
}

pub(super) fn hello() -> Message {
    Message::Hello {
        process: std::process::id(),
    }
}

fn receive_items(receiving: &mut Receiving) -> io::Result<Items> {
    let mut given = Vec::new();
    let mut is_known = false;
    loop {
        match receiving.receive()? {
            Some((Message::Hello { .. }, _)) => is_known = true,
            Some((Message::Item { name, bytes }, descriptors)) if is_known => {
                given.push((name, Item { bytes, descriptors }));
            }
            Some((Message::Start, _)) if is_known => return Ok(given),
            Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, Malformed::Payload)),
            None => return Err(gone()),
        }
    }
}

/// Whether the old process has ended.
fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
    )
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the old process has ended")
}

impl Upgrade {
    /// Reports why this process cannot become ready. The old process logs the reason and goes on. Has no effect in a process that no upgrade
    /// has started.
    ///
    /// # Suspends
    ///
    /// While the old process does not read. Blocks a plain thread.
    pub fn refuse(&self, why: &str) {
        if let Some(arriving) = lock(&self.0.arriving).take() {
            let why = why.to_owned();
            let _ = arriving.sending.send(&Message::Refused { why }, &[]);
        }
    }

    /// Reports that this process is ready to serve, waits until the old process hands over, and begins to adopt its connections. The
    /// [upgradable](crate::Server::upgradable) servers serve from then on. Call it once they have their listeners. It returns at once in a
    /// process that no upgrade has started.
    ///
    /// # Suspends
    ///
    /// Until the old process hands over.
    ///
    /// # Errors
    ///
    /// The old process has ended, or has given the upgrade up. End this process then.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn ready(&self) -> io::Result<()> {
        self.wait_for_turn()?;
        self.adopt_connections();
        Ok(())
    }

    /// Does the first half of [`ready`](Upgrade::ready): waits until the old process hands over. No connection arrives yet.
    ///
    /// # Suspends
    ///
    /// Until then.
    ///
    /// # Errors
    ///
    /// The errors of [`ready`](Upgrade::ready).
    pub fn wait_for_turn(&self) -> io::Result<()> {
        let Some(arriving) = lock(&self.0.arriving).take() else {
            return Ok(());
        };
        let Arriving { sending, mut receiving } = arriving;
        let channel = Arc::new(sending.duplicate()?);
        let dialog = Arc::new(Dialog::new());
        let mut servers: Vec<String> = self.servers().iter().map(|server| server.name.to_string()).collect();
        servers.dedup();
        dialog.post(Message::Ready { servers });
        let sender = Arc::clone(&dialog);
        let fiber = osier::fiber::Builder::new().name("upgrade: sender");
        drop(fiber.spawn(move || sender.send_all(&sending)));
        loop {
            match receiving.receive()? {
                Some((Message::Part { name, bytes }, _)) => self.deliver(&name, &bytes, &dialog),
                Some((Message::Go, _)) => break,
                Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, Malformed::Payload)),
                None => return Err(gone()),
            }
        }
        // Nobody would accept the connections of a socket that no server here has taken.
        lock(&self.0.given).retain(|(name, _)| !name.starts_with(LISTENERS));
        {
            let mut elders = lock(&self.0.elders);
            elders.push(Arc::clone(&channel));
            *lock(&self.0.predecessor) = Some((Arc::clone(&dialog), channel));
        }
        let upgrade = self.clone();
        let reader = osier::fiber::Builder::new().name("upgrade: reader");
        drop(reader.spawn(move || {
            if let Err(why) = upgrade.adopt_all(&mut receiving, &dialog) {
                upgrade.log(format_args!(
                    "upgrade: the old process keeps the connections that it has: {why}"
                ));
                dialog.send_through(Message::Failed { why: why.to_string() });
            }
            lock(&upgrade.0.predecessor).take();
            dialog.hear(|heard| heard.closed = true);
            dialog.close();
            for (_, part) in upgrade.parts() {
                part.alone();
            }
        }));
        Ok(())
    }

    /// Does the second half of [`ready`](Upgrade::ready): lets the servers serve, and asks the old process for its connections.
    pub fn adopt_connections(&self) {
        self.0.serves.set();
        if let Some((dialog, _)) = &*lock(&self.0.predecessor) {
            dialog.post(Message::Accepting);
        }
    }

    /// Waits until the process that this one has taken over from accepts no more connections, for two seconds at most: until then some
    /// clients still meet that process. It gives itself a second to stop: if its workers are busy for longer, some listeners may still be
    /// open. Call it before you tell anybody that this process has taken over. It returns at once in a process that no upgrade has
    /// started.
    ///
    /// The addresses of listeners that this process does not have are free then.
    ///
    /// # Suspends
    ///
    /// Until then.
    pub fn wait_until_alone(&self) {
        if let Some(dialog) = self.predecessor() {
            // Where the dialog is broken, the old process has ended, or has said why it goes on.
            let _ = dialog.wait_for(ALONE, |heard| heard.closed.then_some(()));
        }
    }

    /// Hands a message to its part.
    pub(super) fn deliver(&self, name: &str, bytes: &[u8], dialog: &Arc<Dialog>) {
        if let Some(part) = self.find_part(name) {
            part.receive(bytes, &Link::new(name, dialog));
            // Many messages may arrive at once. Let the connections of the part run in between.
            osier::yield_now();
        }
    }

    /// Adopts connections until the old process has left.
    ///
    /// # Errors
    ///
    /// Why this process can take no more. The old one may still have connections.
    fn adopt_all(&self, receiving: &mut Receiving, dialog: &Arc<Dialog>) -> io::Result<()> {
        loop {
            let (message, descriptors) = match receiving.receive() {
                Ok(Some(received)) => received,
                Ok(None) => return Ok(()),
                Err(error) if is_end(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
            match message {
                Message::Part { name, .. } if name == CLOSED => dialog.hear(|heard| heard.closed = true),
                Message::Part { name, bytes } => self.deliver(&name, &bytes, dialog),
                Message::Connections { batch, records } => {
                    let all = records.len();
                    let moving: Vec<Moving> = with_sockets(records, descriptors).collect();
                    // The old process adopts them again if it does not hear this.
                    if !dialog.send_through(Message::Taken { batch }) {
                        return Ok(());
                    }
                    if moving.len() < all {
                        self.log(format_args!(
                            "upgrade: {} of {all} connections of the old process are closed: this process may not open more files",
                            all - moving.len()
                        ));
                    }
                    for moving in moving {
                        self.adopt(moving);
                    }
                }
                Message::Done => return Ok(()),
                _ => {}
            }
        }
    }

    /// Gives a connection to its server.
    pub(super) fn adopt(&self, moving: Moving) {
        if let Some(server) = self.server(&moving.record.server) {
            adopt(self, server.service, moving);
        }
    }

    /// Whether this process has begun to serve.
    pub fn serves(&self) -> bool {
        self.0.serves.is_set()
    }

    /// The dialog to the process that this one has taken over from, while that process has connections.
    pub(super) fn predecessor(&self) -> Option<Arc<Dialog>> {
        let predecessor = lock(&self.0.predecessor);
        predecessor.as_ref().map(|(dialog, _)| Arc::clone(dialog))
    }

    pub(super) fn begin(&self) -> bool {
        !self.0.is_busy.swap(true, Ordering::AcqRel)
    }

    pub(super) fn end(&self) {
        self.0.is_busy.store(false, Ordering::Release);
    }
}

/// Gives a connection to a worker of `service`, to each worker in turn.
pub(super) fn adopt(upgrade: &Upgrade, service: Service, moving: Moving) {
    let turn = upgrade.0.turn.fetch_add(1, Ordering::Relaxed);
    let index = turn % service.state.connections.len();
    // From here on, an upgrade of this process waits for it.
    service
        .state
        .adopted(index, moving.record.peer, moving.record.is_proxied);
    let arriving = Adopting {
        service,
        index,
        connection: Some(moving),
    };
    let upgrade = upgrade.clone();
    drop(on_worker(index, "adopt", move || arriving.go_on(&upgrade)));
}

/// A connection on its way to its worker, which is counted already. If the worker has no stack for the fiber that takes it, or ends first,
/// the drop closes the connection and ends the count.
struct Adopting {
    service: Service,
    index: usize,
    connection: Option<Moving>,
}

impl Adopting {
    fn go_on(mut self, upgrade: &Upgrade) {
        if let Some(moving) = self.connection.take() {
            let restore = |record: &_, backend| upgrade.restore(record, backend);
            Conn::adopt(&Local::here(&self.service), moving, &restore);
        }
    }
}

impl Drop for Adopting {
    fn drop(&mut self) {
        if let Some(Moving { record, .. }) = &self.connection {
            self.service
                .state
                .not_adopted(self.index, record.peer, record.is_proxied);
        }
    }
}

/// The connections of a batch, each with its sockets. The last ones are missing if some descriptors are.
fn with_sockets(records: Vec<Record>, descriptors: Vec<OwnedFd>) -> impl Iterator<Item = Moving> {
    let mut sockets = descriptors.into_iter().map(stream_of);
    records.into_iter().map_while(move |record| {
        let socket = sockets.next()?;
        let backend = match record.tunnel {
            Some(_) => Some(sockets.next()?),
            None => None,
        };
        Some(Moving {
            record,
            socket,
            backend,
            report: None,
        })
    })
}

fn stream_of(descriptor: OwnedFd) -> Stream {
    match family_of(&descriptor) {
        Ok(AddressFamily::UNIX) => osier::net::UnixStream::from(descriptor).into(),
        _ => TcpStream::from(descriptor).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Router, Server};

    #[test]
    fn a_connection_that_no_worker_takes_is_not_counted() {
        let server = Server::new(Router::new()).max_connections_per_client(1);
        let service = server.service(1, None);
        let record = Record {
            server: "web".into(),
            peer: ([127, 0, 0, 1], 1).into(),
            is_proxied: false,
            is_fresh: true,
            is_announced: false,
            received: Vec::new(),
            tls: None,
            http2: None,
            session: None,
            tunnel: None,
        };
        let socket = osier::net::UnixStream::from(UnixStream::pair().unwrap().0).into();
        service.state.adopted(0, record.peer, false);
        assert_eq!(service.state.total(), 1);
        drop(Adopting {
            service: service.clone(),
            index: 0,
            connection: Some(Moving {
                record,
                socket,
                backend: None,
                report: None,
            }),
        });
        assert_eq!(service.state.total(), 0);
        assert!(
            service.state.admit(([127, 0, 0, 1], 2).into()),
            "its client has a place again"
        );
    }
}
