//! Tests of users and groups, refusals, and, in child processes, what remains after privileges are given up.

use super::*;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::process::Command;
use testkit::Folder;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nwww:x:33:34:www:/var/www:/bin/false\nbroken\n";
const GROUP: &str = "root:x:0:\nwww:x:34:\nlogs:x:4:syslog,www\ncerts:x:110:www\nother:x:111:wwwx\n";

fn wanted(user: Option<&str>, group: Option<&str>) -> Settings {
    Settings {
        user: user.map(String::from),
        group: group.map(String::from),
        ..Settings::default()
    }
}

#[test]
fn names_and_numbers_become_ids() {
    let found = |user, group| identity(&wanted(user, group), PASSWD, GROUP);
    let ids = |user, group| {
        found(user, group)
            .unwrap()
            .map(|identity| (identity.user, identity.group, identity.groups))
    };
    assert_eq!(ids(None, None), None);
    assert_eq!(ids(Some("www"), None), Some((33, 34, vec![4, 110])));
    assert_eq!(ids(Some("33"), None), Some((33, 34, vec![4, 110])));
    assert_eq!(ids(Some("www"), Some("certs")), Some((33, 110, vec![4])));
    assert_eq!(ids(Some("www"), Some("7")), Some((33, 7, vec![4, 110])));
    assert_eq!(ids(Some("5000"), Some("www")), Some((5000, 34, vec![])));
    assert_eq!(
        found(Some("www"), None).unwrap().unwrap().text,
        "www, user 33, group 34, and 2 more groups"
    );
    for (user, group, key, expected) in [
        (
            Some("nobody"),
            None,
            "user",
            "user = \"nobody\": /etc/passwd has no such user",
        ),
        (Some("5000"), None, "user", "give its group too"),
        (
            Some("www"),
            Some("none"),
            "group",
            "group = \"none\": /etc/group has no such group",
        ),
        (None, Some("www"), "group", "group needs user"),
        (Some("-1"), Some("0"), "user", "no such user"),
    ] {
        let wrong = found(user, group).unwrap_err();
        assert!(wrong.key == key && wrong.why.contains(expected), "{wrong:?}");
    }
}

#[test]
fn what_cannot_be_is_said_before_anything_changes() {
    let mut settings = wanted(Some("no such user"), None);
    settings.chroot = Some("/no/such/folder".into());
    let troubles = Privileges::prepare(&settings).err().unwrap().join("\n");
    assert!(
        troubles.contains("no such user") && troubles.contains("no such folder"),
        "{troubles}"
    );
    settings = wanted(None, None);
    settings.chroot = Some("/".into());
    let troubles = Privileges::prepare(&settings).err().unwrap().join("\n");
    assert!(troubles.contains("chroot needs user"), "{troubles}");
}

#[test]
fn a_process_with_threads_is_refused() {
    std::thread::scope(|scope| {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || held.recv());
        let refused = Privileges::prepare(&Settings::default())
            .ok()
            .unwrap()
            .give_up()
            .unwrap_err();
        assert!(refused.contains("one thread"), "{refused}");
        drop(hold);
    });
}

