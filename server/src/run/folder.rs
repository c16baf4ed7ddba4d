//! From settings to a running server and to its end: everything that can fail is done before the first byte is served.
//!
//! Called by `main.rs`. Order: the folder, the log, the signals, the runtime, every listener; then one line that says
//! where it is served, and the accepting begins. A signal asks all listeners to drain; a second one ends the process,
//! from a thread of its own, so that it does even when every worker is stuck.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use osier_web::files::{CacheLimits, Files, Options};
use osier_web::{Listening, Router, Server, ShutdownHandle, Timeouts};
use rustix::process::{Resource as Limited, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::Settings;
use crate::config::address::Address;
use crate::log::access::AccessLog;
use crate::policy::headers::Field;
use crate::welcome::Welcome;

/// Memory for small files, over all workers.
const CACHE_BYTES: usize = 64 << 20;
/// Memory for files in encoded form.
const CACHE_COMPRESSED: usize = 64 << 20;
/// Paths remembered by each worker.
const CACHE_ENTRIES: usize = 8192;
/// Large files held open by each worker, at most.
const CACHE_FILES: usize = 512;

/// Serves until a signal ends it.
///
/// # Errors
/// One line for the user, when the server could not be started; nothing has been served then.
pub fn run(settings: Settings) -> Result<(), String> {
    let workers = settings
        .workers
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let descriptors = raise_descriptor_limit();
    let log = open_log(&settings)?;
    let content = content(&settings, workers, descriptors)?;
    let mut watched = vec![SIGINT, SIGTERM];
    // Without a file to open anew, a terminal that goes takes the server with it, as users expect.
    if settings.log_file.is_some() {
        watched.push(SIGHUP);
    }
    let signals = Signals::new(watched).map_err(|error| format!("cannot watch for signals: {error}"))?;
    let runtime = osier::Runtime::builder().workers(workers).name("osier").build();
    let runtime = runtime.map_err(|error| format!("cannot start {workers} workers: {error}; try fewer with -w"))?;
    let cut = runtime.run(|| -> Result<usize, String> {
        let listening = listen(&settings, &content, log.as_ref())?;
        announce(&settings, &listening);
        let handles = listening.iter().map(Listening::handle).collect();
        watch(signals, handles, content.welcome().cloned(), log.clone())
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        let fibers: Vec<_> = listening
            .into_iter()
            .map(|listening| osier::spawn(move || listening.run()))
            .collect();
        Ok(fibers.into_iter().map(|fiber| fiber.join().unwrap_or(0)).sum())
    });
    drop(runtime);
    if let Some(log) = log {
        // Not left to Drop: a fiber that would not end may still hold it.
        log.finish();
    }
    let cut = cut?;
    if cut > 0 {
        eprintln!(
            "osier: {cut} connections were cut, still busy after {} s (--drain)",
            settings.drain.as_secs()
        );
    }
    Ok(())
}

/// What is served.
enum Content {
    Folder(Files),
    Welcome(Arc<Welcome>),
}

impl Content {
    fn router(&self) -> Router {
        match self {
            Content::Folder(files) => Router::new().fallback(files.clone().handler()),
            Content::Welcome(welcome) => welcome.router(),
        }
    }

    fn welcome(&self) -> Option<&Arc<Welcome>> {
        match self {
            Content::Folder(_) => None,
            Content::Welcome(welcome) => Some(welcome),
        }
    }
}

/// Opens what is to be served.
fn content(settings: &Settings, workers: usize, descriptors: u64) -> Result<Content, String> {
    let headers = settings.headers.iter().cloned();
    let headers: Vec<_> = headers.map(|Field { name, value }| (name, value)).collect();
    let Some(folder) = &settings.folder else {
        let welcome = Welcome::new(headers, settings.live_for_all, workers, Arc::default());
        let welcome = welcome.map_err(|error| format!("cannot serve the welcome site: {error}"))?;
        return Ok(Content::Welcome(Arc::new(welcome)));
    };
    let cache = CacheLimits {
        entries: CACHE_ENTRIES * workers,
        bytes: CACHE_BYTES,
        compressed: CACHE_COMPRESSED,
        files: (CACHE_FILES * workers).min(usize::try_from(descriptors).unwrap_or(usize::MAX) / 4),
    };
    let options = Options {
        spa: settings.spa,
        listing: settings.listing,
        headers,
        cache,
        ..Options::default()
    };
    Files::with(folder, options).map(Content::Folder).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "there is no such folder".into(),
            io::ErrorKind::NotADirectory => "it is not a folder; name the one it lies in".into(),
            io::ErrorKind::PermissionDenied => "this user may not read it".into(),
            _ => error.to_string(),
        };
        format!("cannot serve '{}': {why}", folder.display())
    })
}

