//! The old process: it starts the new one, and hands over.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use osier::JoinHandle;

use super::error::Error;
use super::new::{VARIABLE, adopt, hello};
use super::part::{Link, Part};
use super::{CLOSED, ELDERS, Item, Items, LISTENERS, Registered, Upgrade};
use crate::conn::handover::channel::{self, Receiving, Sending};
use crate::conn::handover::dialog::Dialog;
use crate::conn::handover::format::{DESCRIPTORS_MAX, Message};
use crate::conn::moving::{Collecting, collect};
use crate::conn::serve::Local;
use crate::conn::worker::Closes;
use crate::lock;
use crate::server::accept::on_worker;

/// The time for a program to become ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time that in-flight requests get in the old process.
const DRAIN: Duration = Duration::from_secs(3600);

/// The time from the handover to the answer that the new process serves.
const ANSWER: Duration = Duration::from_secs(10);

/// The longest wait for accepting fibers to end. A busy worker delays them.
const CLOSING: Duration = Duration::from_secs(1);

/// The longest wait for the end of a process that has closed its socket: the kernel closes that a moment before the process has
/// ended, and on a busy machine the moment may be seconds. Taking a process that has ended for one that serves would end this one
/// too.
const ENDING: Duration = Duration::from_secs(10);

/// The time in which the handover to this process must end by itself, before this process hands over.
const FINISHING: Duration = Duration::from_secs(3);

/// The time for connections at rest to move when the new process itself hands over: a few passes of the collecting fibers.
const LAST_PASS: Duration = Duration::from_millis(100);

/// Time between two looks of the handover at the remaining connections.
const TICK: Duration = Duration::from_millis(2);

/// The program that an upgrade starts, with its arguments and items.
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    patience: Duration,
    drain: Duration,
    /// [`ENDING`], or less in a test.
    ending: Duration,
    items: Arc<Items>,
}

osier_queue::impl_debug!(Program, self => {
    path: self.path, arguments: self.arguments, patience: self.patience, drain: self.drain, items: self.items.len()
});

impl Program {
    /// The program at `path`, without arguments.
    pub fn new(path: impl Into<PathBuf>) -> Program {
        Program {
            path: path.into(),
            arguments: Vec::new(),
            patience: PATIENCE,
            drain: DRAIN,
            ending: ENDING,
            items: Arc::default(),
        }
    }

    /// The program that is at the path of this process's program now, with the arguments of this process.
    ///
    /// # Errors
    ///
    /// The system's error, if it does not know the path.
    pub fn this() -> io::Result<Program> {
        let path = env::current_exe()?;
        // Linux adds this to the name of a file that was removed, or replaced by another.
        let path = match path.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
            Some(path) if Path::new(path).exists() => path.into(),
            _ => path,
        };
        Ok(Program::new(path).args(env::args_os().skip(1)))
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Program {
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned());
        self.arguments.extend(arguments);
        self
    }

    /// Sets the time within which the program must be ready; 30 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Program {
        self.patience = patience;
        self
    }

    /// Sets how long in-flight requests may go on in the old process; an hour by default. The graceful shutdown follows.
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> Program {
        self.drain = drain;
        self
    }

    /// Gives the new process an item, for [`Upgrade::take`].
    ///
    /// # Panics
    ///
    /// With more than 128 descriptors, or 8 MiB.
    #[must_use]
    pub fn give(mut self, name: &str, item: Item) -> Program {
        assert!(item.descriptors.len() <= DESCRIPTORS_MAX && item.bytes.len() <= 8 << 20);
        let items = Arc::get_mut(&mut self.items).expect("no upgrade runs with it while it is changed");
        items.push((name.to_owned(), item));
        self
    }

    /// The path of the program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn spawn(&self, channel: UnixStream) -> impl FnOnce() -> io::Result<Child> + Send + 'static {
        let own = std::process::id().to_string();
        let mut command = Command::new(&self.path);
        command
            .args(&self.arguments)
            .stdin(OwnedFd::from(channel))
            .env(VARIABLE, &own);
        // The new process gets the sockets as items. It inherits systemd's watchdog, which then no longer names this process.
        for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
            command.env_remove(name);
        }
        if env::var("WATCHDOG_PID").is_ok_and(|pid| pid == own) {
            command.env_remove("WATCHDOG_PID");
        }
        move || command.spawn()
    }
}