/// Runs [`child`] in a separate process and returns its output.
fn in_a_child(folder: &Folder, chroot: bool) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give privileges up");
        return None;
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder.write("site/page", "page");
    folder.write("other/page", "other");
    folder.write("other/hook", "#!/bin/sh\n");
    fs::set_permissions(folder.path().join("other/hook"), fs::Permissions::from_mode(0o755)).unwrap();
    folder.write("logs/log", "");
    folder.write("run/manager/resolv.conf", "nameserver");
    fs::create_dir(folder.join("etc")).unwrap();
    symlink("/run/manager/resolv.conf", folder.join("etc/resolv.conf")).unwrap();
    // Its owner has left a link where the server is to write.
    fs::create_dir(folder.join("theirs")).unwrap();
    chown(folder.join("theirs"), Some(65534), Some(65534)).unwrap();
    symlink("../other", folder.join("theirs/link")).unwrap();
    lchown(folder.join("theirs/link"), Some(65534), Some(65534)).unwrap();
    fs::set_permissions(folder.path().join("other"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(folder.path().join("logs"), fs::Permissions::from_mode(0o777)).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "process::privileges::tests::child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("OSIER_PRIVILEGES", folder.path())
        .env("OSIER_CHROOT", if chroot { "1" } else { "" })
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(said)
}

#[test]
#[ignore = "the child process of other tests: cargo test -p osier-server --bin osier process::privileges"]
fn child() {
    let folder = PathBuf::from(std::env::var_os("OSIER_PRIVILEGES").unwrap());
    let chroot = std::env::var("OSIER_CHROOT").unwrap() == "1";
    // The file was opened before, so it stays open.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = Settings {
        user: Some("65534".into()),
        group: Some("65534".into()),
        chroot: chroot.then(|| folder.clone()),
        landlock: Some(Paths {
            read: vec![folder.join("site"), folder.join("missing")],
            write: vec![folder.join("logs"), folder.join("theirs/link")],
            // The file alone, as for a program in the system's root folder.
            execute: vec![folder.join("other/hook"), "/bin".into()],
        }),
    };
    for line in Privileges::prepare(&settings).ok().unwrap().give_up_here().unwrap() {
        println!("said: {line}");
    }
    let root = if chroot { PathBuf::from("/") } else { folder };
    // A thread that starts now has no more rights than the first.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            println!("uid: {}", rustix::process::getuid().as_raw());
            println!("root again: {}", thread::set_thread_uid(Uid::ROOT).is_ok());
            println!("shadow: {}", fs::read("/etc/shadow").is_ok());
            println!("passwd: {}", fs::read("/etc/passwd").is_ok());
            println!("resolver: {}", fs::read(root.join("etc/resolv.conf")).is_ok());
            println!("cgroups: {}", fs::read_dir("/sys/fs/cgroup").is_ok());
            println!("site: {}", fs::read(root.join("site/page")).is_ok());
            println!("read other: {}", fs::read(root.join("other/page")).is_ok());
            println!("program: {}", Command::new(root.join("other/hook")).status().is_ok());
            println!("write other: {}", fs::write(root.join("other/new"), "x").is_ok());
            println!("write log: {}", fs::write(root.join("logs/new"), "x").is_ok());
            println!("write site: {}", fs::write(root.join("site/new"), "x").is_ok());
            println!("write to nowhere: {}", fs::write("/dev/null", "x").is_ok());
            println!(
                "connect: {}",
                std::net::TcpStream::connect(listener.local_addr().unwrap()).is_ok()
            );
            println!("accept: {}", listener.accept().is_ok());
        });
    });
}

#[test]
fn what_is_given_up_does_not_come_back() {
    let folder = Folder::new();
    let Some(said) = in_a_child(&folder, false) else {
        return;
    };
    let expect = |line: &str| assert!(said.lines().any(|known| known.ends_with(line)), "{line}\n{said}");
    expect("uid: 65534");
    expect("root again: false");
    expect("shadow: false");
    expect("passwd: true");
    expect(&format!("cgroups: {}", Path::new("/sys/fs/cgroup").is_dir()));
    expect("site: true");
    expect("program: true");
    expect("write log: true");
    expect("write site: false");
    expect("write to nowhere: true");
    expect("connect: true");
    expect("accept: true");
    let landlock = said
        .lines()
        .find_map(|line| line.strip_prefix("said: landlock: "))
        .unwrap();
    if landlock.ends_with("full") || landlock.ends_with("partial") {
        expect("read other: false");
        expect("write other: false");
        expect("remove it, or name its target");
    } else {
        println!("skipped: landlock is {landlock}");
        expect("read other: true");
    }
}

#[test]
fn outside_of_the_root_folder_there_is_nothing() {
    let folder = Folder::new();
    let Some(said) = in_a_child(&folder, true) else { return };
    let expect = |line: &str| assert!(said.lines().any(|known| known.ends_with(line)), "{line}\n{said}");
    expect(&format!("said: the root folder is '{}'", folder.path().display()));
    expect("uid: 65534");
    expect("root again: false");
    expect("passwd: false");
    expect("resolver: true");
    expect("site: true");
    expect("write log: true");
    expect("connect: true");
    expect("accept: true");
}

#[test]
fn the_folder_behind_a_link_is_named_but_none_that_everybody_shares() {
    let folder = Folder::new();
    let root = folder.path().canonicalize().unwrap();
    folder.write("run/manager/resolv.conf", "");
    folder.write("etc/plain", "");
    let link = |target: &str| {
        let link = root.join("etc/link");
        let _ = fs::remove_file(&link);
        symlink(target, &link).unwrap();
        behind_link(&link)
    };
    assert_eq!(link("../run/manager/resolv.conf"), Some(root.join("run/manager")));
    assert_eq!(behind_link(&root.join("etc/plain")), None);
    // The program that makes the file has not begun yet.
    assert_eq!(link("../run/manager/later"), Some(root.join("run/manager")));
    assert_eq!(link("/no such folder/below/file"), None);
    assert_eq!(link("/no such file"), Some("/no such file".into()));
    assert_eq!(link("/etc/../tmp/no such file"), Some("/tmp/no such file".into()));
}
