//! Opens listeners, takes systemd's sockets and gives up privileges, on the first thread and before any other exists.
//!
//! ```text
//!   PID file ─▶ certificates ─▶ listeners ─▶ files given to the user ─▶ privileges given up ─▶ paths inside of chroot
//! ```
//!
//! Privileges belong to threads, so [`open`] runs before the runtime is built (`process/privileges/mod.rs`). Afterwards
//! the paths in the configuration are those inside of the new root folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use osier_tls::Tickets;
use osier_web::upgrade::Upgrade;
use osier_web::wrap::session::CookieKeys;
use osier_web::{Listener, SocketFile};
use rustix::fs::{Access, Mode, access};

use crate::certificates::shared::{Shared, random_keys};
use crate::certificates::{Certificates, state};
use crate::config::origin::{Origin, Spelling};
use crate::config::{self, Bind, Config};
use crate::handler::Touch;
use crate::log::errors::ErrorLog;
use crate::log::operator::Say;
use crate::metrics::Totals;
use crate::process::handed;
use crate::process::pid_file::PidFile;
use crate::process::privileges::{Paths, Privileges, Settings};
use crate::process::root::{inside, outside};
use crate::process::systemd::{Notify, Socket, Sockets};
use crate::reader::Reason;

use super::arrival::{self, Confinement};
use super::memory;
use super::names;
use super::paths::{give_files, move_inside, report_unreadable, touched, warn_of_kept};
use super::watchdog::Watchdog;

/// The time after which a key of this process seals no new session tickets.
const TICKET_KEYS_CHANGE: Duration = Duration::from_secs(12 * 3600);

/// State of the process that the whole run needs.
pub struct Process {
    /// The root folder that this process has changed to.
    pub root: Option<PathBuf>,
    /// Permissions of a Unix socket without a configured `mode`.
    pub made_mode: u32,
    pub notify: Notify,
    pub log: Arc<ErrorLog>,
    pub say: Say,
    pub totals: Arc<Totals>,
    /// The memory limit, also for the new process of an upgrade.
    pub memory: memory::Found,
    pub watchdog: Watchdog,
    pub certificates: Arc<Certificates>,
    /// The keys of session tickets. All listeners share them, also after reloads.
    pub tickets: Tickets,
    pub upgrade: Upgrade,
    pub pid_file: Option<PidFile>,
    /// The rights that this process has dropped, or that the process before an upgrade had dropped.
    pub confinement: Confinement,
    /// The program that an upgrade starts if the configuration names none.
    pub executable: Result<PathBuf, String>,
    /// The folder whose programs Landlock lets this process start.
    pub may_execute: Option<PathBuf>,
    /// How messages name settings.
    pub spelling: &'static Spelling,
}

/// The sockets that are opened before the first worker starts.
pub struct Opened {
    /// Sockets of each `[[listen]]`, in their order. Nothing for a listener that can be bound later.
    pub listeners: Vec<Given>,
    /// Sockets of `[admin]`.
    pub admin: Option<Given>,
}

/// The sockets for a listener.
pub enum Given {
    /// No sockets yet: the listener opens its own.
    Nothing,
    /// Sockets that were opened before privileges were given up.
    Opened(Vec<Listener>),
    /// Sockets of the process that this one takes over from.
    Arrived(Vec<Listener>),
    /// Sockets of the same listener with other settings, or of `[admin]` at the same address.
    Inherited(Vec<Listener>),
}

