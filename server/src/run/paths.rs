//! The paths that a configuration names, by what happens to them: which are read, written or given to the user of the
//! server, their names inside of a new root folder, and those that this process may not read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::config::{Config, Policies, Setting};
use crate::handler::upstream::socket_of;
use crate::handler::{Touch, cannot_serve};
use crate::log::operator::Say;
use crate::log::settings::To;
use crate::process::root::{inside, outside};
use crate::process::{handed, privileges};
use crate::reader::{Reason, is_refused};

/// Every path of the configuration that is used after the start, except those of listeners.
pub fn touched(config: &mut Config) -> Vec<(Touch, &mut PathBuf)> {
    let mut paths = Vec::new();
    add_log_path(&mut config.log.to, &mut paths);
    add_log_path(&mut config.error_log.to, &mut paths);
    paths.extend(config.ticket_keys.as_mut().map(|file| (Touch::Read, file)));
    paths.extend(config.shared.as_mut().and_then(|shared| shared.server.socket()));
    for site in &mut config.sites {
        paths.extend(site.error_pages.iter_mut().map(|(_, page)| (Touch::Read, page)));
        add_policy_paths(&mut site.policies, &mut paths);
        for route in &mut site.routes {
            add_policy_paths(&mut route.policies, &mut paths);
            paths.extend(route.handler.paths());
        }
    }
    paths
}

fn add_policy_paths<'c>(policies: &'c mut Policies, paths: &mut Vec<(Touch, &'c mut PathBuf)>) {
    if let Setting::On(auth) = &mut policies.auth {
        paths.extend(auth.password_file.as_mut().map(|file| (Touch::Read, file)));
    }
    if let Setting::On(settings) = &mut policies.forward_auth {
        paths.extend(socket_of(&mut settings.to));
    }
    if let Setting::On(settings) = &mut policies.jwt {
        paths.push((Touch::Read, &mut settings.keys));
    }
    if let Setting::On(cache) = &mut policies.cache {
        paths.extend(cache.folder().map(|folder| (Touch::Folder, folder)));
    }
    if let Setting::On(own) = &mut policies.log {
        add_log_path(&mut own.to, paths);
    }
}

fn add_log_path<'c>(to: &'c mut To, paths: &mut Vec<(Touch, &'c mut PathBuf)>) {
    let touch = match to {
        To::File(_) => Touch::Write,
        To::Syslog(_) | To::Stderr => Touch::Connect,
    };
    paths.extend(to.path_mut().map(|path| (touch, path)));
}

/// Creates the logs, and gives them and the folders of caches to a user. Warns of what root must not give away. The errors of the
/// system are ignored: they show when the logs are opened.
pub fn give_files(config: &mut Config, user: u32, group: u32, say: &Say) {
    for (touch, path) in touched(config) {
        let given = match touch {
            Touch::Write => handed::give_file(path, user, group),
            Touch::Folder => handed::give_folder(path, user, group),
            Touch::Read | Touch::Connect => Ok(()),
        };
        warn_of_kept(path, given, say);
    }
}

/// Warns if root has refused to give a file or a folder to the user of the server.
pub fn warn_of_kept(path: &Path, given: io::Result<()>, say: &Say) {
    if let Err(error) = given
        && error.raw_os_error().is_none()
    {
        say.warning(format_args!(
            "'{}' is not given to the user of the server: {error}",
            path.display()
        ));
    }
}

/// Changes every path to its name inside of the new root folder.
pub fn move_inside(config: &mut Config, root: &Path) {
    for route in config.sites.iter_mut().flat_map(|site| &mut site.routes) {
        route.handler.before_chroot();
    }
    let enter = |path: &mut PathBuf| {
        if let Some(inside) = inside(Some(root), path) {
            *path = inside;
        }
    };
    touched(config).into_iter().for_each(|(_, path)| enter(path));
    config.state.iter_mut().for_each(enter);
}

/// Warns about folders that this process cannot read any more. The check of the configuration ran with all privileges.
pub fn report_unreadable(config: &mut Config, root: Option<&Path>, say: &Say) {
    for path in served(config).filter(|path| !path.is_file() && !may_read(path)) {
        let shown = root.map_or_else(|| path.clone(), |root| outside(root, path));
        say.warning(format_args!(
            "this user may not read the folder '{}'; requests get 503 until it may",
            shown.display()
        ));
    }
}

/// Warnings about what the user of the configuration may not read or start, for `osier check`: as root it sees everything. `file`
/// is the configuration.
///
/// # Blocks the thread
/// While the files and folders are looked at.
pub fn unreadable_to_user(config: &mut Config, file: &Path) -> Vec<String> {
    let mut paths: Vec<(PathBuf, &str)> = Vec::new();
    for (touch, path) in touched(config) {
        let meanwhile = match path.is_dir() {
            true => "requests get 503 until it may",
            false => "let it read the file and enter the folders above it",
        };
        paths.extend(matches!(touch, Touch::Read).then(|| (path.clone(), meanwhile)));
    }
    let certificates = config.certificate_files().map(Path::to_owned);
    paths.extend(certificates.map(|path| (path, "a renewed certificate takes effect at the next start")));
    let read_again = config.includes.iter().cloned().chain([file.to_owned()]);
    paths.extend(read_again.map(|path| (path, "a reload fails")));
    let Some(user) = &config.user else { return Vec::new() };
    let program = config.upgrade.program.clone();
    let look = || {
        let refused = paths.into_iter().filter(|(path, _)| match path.is_dir() {
            true => !may_read(path),
            false => is_refused(path, Access::READ_OK),
        });
        let text = |what: &str, path: &Path, then: &str| {
            format!("the user '{user}' may not {what} '{}'; {then}", path.display())
        };
        let program = program.filter(|path| is_refused(path, Access::EXEC_OK));
        let start = program.map(|path| text("start", &path, "an upgrade is refused until it may"));
        let read = refused.map(|(path, then)| text("read", &path, then));
        read.chain(start).collect()
    };
    match privileges::as_user(Some(user), config.group.as_deref(), look) {
        Ok(looked) => looked.unwrap_or_default(),
        Err(why) => vec![format!(
            "cannot check what the user '{user}' may read: this process may not change to that user ({why}); give it \
             CAP_SETUID and CAP_SETGID"
        )],
    }
}

/// The message for the first folder that only Landlock keeps from this process. A change of its permissions would not
/// help.
///
/// # Blocks the thread
/// While the folders are opened.
pub fn denied(config: &mut Config) -> Option<Reason> {
    served(config).find_map(|path| match fs::read_dir(&*path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && may_read(path) => {
            Some(cannot_serve(path, &error))
        }
        _ => None,
    })
}

/// The files and folders that handlers read.
fn served(config: &mut Config) -> impl Iterator<Item = &mut PathBuf> {
    let routes = config.sites.iter_mut().flat_map(|site| &mut site.routes);
    let paths = routes.flat_map(|route| route.handler.paths());
    paths.filter_map(|(touch, path)| matches!(touch, Touch::Read).then_some(path))
}

/// Whether the permissions of a folder let this user read and enter it. True for a folder that does not exist. Landlock
/// is not asked.
fn may_read(folder: &Path) -> bool {
    !is_refused(folder, Access::READ_OK | Access::EXEC_OK)
}
