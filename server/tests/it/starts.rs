//! The three ways to start: a configuration file, a folder, no argument. Signals, logs, metrics and paths work the same in each.

use std::fs::{self, File};
use std::net::SocketAddr;

use crate::support::sites::wait_for;
use crate::support::{Client, Folder, Reply, Server, Signal, osier};

/// How a server was started.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    File,
    Folder,
    Welcome,
}

const STARTS: [Start; 3] = [Start::File, Start::Folder, Start::Welcome];

/// A server with an access log and an `[admin]` listener.
struct Started {
    server: Server,
    folder: Folder,
}

impl Started {
    fn new(start: Start) -> Started {
        let folder = Folder::new();
        folder.write("www/index.html", "the index");
        folder.write("www/sub/a.txt", "a");
        folder.write(
            "site.toml",
            "workers = 2\nlog = { file = \"access.log\" }\n[admin]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n\
             [[site]]\n[[site.route]]\nfiles = \"www\"\n",
        );
        let mut command = osier();
        command.current_dir(folder.path());
        command.stderr(File::create(folder.join("stderr")).unwrap());
        match start {
            Start::File => _ = command.arg("site.toml"),
            Start::Folder => _ = command.arg("www"),
            Start::Welcome => {}
        }
        if start != Start::File {
            command.args([
                "-l",
                "127.0.0.1:0",
                "-w",
                "2",
                "--log-file",
                "access.log",
                "--admin",
                "127.0.0.1:0",
            ]);
        }
        let server = Server::spawn(command);
        Started { server, folder }
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.join("stderr")).unwrap()
    }

    /// Sends SIGHUP; what the server says of it.
    fn hang_up(&self) -> String {
        let before = self.said().len();
        self.server.signal(Signal::HUP);
        let said = || self.said()[before..].to_string();
        wait_for("the reload", || {
            said().contains("osier: reloaded ") || said().contains("the old configuration stays")
        });
        said()
    }

    fn admin(&self) -> SocketAddr {
        let said = self.said();
        let address = said.split("/health, /metrics and /fibers are on ").nth(1);
        address
            .unwrap_or_else(|| panic!("no line of [admin] in {said}"))
            .lines()
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }
}

fn get(client: &mut Client, target: &str) -> Reply {
    client.send("GET", target, &[]);
    client.receive("GET")
}

#[test]
fn sighup_leaves_every_connection_alone() {
    for start in STARTS {
        let mut started = Started::new(start);
        let mut client = started.server.connect();
        assert_eq!(get(&mut client, "/").status, 200, "{start:?}");
        let said = started.hang_up();
        assert!(said.contains("osier: reloaded "), "{start:?}: {said}");
        assert_eq!(get(&mut client, "/").status, 200, "{start:?}");
        started.server.signal(Signal::TERM);
        assert_eq!(started.server.wait().code(), Some(0), "{start:?}");
    }
}

#[test]
fn sighup_opens_a_renamed_log_anew() {
    for start in STARTS {
        let mut started = Started::new(start);
        let (log, old) = (started.folder.join("access.log"), started.folder.join("old.log"));
        let mut client = started.server.connect();
        get(&mut client, "/?before");
        fs::rename(&log, &old).unwrap();
        started.hang_up();
        get(&mut client, "/?after");
        started.server.signal(Signal::TERM);
        assert_eq!(started.server.wait().code(), Some(0), "{start:?}");
        let (old, new) = (fs::read_to_string(old).unwrap(), fs::read_to_string(log).unwrap());
        assert_eq!(
            format!("{old}{new}").matches("?before").count(),
            1,
            "{start:?}: {old}|{new}"
        );
        assert!(
            !old.contains("?after") && new.contains("?after"),
            "{start:?}: {old}|{new}"
        );
    }
}

#[test]
fn metrics_count_the_requests() {
    for start in STARTS {
        let started = Started::new(start);
        let mut client = started.server.connect();
        for _ in 0..3 {
            assert_eq!(get(&mut client, "/").status, 200, "{start:?}");
        }
        let mut admin = Client::new(started.admin());
        assert_eq!(get(&mut admin, "/health").text(), "ok\n", "{start:?}");
        let page = get(&mut admin, "/metrics");
        let line = "osier_http_requests_total{site=\"default\",route=\"/\",code=\"200\"} 3";
        assert!(
            page.text().lines().any(|known| known == line),
            "{start:?}: {}",
            page.text()
        );
        assert_eq!(
            get(&mut client, "/metrics").status,
            404,
            "{start:?}: not on a listener of sites"
        );
    }
}

#[test]
fn a_dot_segment_is_refused_whatever_the_start() {
    for start in STARTS {
        let started = Started::new(start);
        let mut client = started.server.connect();
        for target in ["/sub/../", "/./", "/%2e%2e/", "/sub/%2E/", "/sub%2f..%2f"] {
            let reply = get(&mut client, target);
            assert_eq!(
                (reply.status, reply.text()),
                (400, "400 Bad Request\n"),
                "{start:?} {target}"
            );
        }
    }
}

#[test]
fn sighup_takes_a_folder_that_is_in_the_place_of_the_old_one() {
    for start in [Start::File, Start::Folder] {
        let started = Started::new(start);
        let mut client = started.server.connect();
        assert_eq!(get(&mut client, "/").text(), "the index", "{start:?}");
        let www = started.folder.join("www");
        fs::rename(&www, started.folder.join("before")).unwrap();
        let said = started.hang_up();
        assert!(said.contains("osier: reloaded "), "{start:?}: {said}");
        assert!(said.contains("www'"), "{start:?}: {said}");
        assert!(said.contains("requests get 503 until it is there"), "{start:?}: {said}");
        assert_eq!(get(&mut client, "/").status, 503, "{start:?}");
        started.folder.write("www/index.html", "another index");
        let said = started.hang_up();
        assert!(said.contains("osier: reloaded "), "{start:?}: {said}");
        assert_eq!(get(&mut client, "/").text(), "another index", "{start:?}");
    }
}