/// Opens all sockets and gives up privileges.
///
/// # Errors
/// One line: what cannot be opened, and what to do.
pub fn open(
    origin: &Origin,
    config: &mut Config,
    workers: usize,
    log: Arc<ErrorLog>,
    (upgrade, inherited): (Upgrade, Option<Confinement>),
) -> Result<(Process, Opened), Reason> {
    let mut process = Process::new(origin, config, workers, log, upgrade)?;
    let say = process.say.clone();
    let mut sockets = Sockets::take()?;
    let mut replaceable = Replaceable::default();
    let state = config.state.clone().or_else(state::default_folder);
    let used_state = state.as_deref().filter(|_| config.needs_state());
    let mut pid_file = config
        .pid_file
        .as_ref()
        .map(|path| pid_file(path, &process.upgrade))
        .transpose()?;
    // A process that takes over from a confined one has its rights already.
    let privileges = match &inherited {
        None => privileges(origin.file(), config, used_state, &mut replaceable)?,
        Some(_) => None,
    };
    let inherited_root = inherited.as_ref().and_then(|inherited| inherited.chroot.as_deref());
    read_certificates(config, inherited_root, &process.certificates)?;
    let opened = open_listeners(config, privileges.as_ref(), &process, workers, &mut sockets)?;
    warn_of_unused(&sockets, &say);
    let has_given_up = privileges.is_some();
    if let Some(privileges) = privileges {
        give_up(privileges, config, used_state, &replaceable, &say)?;
    }
    let has_arrived = inherited.is_some();
    enter_root(origin, config, has_arrived, &say);
    if has_given_up {
        report_unreadable(config, config.chroot.clone().as_deref(), &say);
    }
    process.read_ticket_keys(config);
    let root = config.chroot.as_deref();
    if let (Some(file), Some(path)) = (&mut pid_file, &config.pid_file) {
        file.moved(inside(root, path));
    }
    process.pid_file = pid_file;
    process.root = root.map(Path::to_owned);
    let state = match &config.state {
        // The configuration was read inside of the root folder.
        Some(state) if has_arrived => Some(state.clone()),
        _ => state.and_then(|state| inside(root, &state)),
    };
    settle_certificates(&process, config, state)?;
    // This may start the first thread besides this one. It has the rights that stay.
    process.log.open(&config.error_log);
    Ok((process, opened))
}

/// Changes the paths of the configuration to those inside of its root folder, if it has one. A process that `has_arrived` has read them
/// there.
fn enter_root(origin: &Origin, config: &mut Config, has_arrived: bool, say: &Say) {
    let Some(root) = config.chroot.clone() else { return };
    warn_of_temporary_folder(config, &root, say);
    if !has_arrived {
        move_inside(config, &root);
    }
    warn_of_file_outside(origin, &root, say);
}

/// Tells the certificates where their state is: in this folder, or shared with other machines.
fn settle_certificates(process: &Process, config: &Config, state: Option<PathBuf>) -> Result<(), Reason> {
    let shared = config.shared.as_ref().map(|settings| {
        let tickets = config.ticket_keys.is_none().then(|| process.tickets.clone());
        open_shared(settings, tickets, &process.say)
    });
    let shared = shared.transpose()?;
    process.certificates.settle(process.root.clone(), state, shared);
    Ok(())
}

/// Warns of each socket of systemd that no address names.
fn warn_of_unused(sockets: &Sockets, say: &Say) {
    for name in sockets.unused() {
        say.warning(format_args!(
            "the socket '{name}' of systemd is not used: no address is \"systemd:{name}\""
        ));
    }
}

/// Warns of a configuration file that this process no longer sees in its new root folder.
fn warn_of_file_outside(origin: &Origin, root: &Path, say: &Say) {
    if let Some(file) = origin.file().filter(|file| inside(Some(root), file).is_none()) {
        say.warning(format_args!(
            "'{}' lies outside of '{}': it cannot be read again, and changes take effect at the next start",
            file.display(),
            root.display()
        ));
    }
}

/// The permissions of a Unix socket that is made now.
fn made_mode() -> u32 {
    // The umask can be read only by setting it. No other thread exists that could see the change.
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    (Mode::from_raw_mode(0o777) - umask).as_raw_mode()
}

/// Reads the files of certificates while this process may still read them.
fn read_certificates(
    config: &Config,
    inherited_root: Option<&Path>,
    certificates: &Certificates,
) -> Result<(), String> {
    let is_out_of_sight = |file: &Path| inherited_root.is_some_and(|root| inside(Some(root), file).is_none());
    if let Some(file) = config.certificate_files().find(|file| is_out_of_sight(file)) {
        return Err(format!(
            "'{}' lies outside of the root folder, where a process that takes over cannot read it: restart the server",
            file.display()
        ));
    }
    for from in config.sites.iter().filter_map(|site| site.tls.certificate.as_ref()) {
        certificates.read(from);
    }
    Ok(())
}

