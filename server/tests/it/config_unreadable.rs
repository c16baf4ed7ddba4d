//! A folder or a file that the user of the server may not use: only its routes wait, and the log and `check` say so.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::thread::CapabilitySet;

use crate::support::sites::{Sites, wait_for};
use crate::support::{Folder, lock, osier};

/// The number of a user without rights.
const NOBODY: u32 = 65534;
/// The hash of "sesame".
const HASH: &str = "$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW";
/// `ada:sesame`
const ADA: &str = "Authorization: Basic YWRhOnNlc2FtZQ==";

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

/// The permissions bind the user of the server, not the root who checks the file.
#[test]
fn check_knows_what_the_user_of_the_server_may_not_read() {
    if !is_root() {
        return testkit::skip("only root can become another user");
    }
    let folder = open_folder();
    folder.write("priv/index.html", "private");
    folder.write("users", format!("ada:{HASH}\n"));
    let site = "[[site]]\ndefault = true\n";
    let locked = "[[site.route]]\npath = \"/in\"\nauth = { file = \"users\" }\nrespond = \"in\"\n";
    let routes = FOLDERS.replace(site, &format!("{site}{locked}"));
    let check = |user: &str, arguments: &[&str]| {
        folder.write("site.toml", format!("{user}landlock = false\n{routes}"));
        let mut command = osier();
        command
            .args(["check", "site.toml"])
            .args(arguments)
            .current_dir(folder.path());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let user = "user = \"nobody\"\n";
    assert_eq!(check(user, &["--strict"]), (Some(0), String::new()));
    lock(&folder.join("priv"));
    lock(&folder.join("users"));
    let here = folder.path().display();
    let lines = format!(
        "site.toml: warning: the user 'nobody' may not read '{here}/users'; let it read the file and enter the folders above it\n\
         site.toml: warning: the user 'nobody' may not read '{here}/priv'; requests get 503 until it may\n"
    );
    assert_eq!(check(user, &[]), (Some(0), lines));
    assert_eq!(check(user, &["--strict"]).0, Some(2));
    assert_eq!(check("", &["--strict"]), (Some(0), String::new()));
    lock(folder.path());
    let (_, said) = check(user, &[]);
    let reload = "site.toml: warning: the user 'nobody' may not read 'site.toml'; a reload fails\n";
    assert!(said.contains(reload) && said.lines().count() == 4, "{said}");
}

#[test]
fn check_knows_a_program_that_the_user_of_the_server_may_not_start() {
    if !is_root() {
        return testkit::skip("only root can become another user");
    }
    let folder = open_folder();
    let program = folder.write("program", "");
    let check = |mode: u32| {
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        let site = "[[site]]\n[[site.route]]\nfiles = \"www\"\n";
        folder.write(
            "site.toml",
            format!("user = \"nobody\"\nupgrade = {{ program = \"program\" }}\n{site}"),
        );
        let output = osier()
            .args(["check", "site.toml"])
            .current_dir(folder.path())
            .output()
            .unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(check(0o755), "");
    let line = "the user 'nobody' may not start '";
    let said = check(0o700);
    assert!(
        said.contains(line) && said.ends_with("/program'; an upgrade is refused until it may\n"),
        "{said}"
    );
}

#[test]
fn a_reload_takes_effect_although_a_removed_socket_file_cannot_be_made_again() {
    let folder = open_folder();
    fs::create_dir(folder.join("run")).unwrap();
    fs::set_permissions(folder.join("run"), Permissions::from_mode(0o777)).unwrap();
    let file = |answer: &str| {
        format!(
            "[[listen]]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"unix:run/o.sock\"\n\
             [[site]]\ndefault = true\n[[site.route]]\nrespond = \"{answer}\"\n"
        )
    };
    let sites = Sites::start_with(folder, &file("old"), without_rights);
    let [run, socket] = ["run", "run/o.sock"].map(|name| sites.folder.join(name));
    fs::set_permissions(&run, Permissions::from_mode(0o555)).unwrap();
    if !is_root() {
        return testkit::skip("only root can remove a file whose folder refuses it to the server");
    }
    fs::remove_file(&socket).unwrap();
    let said = sites.reload(&file("new"));
    let line = "run/o.sock has been removed, and no client finds it: cannot listen on unix:";
    assert!(said.contains(line) && said.contains("osier: reloaded "), "{said}");
    assert_eq!(sites.get("x", "/").text().trim(), "new");
    fs::set_permissions(&run, Permissions::from_mode(0o777)).unwrap();
    assert!(
        sites.hang_up().contains("had been removed: it is made again"),
        "{}",
        sites.said()
    );
    assert!(socket.exists());
}

/// Root in a container without this capability may not change to another user.
#[test]
fn check_says_that_it_could_not_look_as_the_user_of_the_server() {
    if !is_root() {
        return testkit::skip("only root can give up a capability of its children");
    }
    let folder = open_folder();
    folder.write("site.toml", format!("user = \"nobody\"\nlandlock = false\n{FOLDERS}"));
    folder.write("priv/index.html", "private");
    let check = |arguments: &[&str]| {
        let mut command = osier();
        command
            .args(["check", "site.toml"])
            .args(arguments)
            .current_dir(folder.path());
        // The bounding set belongs to the thread, and its children inherit it.
        let output = std::thread::scope(|scope| {
            let run = || {
                rustix::thread::remove_capability_from_bounding_set(CapabilitySet::SETUID).unwrap();
                command.output().unwrap()
            };
            scope.spawn(run).join().unwrap()
        });
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let line = "site.toml: warning: cannot check what the user 'nobody' may read: this process may not change to that user \
                (Operation not permitted (os error 1)); give it CAP_SETUID and CAP_SETGID\n";
    assert_eq!(check(&[]), (Some(0), line.into()));
    assert_eq!(check(&["--strict"]), (Some(2), line.into()));
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing_and_is_tried_again() {
    let folder = open_folder();
    fs::create_dir(folder.join("logs")).unwrap();
    fs::set_permissions(folder.join("logs"), Permissions::from_mode(0o555)).unwrap();
    let file = "error_log = { file = \"logs/e.log\" }\nlog = { file = \"logs/a.log\" }\n\
                [[site]]\n[[site.route]]\nfiles = \"www\"\n";
    let (status, said) = check(&folder, file);
    assert_eq!(status, Some(0), "{said}");
    for place in ["1:22", "2:16"] {
        let warning = format!("checked.toml:{place}: warning: this user may not write to '");
        assert!(said.contains(&warning), "{said}");
    }
    let sites = Sites::start_with(folder, file, without_rights);
    let said = sites.said();
    assert!(
        said.contains("cannot open the access log '") && said.contains("cannot open the error log"),
        "{said}"
    );
    assert_eq!(sites.get("x", "/a.txt").status, 200);
    fs::set_permissions(sites.folder.join("logs"), Permissions::from_mode(0o777)).unwrap();
    wait_for("the line", || {
        fs::read_to_string(sites.folder.join("logs/a.log")).is_ok_and(|lines| lines.contains("GET /a.txt"))
    });
}

#[test]
fn check_knows_a_pid_file_that_cannot_be_written() {
    let folder = open_folder();
    fs::create_dir(folder.join("locked")).unwrap();
    fs::set_permissions(folder.join("locked"), Permissions::from_mode(0o555)).unwrap();
    let site = "[[site]]\n[[site.route]]\nfiles = \"www\"\n";
    for (file, expected, text) in [
        (
            "/no-such-folder/pid",
            0,
            "1:12: warning: there is no folder '/no-such-folder'; the server does not start unless",
        ),
        (
            "locked/pid",
            0,
            "/locked/pid'; the server does not start unless it can write this file",
        ),
        ("www", 2, "/www' is a folder; 'pid_file' must be a file"),
    ] {
        let (status, said) = check(&folder, &format!("pid_file = \"{file}\"\n{site}"));
        assert!(status == Some(expected) && said.contains(text), "{file}: {said}");
    }
}

#[test]
fn a_bad_line_of_a_password_file_shuts_out_only_its_user() {
    let folder = Sites::folder();
    folder.write("users", format!("ada:{HASH}\nbob\nada:x\n"));
    let file = "[[site]]\ndefault = true\n[[site.route]]\npath = \"/in\"\nauth = { file = \"users\" }\nrespond = \"in\"\n\
                [[site.route]]\nfiles = \"www\"\n";
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let line = "users', line 2: there is no colon; a line is user:hash; the other lines hold";
    let (status, said) = check(&folder, file);
    assert!(status == Some(0) && said.contains(line), "{said}");
    let sites = Sites::start_in(folder, file);
    assert!(sites.said().contains(line), "{}", sites.said());
    let ask = |fields: &[&str]| sites.ask("GET", "x", "/in", fields).status;
    assert_eq!((ask(&[]), ask(&[ADA])), (401, 200));
    assert_eq!(sites.get("x", "/a.txt").status, 200);
}

#[test]
fn a_password_file_that_is_no_text_shuts_out_everybody_and_stops_nothing_else() {
    let folder = Sites::folder();
    folder.write("users", b"ada:\xff\n");
    let file = "[[site]]\ndefault = true\n[[site.route]]\npath = \"/in\"\nauth = { file = \"users\" }\nrespond = \"in\"\n\
                [[site.route]]\nfiles = \"www\"\n";
    let sites = Sites::start_in(folder, file);
    let line = "users': it is not UTF-8; requests get 503 until it can be read";
    assert!(sites.said().contains(line), "{}", sites.said());
    let ask = |path| sites.ask("GET", "x", path, &[ADA]).status;
    assert_eq!((ask("/in"), ask("/a.txt")), (503, 200));
    fs::write(sites.folder.join("users"), format!("ada:{HASH}\n")).unwrap();
    wait_for("the password file", || ask("/in") == 200);
}

#[test]
fn an_unreadable_file_stops_only_its_route() {
    let folder = open_folder();
    folder.write("users", format!("ada:{HASH}\n"));
    folder.write(
        "keys.json",
        "{\"kty\":\"oct\",\"k\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}",
    );
    folder.write("down.html", "down");
    let file = "[[site]]\ndefault = true\nerror_pages = { 404 = \"404.html\" }\n\
                [[site.route]]\npath = \"/in\"\nauth = { file = \"users\" }\nrespond = \"in\"\n\
                [[site.route]]\npath = \"/api\"\njwt = { keys = \"keys.json\" }\nrespond = \"api\"\n\
                [[site.route]]\npath = \"/down\"\nrespond = { file = \"down.html\" }\n\
                [[site.route]]\nfiles = \"www\"\n";
    let files = ["users", "keys.json", "down.html", "404.html"];
    for file in files {
        lock(&folder.join(file));
    }
    let (status, said) = check(&folder, file);
    assert_eq!(status, Some(0), "{said}");
    for file in files {
        assert!(said.contains(&format!("/{file}'")), "{file}: {said}");
    }
    assert_eq!(said.matches("warning: ").count(), 4, "{said}");
    assert_eq!(
        said.matches("warning: this user may not read the file '").count(),
        4,
        "{said}"
    );
    let sites = Sites::start_with(folder, file, without_rights);
    let ask = |path: &str| sites.ask("GET", "x", path, &[ADA]).status;
    let all = || ["/in", "/api", "/down", "/none", "/a.txt"].map(ask);
    assert_eq!(all(), [503, 503, 503, 404, 200]);
    assert!(sites.hang_up().contains("osier: reloaded "));
    assert_eq!(all(), [503, 503, 503, 404, 200]);
    for file in files {
        fs::set_permissions(sites.folder.join(file), Permissions::from_mode(0o644)).unwrap();
    }
    wait_for("the passwords and the keys", || (ask("/in"), ask("/api")) == (200, 401));
    assert!(sites.hang_up().contains("osier: reloaded "));
    assert_eq!(all(), [200, 401, 200, 404, 200]);
    assert_eq!(sites.get("x", "/none").text(), "<h1>lost</h1>");
}

/// As while no reload comes.
#[test]
fn a_reload_keeps_the_passwords_that_the_server_may_no_longer_read() {
    let folder = open_folder();
    folder.write("users", format!("ada:{HASH}\n"));
    let file = "[[site]]\ndefault = true\n\
                [[site.route]]\npath = \"/in\"\nauth = { file = \"users\" }\nrespond = \"in\"\n\
                [[site.route]]\npath = \"/more\"\nrespond = \"@\"\n";
    let sites = Sites::start_with(folder, file, without_rights);
    let ask = || sites.ask("GET", "x", "/in", &[ADA]).status;
    assert_eq!(ask(), 200);
    lock(&sites.folder.join("users"));
    let said = sites.reload(&file.replace('@', "new"));
    assert!(
        said.contains("osier: reloaded ") && said.contains("this user may not read the file '"),
        "{said}"
    );
    assert_eq!((ask(), sites.get("x", "/more").text()), (200, "new"));
}