/// A new process that is ready. Its drop ends the new process.
pub struct Successor {
    upgrade: Upgrade,
    dialog: Arc<Dialog>,
    /// Present until the new process serves. From then on nothing here may end it.
    child: Option<Child>,
    sender: Option<JoinHandle<()>>,
    /// The names of its servers.
    servers: Vec<String>,
    /// The names of servers of this process whose sockets stay open until the handover is over.
    kept: Vec<String>,
    /// Runs before the first socket closes.
    before_closing: Option<Box<dyn FnOnce() + Send + Sync>>,
    drain: Duration,
    /// As in [`Program`].
    ending: Duration,
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
        let cannot = |error: io::Error| Error::new(format!("cannot start '{}': {error}", program.path.display()));
        let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
        let (sending, receiving) = channel::open(ours).map_err(cannot)?;
        successor.child = spawn(theirs).map_err(cannot)?;
        successor.talk(sending, receiving, Arc::clone(&program.items));
        let ready = successor.dialog.wait_for(program.patience, |heard| heard.ready.take());
        match ready {
            Ok(Some(servers)) => successor.servers = servers,
            Ok(None) => {
                let (path, seconds) = (program.path.display(), program.patience.as_secs_f64());
                return Err(Error::new(format!("'{path}' was not ready within {seconds} s")));
            }
            Err(why) => return Err(Error::new(successor.why_ended(&program.path, why))),
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

    /// Hands over: the new process serves, and connections at rest move there. In-flight requests end here, and their connections move
    /// afterwards. Calls `serving` when the new process serves alone, and the addresses that it does not have are free.
    ///
    /// # Suspends
    ///
    /// Until the last connection has moved or ended, the [drain](Program::drain) is over, or the handover shall [end
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
            dialog.wait_a_while(TICK);
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
            osier::sleep(TICK);
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
fn is_last_of_its_name(servers: &[Registered], index: usize) -> bool {
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

/// Waits for the end of a process that ends. One that does not end in time is killed, and has no status.
fn wait_or_kill(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let status = wait_for_end(child, limit).ok().flatten();
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    status
}

/// Waits for the end of a process, for `limit` at most. `None` if it goes on.
fn wait_for_end(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        match child.try_wait()? {
            None if begun.elapsed() < limit => std::thread::sleep(TICK),
            status => return Ok(status),
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
        osier::sleep(TICK);
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
    use std::sync::Mutex;

    use osier::time::VirtualClock;

    use super::super::new::Arriving;
    use super::*;
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

    /// A process that runs for minutes after these commands. The upgrade does not wait for its end.
    fn outliving(commands: &str) -> Program {
        let mut program = Program::new("/bin/sh").args(["-c", &format!("{commands}; exec sleep 600")]);
        program.ending = Duration::from_millis(50);
        program
    }

    fn lives(id: u32) -> bool {
        let id = rustix::process::Pid::from_raw(id as i32).expect("an id");
        rustix::process::test_kill_process(id).is_ok()
    }

    #[test]
    fn a_process_that_closes_its_socket_before_it_is_ready_is_killed() {
        let folder = testkit::Folder::new();
        let id = folder.join("id");
        let program = outliving(&format!("echo $$ > {}; exec 0<&-", id.display()));
        osier::run(move || {
            let upgrade = Upgrade::made(None);
            let why = upgrade.start(&program).unwrap_err().to_string();
            assert_eq!(why, "'/bin/sh' has closed the connection to this process");
            let id = std::fs::read_to_string(id).unwrap();
            assert!(!lives(id.trim().parse().unwrap()));
            let next = upgrade.start(&Program::new("/none")).unwrap_err().to_string();
            assert!(next.contains("cannot start"), "{next}");
        });
    }

    #[test]
    fn a_process_that_closes_its_socket_while_it_serves_lives_on() {
        let (near, far) = UnixStream::pair().unwrap();
        // The first messages of a process that serves.
        let said = testkit::Folder::new();
        let path = said.join("said");
        let program = outliving(&format!("cat {} >&0; exec 0<&-", path.display()));
        osier::run(move || {
            let (sending, _) = channel::open(near).unwrap();
            let ready = Message::Ready { servers: Vec::new() };
            for message in [hello(), ready, Message::Accepting] {
                sending.send(&message, &[]).unwrap();
            }
            drop(sending);
            std::io::copy(&mut &far, &mut std::fs::File::create(path).unwrap()).unwrap();
            let successor = Upgrade::made(None).start(&program).unwrap();
            let id = successor.id();
            assert_eq!(successor.hand_over(|| ()), Ok(()));
            assert!(lives(id), "nobody may end a process that serves");
            let id = rustix::process::Pid::from_raw(id as i32).unwrap();
            rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
        });
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

    #[test]
    fn a_program_does_not_show_its_secrets() {
        let item = Item {
            bytes: b"hunter2".to_vec(),
            descriptors: Vec::new(),
        };
        let shown = format!("{item:?}");
        let shown = format!("{shown} {:?}", Program::new("/bin/true").give("tickets", item));
        let secret = format!("{:?}", b"hunter2");
        assert!(shown.contains("/bin/true") && shown.contains("bytes: 7"), "{shown}");
        assert!(!shown.contains(secret.trim_matches(['[', ']'])), "{shown}");
    }
}