/// Opens the sockets of `[[listen]]` and `[admin]`. Removes an optional listener that cannot be opened.
fn open_listeners(
    config: &mut Config,
    privileges: Option<&Privileges>,
    process: &Process,
    workers: usize,
    sockets: &mut Sockets,
) -> Result<Opened, Reason> {
    let spelling = process.spelling;
    let mut listeners = Vec::new();
    let mut refused = None;
    let ids = privileges.and_then(Privileges::ids);
    let named = |name: String| process.upgrade.listeners(&name);
    let arrived = config
        .listeners
        .iter()
        .map(|listener| named(names::of_listener(listener)));
    let mut arrived: Vec<_> = arrived.collect();
    let admin = config.admin.as_ref().map(|admin| names::of_admin(&admin.bind));
    let admin_arrived = admin.and_then(named);
    for (index, listener) in config.listeners.iter().enumerate() {
        let bind = &listener.bind;
        // Earlier programs name every server by its address alone.
        if let Some(arrived) = arrived[index].take().or_else(|| named(bind.to_string())) {
            listeners.push(Given::Arrived(arrived));
            continue;
        }
        // The server binds a Unix socket later and removes its file at the end, for which it needs the same rights.
        if matches!(bind, Bind::Unix(_)) && privileges.is_none() && !listener.is_optional {
            listeners.push(Given::Nothing);
            continue;
        }
        match open_sockets(bind, spelling.address, process, workers, sockets) {
            Ok(opened) => listeners.push(Given::Opened(opened)),
            Err(why) if listener.is_optional => {
                let why = why.as_str().split("; ").next().unwrap_or_default();
                process.say.warning(format_args!("goes on without https: {why}"));
                refused = Some(index);
            }
            Err(why) => return Err(why),
        }
        if let Bind::Unix(path) = bind {
            give_socket_file(path, listener.mode, ids)?;
        }
    }
    if let Some(index) = refused {
        config.remove_listener(index);
    }
    let admin = config.admin.as_ref().map(|admin| -> Result<Given, Reason> {
        if let Some(arrived) = admin_arrived.or_else(|| named(admin.bind.to_string())) {
            return Ok(Given::Arrived(arrived));
        }
        let opened = open_sockets(&admin.bind, spelling.admin, process, workers, sockets)?;
        if let Bind::Unix(path) = &admin.bind {
            give_socket_file(path, None, ids)?;
        }
        Ok(Given::Opened(opened))
    });
    let admin = admin.transpose()?;
    Ok(Opened { listeners, admin })
}

/// Sets the mode of a socket file, and gives the file to the user that the process switches to.
fn give_socket_file(path: &Path, mode: Option<u32>, ids: Option<(u32, u32)>) -> Result<(), String> {
    if let Some(mode) = mode {
        handed::set_socket_mode(path, mode)
            .map_err(|error| format!("cannot change the mode of '{}': {error}", path.display()))?;
    }
    if let Some((user, group)) = ids {
        handed::give_socket(path, user, group)
            .map_err(|error| format!("cannot change the owner of '{}': {error}", path.display()))?;
    }
    Ok(())
}

/// Gives up privileges, after the files that the process keeps using belong to its new user.
fn give_up(
    privileges: Privileges,
    config: &mut Config,
    state: Option<&Path>,
    replaceable: &Replaceable,
    say: &Say,
) -> Result<(), String> {
    if let Some((user, group)) = privileges.ids() {
        give_files(config, user, group, say);
        if let Some(state) = state {
            warn_of_kept(state, handed::give_folder(state, user, group), say);
        }
    }
    for line in privileges.give_up()? {
        say.info(format_args!("{line}"));
    }
    if config.landlock {
        replaceable.report(say);
    }
    Ok(())
}

