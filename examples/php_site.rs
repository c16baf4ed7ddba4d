//! A site in PHP: the files and scripts of one folder.
//!
//! ```text
//! cargo run --release -p osier-examples --bin php_site -- [ADDR [FOLDER [BACKEND]]]
//! ```
//!
//! A backend is `host:port` or `unix:/path`. Without one, the program starts a php-fpm of its own. Without a folder it serves
//! `examples/php`.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::Duration;
use std::{env, fs, io};

use osier_web::fastcgi::{self, FastCgi, Options};
use osier_web::files::Files;
use osier_web::{Address, Router};
use rustix::process::{Pid, Signal};

mod start;

/// A php-fpm in a temporary folder of its own. Dropping this ends the process and removes the folder.
struct Fpm {
    child: Child,
    folder: PathBuf,
}

impl Fpm {
    fn start() -> io::Result<Fpm> {
        let program = find().ok_or_else(|| {
            let what = "no php-fpm in PATH or /usr/sbin: install it, or name a backend as the third argument";
            io::Error::new(io::ErrorKind::NotFound, what)
        })?;
        let folder = env::temp_dir().join(format!("osier-php-site-{}", std::process::id()));
        // Other users of the machine may write to the folder above, so one that is there already is not ours.
        let made = fs::DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))?;
        let config = folder.join("fpm.conf");
        let socket = folder.join("fpm.sock");
        let text = format!(
            "[global]\ndaemonize = no\nerror_log = {}\n[www]\nlisten = {}\npm = static\npm.max_children = 4\n",
            folder.join("fpm.log").display(),
            socket.display()
        );
        fs::write(&config, text)?;
        // -R allows root to run it; scripts then run as root too.
        let child = Command::new(program).arg("-R").arg("-y").arg(config).spawn()?;
        let mut fpm = Fpm { child, folder };
        for _ in 0..500 {
            if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
                return Ok(fpm);
            }
            if let Some(status) = fpm.child.try_wait()? {
                let log = fs::read_to_string(fpm.folder.join("fpm.log")).unwrap_or_default();
                return Err(io::Error::other(format!("php-fpm ended, {status}: {}", log.trim())));
            }
            osier::sleep(Duration::from_millis(20));
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "php-fpm does not listen"))
    }

    fn address(&self) -> Address {
        Address::Unix(self.folder.join("fpm.sock"))
    }
}

impl Drop for Fpm {
    fn drop(&mut self) {
        // SIGTERM makes it end its workers first; SIGKILL would leave them running.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Debian's binary has the version in its name.
fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("php-fpm")
        })
}

fn router(folder: &Path, backend: Address) -> io::Result<Router> {
    let files = Files::open(folder)?;
    let options = Options {
        hide: vec!["X-Powered-By".into()],
        ..Options::default()
    };
    let php = fastcgi::upstream("php", [backend]).build()?;
    let scripts = FastCgi::with(folder, php, options)?;
    // Everything that is not a script is served as a file.
    let site = scripts.otherwise(move |request| files.answer(request));
    Ok(Router::new().fallback(site.handler()))
}

fn main() -> ExitCode {
    let mut own = None;
    start::serve("php_site", |args| {
        let default = concat!(env!("CARGO_MANIFEST_DIR"), "/php");
        let folder = args.first().map_or(default, String::as_str);
        let backend = match args.get(1) {
            Some(backend) => backend.parse().map_err(|error| {
                let what = format!("{backend}: {error}");
                io::Error::new(io::ErrorKind::InvalidInput, what)
            })?,
            None => own.insert(Fpm::start()?).address(),
        };
        router(Path::new(folder), backend)
    })
}
