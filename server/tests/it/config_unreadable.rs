//! A folder or a file that the user of the server may not use: only its routes wait, and the log and `check` say so.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::sites::{Sites, wait_for};
use crate::support::{Folder, lock, osier};

/// The number of a user without rights.
const NOBODY: u32 = 65534;

const FOLDERS: &str = "[[site]]\ndefault = true\n[[site.route]]\npath = \"/priv\"\nfiles = { root = \"priv\", strip = true }\n\
     [[site.route]]\nfiles = \"www\"\n";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Lets a command run as a user whom permissions bind.
fn without_rights(command: &mut Command) {
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
}

/// A folder that everybody may enter.
fn open_folder() -> Folder {
    let folder = Sites::folder();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Runs `osier check` as a user without rights. Returns its status and what it says.
fn check(folder: &Folder, text: &str) -> (Option<i32>, String) {
    fs::write(folder.join("checked.toml"), text).unwrap();
    let mut command = osier();
    command.args(["check", "checked.toml"]).current_dir(folder.path());
    without_rights(&mut command);
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn statuses(sites: &Sites) -> [u16; 2] {
    ["/priv/", "/a.txt"].map(|path| sites.get("x", path).status)
}

#[test]
fn an_unreadable_folder_stops_only_its_route() {
    let folder = open_folder();
    folder.write("priv/index.html", "private");
    lock(&folder.join("priv"));
    let warning = "toml:6:18: warning: this user may not read the folder '";
    let (status, said) = check(&folder, &format!("workers = 2\n{FOLDERS}"));
    assert!(status == Some(0) && said.contains(warning), "{said}");
    let sites = Sites::start_with(folder, &format!("workers = 2\n{FOLDERS}"), without_rights);
    assert!(sites.said().contains(warning), "{}", sites.said());
    assert_eq!(statuses(&sites), [503, 200]);
    // A reload is no worse than a start.
    assert!(sites.hang_up().contains("osier: reloaded "));
    assert_eq!(statuses(&sites), [503, 200]);
    fs::set_permissions(sites.folder.join("priv"), Permissions::from_mode(0o755)).unwrap();
    wait_for("the folder", || sites.get("x", "/priv/").text() == "private");
}

#[test]
fn a_folder_that_only_root_may_read_stops_only_its_route() {
    if !is_root() {
        return testkit::skip("only root can become another user");
    }
    let folder = open_folder();
    folder.write("priv/index.html", "private");
    lock(&folder.join("priv"));
    let sites = Sites::start_in(folder, &format!("user = \"nobody\"\nlandlock = false\n{FOLDERS}"));
    let said = sites.said();
    assert!(
        said.contains("this user may not read the folder '") && said.contains("/priv'; requests get 503"),
        "{said}"
    );
    assert_eq!(statuses(&sites), [503, 200]);
}