/// Warns if request bodies have to be stored in a folder for temporary files that cannot be written to.
fn warn_of_temporary_folder(config: &Config, root: &Path, say: &Say) {
    let temporary = std::env::temp_dir();
    if let (true, Err(error)) = (spools(config), access(&temporary, Access::WRITE_OK)) {
        say.warning(format_args!(
            "requests whose bodies 'fastcgi' or 'proxy' has to store will get a 503: '{}', for temporary files, cannot be written to \
             ({error}); make it, for the user of the server, or set TMPDIR to a folder inside of 'chroot'",
            outside(root, &temporary).display()
        ));
    }
}

/// Opens the PID file, or takes over that of the old process.
fn pid_file(path: &Path, upgrade: &Upgrade) -> Result<PidFile, String> {
    if let Some(descriptor) = arrival::inherited_pid_file(upgrade, path) {
        return Ok(PidFile::inherited(descriptor, Some(path.to_owned())));
    }
    PidFile::open(path.to_owned()).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => {
            let id = fs::read_to_string(path).unwrap_or_default();
            format!(
                "another server uses the PID file '{}' (process {}); stop it, or give each server its own 'pid_file'",
                path.display(),
                id.lines().next().unwrap_or("unknown")
            )
        }
        _ => format!("cannot write the PID file '{}': {error} ('pid_file')", path.display()),
    })
}

/// The folder of the program that an upgrade starts, if the configuration names the program.
fn program_folder(config: &Config) -> Option<&Path> {
    config.upgrade.program.as_deref()?.parent()
}

/// Makes keys for session tickets, or inherits those of the process before an upgrade. A file or the shared state
/// replaces them later.
fn new_tickets(is_shared: bool, upgrade: &Upgrade) -> Result<Tickets, String> {
    let tickets = match is_shared {
        true => Tickets::from_keys(&random_keys()),
        false => arrival::inherited_tickets(upgrade).map_or_else(|| Tickets::rotating(TICKET_KEYS_CHANGE), Ok),
    };
    tickets.map_err(|error| format!("cannot make keys of session tickets: {error}"))
}

/// Prepares the state that several machines share. Does not connect to Redis yet.
fn open_shared(settings: &config::Shared, tickets: Option<Tickets>, say: &Say) -> Result<Arc<Shared>, String> {
    let client = settings.server.client()?;
    let seal = settings.key.as_ref().map(|key| CookieKeys::new(&[key])).transpose()?;
    let prefix = settings.prefix.clone();
    Ok(Arc::new(Shared::new(client, prefix, seal, tickets, say.clone())))
}

/// Opens the sockets of an address, or takes those that systemd has opened.
fn open_sockets(
    bind: &Bind,
    setting: &str,
    process: &Process,
    workers: usize,
    sockets: &mut Sockets,
) -> Result<Vec<Listener>, Reason> {
    if let Bind::Systemd(name) = bind {
        let named = sockets.named(name)?.into_iter().map(|socket| match socket {
            Socket::Tcp(listener) => listener.into(),
            Socket::Unix(listener) => listener.into(),
        });
        return Ok(named.collect());
    }
    open_now(bind, setting, process, workers)
}

/// Opens the sockets of an address. `setting` names the user's setting of the address, for messages.
pub fn open_now(bind: &Bind, setting: &str, process: &Process, workers: usize) -> Result<Vec<Listener>, Reason> {
    let opened = match bind {
        Bind::Tcp(address) => Listener::bind(*address, workers),
        Bind::Unix(path) => match process.inside(path) {
            // Root makes no socket, and removes none, behind a link of others. A link that takes the folder's place after this
            // look is followed: the socket keeps the name that it was bound by, so it is bound by its path.
            Some(path) => handed::reach(path.parent().unwrap_or(&path))
                .and_then(|_| Listener::bind_unix(&path))
                .map(|listener| vec![listener]),
            None => Err(io::Error::other("it lies outside of the root folder of this process")),
        },
        Bind::Systemd(_) => Err(io::Error::other(
            "it can be taken over only at start: restart the server",
        )),
    };
    opened.map_err(|error| {
        let what = format!("cannot listen on {bind}: {error}");
        cannot_listen(&io::Error::new(error.kind(), what), bind, setting)
    })
}