/// As many descriptors as the system lets us have: connections need one each. Returns how many that are.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Limited::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let now = if setrlimit(Limited::Nofile, raised).is_ok() {
        raised
    } else {
        limit
    };
    now.current.unwrap_or(u64::MAX)
}

fn open_log(settings: &Settings) -> Result<Option<Arc<AccessLog>>, String> {
    let log = match &settings.log_file {
        None => AccessLog::start(settings.log, Box::new(io::stderr()))
            .map_err(|error| format!("cannot start a thread: {error}")),
        Some(path) => AccessLog::start_file(settings.log, path)
            .map_err(|error| format!("cannot write the access log '{}': {error}", path.display())),
    };
    Ok(log?.map(Arc::new))
}

/// Binds every address, or none.
fn listen(settings: &Settings, content: &Content, log: Option<&Arc<AccessLog>>) -> Result<Vec<Listening>, String> {
    let timeouts = Timeouts {
        drain: settings.drain,
        ..Timeouts::default()
    };
    let each = settings.listen.iter().map(|&Address(address)| {
        let mut server = Server::new(content.router())
            .timeouts(timeouts)
            .on_log(|line| eprintln!("osier: {line}"));
        let (log, welcome) = (log.cloned(), content.welcome().cloned());
        if log.is_some() || welcome.is_some() {
            server = server.on_request(move |served| {
                if let Some(welcome) = &welcome {
                    welcome.record(served);
                }
                if let Some(log) = &log {
                    log.record_served(served);
                }
            });
        }
        let listening = server.bind(address).map_err(|error| {
            let remedy = match error.kind() {
                io::ErrorKind::AddrInUse => "stop the other server, or choose another address with -l",
                io::ErrorKind::PermissionDenied => "choose a port above 1023 with -l",
                io::ErrorKind::AddrNotAvailable => "choose an address of this machine with -l",
                _ => "choose another address with -l",
            };
            format!("{error}; {remedy}")
        })?;
        if let Some(welcome) = content.welcome() {
            welcome.watch(&listening);
        }
        Ok(listening)
    });
    each.collect()
}

/// The one line that says where to look. Nobody may be reading it.
fn announce(settings: &Settings, listening: &[Listening]) {
    let what = match &settings.folder {
        Some(folder) => format!("'{}'", folder.display()),
        None => "the welcome site".into(),
    };
    let addresses: Vec<String> = listening
        .iter()
        .map(|one| format!("http://{}/", one.local_addr()))
        .collect();
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "osier: serving {what} on {}", addresses.join(" and ")).and_then(|()| out.flush());
}

/// SIGHUP opens the log anew. Of the others, the first drains, the second ends.
fn watch(
    mut signals: Signals,
    handles: Vec<ShutdownHandle>,
    welcome: Option<Arc<Welcome>>,
    log: Option<Arc<AccessLog>>,
) -> io::Result<()> {
    let watcher = move || {
        let mut asked = false;
        for signal in signals.forever() {
            if signal == SIGHUP {
                if let Some(Err(error)) = log.as_ref().map(|log| log.reopen()) {
                    eprintln!("osier: the access log cannot be opened anew: {error}; it goes on in the old file");
                }
                continue;
            }
            if asked {
                std::process::exit(128 + signal);
            }
            asked = true;
            if let Some(welcome) = &welcome {
                welcome.stop();
            }
            handles.iter().for_each(ShutdownHandle::shutdown);
        }
    };
    thread::Builder::new()
        .name("osier-signals".into())
        .spawn(watcher)
        .map(drop)
}