/// Whether this process could [open](open_now) an address again that it has open now. It could not with a port below 1024 once it has given
/// up root, or in a folder of others, and never with a socket of systemd, or with a port that the system has chosen.
pub fn may_open_again(bind: &Bind, process: &Process) -> bool {
    match bind {
        bind if bind.has_any_port() => false,
        // The system looks at the rights first, and then finds that the address is taken.
        Bind::Tcp(address) => {
            let bound = std::net::TcpListener::bind(address);
            bound.map_or_else(|error| error.kind() == io::ErrorKind::AddrInUse, |_| true)
        }
        Bind::Unix(path) => {
            let folder = process.inside(path).and_then(|path| Some(path.parent()?.to_owned()));
            folder.is_some_and(|folder| access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok())
        }
        Bind::Systemd(_) => false,
    }
}

impl Process {
    /// The process with all rights that it has at the start.
    fn new(
        origin: &Origin,
        config: &Config,
        workers: usize,
        log: Arc<ErrorLog>,
        upgrade: Upgrade,
    ) -> Result<Process, Reason> {
        let notify = match arrival::inherited_notify(&upgrade) {
            Some(socket) => Notify::over(Arc::new(socket.into())),
            None => Notify::from_env()?,
        };
        Ok(Process {
            root: None,
            made_mode: made_mode(),
            notify,
            say: log.say(),
            certificates: Arc::new(Certificates::new(log.say())),
            tickets: new_tickets(config.shared.is_some(), &upgrade)?,
            log,
            // Both open files of the system, which Landlock and a root folder hide.
            totals: Arc::new(Totals::new(workers)),
            memory: memory::Found::find(
                config.memory,
                upgrade.take(arrival::MEMORY).filter(|_| config.chroot.is_some()),
            ),
            watchdog: Watchdog::default(),
            upgrade,
            pid_file: None,
            confinement: Confinement::of(config),
            executable: arrival::executable(),
            may_execute: program_folder(config).map(Path::to_owned),
            spelling: origin.spelling(),
        })
    }

    /// Takes the keys of session tickets from the file that the configuration names, if it names one.
    fn read_ticket_keys(&mut self, config: &Config) {
        match config.ticket_keys.as_deref().map(Tickets::from_file) {
            Some(Ok(tickets)) => self.tickets = tickets,
            Some(Err(error)) => self.say.error(format_args!(
                "'ticket_keys': {error}; sessions are sealed by keys of this process alone until the next start"
            )),
            None => {}
        }
    }

    /// The name of a configured path inside of this process's root folder. None for a path outside.
    pub fn inside(&self, path: &Path) -> Option<PathBuf> {
        inside(self.root.as_deref(), path)
    }

    /// The socket file of an address at which this process has opened sockets. Its drop removes it.
    pub fn socket_file(&self, bind: &Bind) -> Option<SocketFile> {
        match bind {
            Bind::Unix(path) => SocketFile::of(&self.inside(path)?),
            _ => None,
        }
    }
}

/// The message for a listener that cannot be opened: the failure, and the remedy in `setting`.
pub fn cannot_listen(error: &io::Error, bind: &Bind, setting: &str) -> Reason {
    let text = match (error.kind(), bind) {
        (io::ErrorKind::AddrInUse, _) => {
            format!("{error}; stop the other server, or choose another address ({setting})")
        }
        (io::ErrorKind::PermissionDenied, Bind::Unix(path)) => {
            let folder = path.parent().unwrap_or(path).display();
            format!("{error}; let this user write to the folder '{folder}', or choose another address ({setting})")
        }
        (io::ErrorKind::PermissionDenied, _) => {
            format!("{error}; choose a port above 1023 ({setting}), or start as root")
        }
        (io::ErrorKind::AddrNotAvailable, _) => format!("{error}; choose an address of this machine ({setting})"),
        _ => format!("{error}; choose another address ({setting})"),
    };
    Reason::of(error, text)
}

/// The folders of the system's programs.
const SYSTEM_PROGRAMS: [&str; 3] = ["/bin", "/sbin", "/usr"];

/// Prepares to give up privileges. None if the configuration keeps them all.
fn privileges(
    file: Option<&Path>,
    config: &mut Config,
    state: Option<&Path>,
    replaceable: &mut Replaceable,
) -> Result<Option<Privileges>, String> {
    let (user, group, chroot) = (config.user.clone(), config.group.clone(), config.chroot.clone());
    if user.is_none() && group.is_none() && chroot.is_none() && !config.landlock {
        return Ok(None);
    }
    let (paths, strays) = allowed(file, config, state, replaceable);
    let settings = Settings {
        user,
        group,
        landlock: config.landlock.then_some(paths),
        chroot,
    };
    let prepared = Privileges::prepare(&settings).map_err(|troubles| troubles.join("; "))?;
    match strays.is_empty() {
        true => Ok(Some(prepared)),
        false => Err(strays.join("; ")),
    }
}

/// Makes the folders that the server writes to. Returns the paths that Landlock leaves accessible, and a line for each path that is not
/// inside of the root folder.
fn allowed(
    file: Option<&Path>,
    config: &mut Config,
    state: Option<&Path>,
    replaceable: &mut Replaceable,
) -> (Paths, Vec<String>) {
    let chroot = config.chroot.clone();
    let mut paths = Paths::default();
    let mut strays = Vec::new();
    for (touch, path) in touched(config) {
        if chroot.as_ref().is_some_and(|root| !path.starts_with(root)) {
            strays.push(format!("'{}' is outside of chroot", path.display()));
        }
        match touch {
            Touch::Read => {
                paths.read.push(path.clone());
                replaceable.add(path);
            }
            // A rotated log is created again, so its folder must be writable.
            Touch::Write => paths.write.extend(path.parent().map(Path::to_owned)),
            Touch::Folder => {
                // A Landlock rule needs the folder itself.
                let _ = handed::make_folder(path);
                paths.write.push(path.clone());
            }
            Touch::Connect => {}
        }
    }
    // A certificate outside of the new root folder stays as it was read at the start.
    let contents = config.contents.iter().map(PathBuf::as_path);
    for file in config.certificate_files().chain(config.issuers_files()).chain(contents) {
        paths.read.push(file.to_owned());
        replaceable.add(file);
    }
    // A program that sets DNS records is a script, as a rule, and runs others.
    for program in config.dns_programs() {
        let real = fs::canonicalize(program).ok();
        let named = [Some(program), real.as_deref()].into_iter().flatten();
        paths
            .execute
            .extend(named.map(|path| place_of_program(path).to_owned()));
        paths.execute.extend(SYSTEM_PROGRAMS.map(PathBuf::from));
    }
    if let Some(state) = state {
        if chroot.as_ref().is_some_and(|root| !state.starts_with(root)) {
            strays.push(format!("'{}' is outside of chroot: set 'state'", state.display()));
        }
        // A Landlock rule needs the folder itself.
        let _ = handed::make_folders(state);
        paths.write.push(state.to_owned());
    }
    paths.read.extend(replaceable.folders.iter().cloned());
    // The whole folder is readable, because editors replace a file by another one.
    paths.read.extend(config.includes.iter().cloned());
    paths.read.extend(file.and_then(Path::parent).map(Path::to_owned));
    paths.execute.extend(program_folder(config).map(Path::to_owned));
    // Request bodies are spooled into the temporary folder of the new root folder.
    let root = chroot.as_deref().unwrap_or(Path::new("/"));
    paths.write.push(outside(root, &std::env::temp_dir()));
    (paths, strays)
}

/// The folder of a program, whose files the program may need. It is the program alone if that folder is the system's root folder: a rule
/// for that would make everything readable.
fn place_of_program(program: &Path) -> &Path {
    let folder = program.parent().filter(|folder| folder.parent().is_some());
    folder.unwrap_or(program)
}

/// The parents of the paths that Landlock leaves readable. A Landlock rule belongs to a folder and not to its name. So
/// another folder may take the place of a configured one only if the parent is readable too.
#[derive(Default)]
struct Replaceable {
    folders: Vec<PathBuf>,
    /// Paths directly below the system's root folder. A rule for that would make everything readable.
    pinned: Vec<PathBuf>,
}

impl Replaceable {
    /// Adds what must be readable so that `path` may be replaced: the nearest folder above it that exists, and the one
    /// above the folder that its links lead to.
    fn add(&mut self, path: &Path) {
        let real = fs::canonicalize(path).ok().filter(|real| real != path);
        for path in [Some(path), real.as_deref()].into_iter().flatten() {
            match path.ancestors().skip(1).find(|above| above.is_dir()) {
                Some(above) if above.parent().is_some() => {
                    if !self.folders.iter().any(|known| known == above) {
                        self.folders.push(above.to_owned());
                    }
                }
                _ => self.pinned.push(path.to_owned()),
            }
        }
    }

    /// Logs which further folders are readable, and which paths cannot be replaced.
    fn report(&self, say: &Say) {
        let list = |paths: &[PathBuf]| {
            let quoted = paths.iter().map(|path| format!("'{}'", path.display()));
            quoted.collect::<Vec<_>>().join(", ")
        };
        if !self.folders.is_empty() {
            say.info(format_args!(
                "landlock: what is served may be replaced, so all below {} can be read",
                list(&self.folders)
            ));
        }
        if !self.pinned.is_empty() {
            say.warning(format_args!(
                "landlock: {} is served as it is now, because everything can be read otherwise: restart the server when it is \
                 replaced, or keep it below another folder",
                list(&self.pinned)
            ));
        }
    }
}

/// Whether request bodies may have to be stored in files.
fn spools(config: &Config) -> bool {
    let mut routes = config.sites.iter().flat_map(|site| &site.routes);
    routes.any(|route| route.handler.spools().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use testkit::Folder;

    #[test]
    fn the_remedy_for_a_listener_is_of_its_address() {
        let error = io::Error::from(io::ErrorKind::PermissionDenied);
        for (bind, remedy) in [
            (
                Bind::Unix("/run/x.sock".into()),
                "let this user write to the folder '/run', or choose another address (-l)",
            ),
            (
                Bind::Tcp("127.0.0.1:80".parse().unwrap()),
                "choose a port above 1023 (-l), or start as root",
            ),
        ] {
            assert_eq!(
                cannot_listen(&error, &bind, "-l").to_string(),
                format!("permission denied; {remedy}")
            );
        }
    }

    #[test]
    fn a_program_in_the_root_folder_does_not_open_that_folder() {
        for (program, place) in [
            ("/hook.sh", "/hook.sh"),
            ("/srv/hook.sh", "/srv"),
            ("/a/b/hook.sh", "/a/b"),
        ] {
            assert_eq!(place_of_program(Path::new(program)), Path::new(place));
        }
    }

    #[test]
    fn landlock_leaves_the_folder_above_readable_but_never_everything() {
        let folder = Folder::new();
        folder.write("app/releases/r1/index.html", "");
        let (root, app) = (folder.path().canonicalize().unwrap(), folder.path().join("app"));
        std::os::unix::fs::symlink("releases/r1", app.join("current")).unwrap();
        let of = |path: &Path| {
            let mut replaceable = Replaceable::default();
            replaceable.add(path);
            replaceable
        };
        let here = root.join("app");
        assert_eq!(of(&here.join("current")).folders, [here.clone(), here.join("releases")]);
        // The nearest folder that exists.
        assert_eq!(of(&here.join("later/a/b")).folders, [here]);
        let pinned = of(Path::new("/no-such-folder"));
        assert!(pinned.folders.is_empty());
        assert_eq!(pinned.pinned, [PathBuf::from("/no-such-folder")]);
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&lines);
        let say = Say::new(move |line| log.lock().unwrap().push(line.text.to_string()));
        pinned.report(&say);
        let lines = lines.lock().unwrap();
        assert!(
            lines.len() == 1 && lines[0].contains("'/no-such-folder' is served as it is now"),
            "{lines:?}"
        );
    }
}
