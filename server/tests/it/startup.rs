//! The start and its failures: a failure is one line with the setting, its value and the remedy, the exit status is 2, and nothing
//! is served.

use crate::support::{Client, Folder, Server, lock, osier, urls};
use std::net::TcpListener;
use std::process::{Command, Output};
use testkit::eventually;

fn refused(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{command:?}: {text}");
    assert!(
        stdout.is_empty(),
        "{command:?} printed {:?}",
        String::from_utf8_lossy(&stdout)
    );
    assert_eq!(text.lines().count(), 1, "{command:?}: {text}");
    assert!(text.starts_with("osier: "), "{command:?}: {text}");
    text
}

#[test]
fn mistakes_in_the_line() {
    for (arguments, parts) in [
        (&["--unknown"][..], &["'--unknown'", "--help"][..]),
        (&["a", "b"], &["'b'", "one folder"]),
        (&["-w", "0"], &["'0'", "--workers"]),
        (&["-w", "many"], &["'many'", "--workers"]),
        (&["-l", "nonsense"], &["'nonsense'", "HOST:PORT"]),
        (&["-l", "127.0.0.1:70000"], &["70000"]),
        (&["--header", "no-colon"], &["'no-colon'", "Name: value"]),
        (&["--header", "X: a\r\nY: b"], &["control"]),
        (&["--header", "Content-Length: 5"], &["Content-Length", "cannot be set"]),
        (&["--log", "xml"], &["'xml'"]),
    ] {
        let mut command = osier();
        command.args(arguments);
        let text = refused(command);
        for part in parts {
            assert!(text.contains(part), "{arguments:?}: {part} is missing in {text}");
        }
    }
}

#[test]
fn folders_that_cannot_be_served() {
    let folder = Folder::new();
    let device = std::path::PathBuf::from("/dev/null");
    for (path, part) in [(folder.join("missing"), "no such folder"), (device, "not a folder")] {
        let mut command = osier();
        command.arg(&path).args(["-l", "127.0.0.1:0"]);
        let text = refused(command);
        assert!(text.contains(path.to_str().unwrap()) && text.contains(part), "{text}");
        assert!(
            text.contains("give a folder, or a configuration file; see osier --help"),
            "{text}"
        );
    }
    let locked = folder.join("locked");
    std::fs::create_dir(&locked).unwrap();
    lock(&locked);
    if std::fs::read_dir(&locked).is_ok() {
        println!("skipped: this user reads every folder, whatever its mode (root)");
    } else {
        let mut command = osier();
        command.arg(&locked).args(["-l", "127.0.0.1:0"]);
        assert!(refused(command).contains("may not read"));
    }
}

#[test]
fn a_log_file_that_cannot_be_written() {
    let folder = Folder::new();
    let path = folder.join("missing/access.log");
    let mut command = osier();
    command
        .arg(folder.path())
        .args(["-l", "127.0.0.1:0", "--log-file"])
        .arg(&path);
    let text = refused(command);
    assert!(text.contains(path.to_str().unwrap()), "{text}");
}

#[test]
fn a_port_in_use_is_named_and_nothing_is_served_on_the_others() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let (taken_at, free_at) = (taken.local_addr().unwrap(), free.local_addr().unwrap());
    drop(free);
    let mut command = osier();
    command.args(["-l", "127.0.0.1:0", "-l", &taken_at.to_string()]);
    let text = refused(command);
    assert!(text.contains(&taken_at.to_string()) && text.contains("-l"), "{text}");

    // Another osier of the same user counts as well, although both ask to share the port among their workers.
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let mut command = osier();
    command.args(["-l", &server.address.to_string()]);
    assert!(refused(command).contains(&server.address.to_string()));
    // The admin listener has a setting of its own.
    let mut command = osier();
    command.args(["-l", "127.0.0.1:0", "--admin", &taken_at.to_string()]);
    let text = refused(command);
    assert!(text.contains("choose another address (--admin)"), "{text}");
    folder.write(
        "site.toml",
        format!(
            "[admin]\naddress = \"{taken_at}\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n[[site]]\n[[site.route]]\nrespond = 404\n"
        ),
    );
    let mut command = osier();
    command.arg(folder.join("site.toml"));
    let text = refused(command);
    assert!(text.contains("choose another address ('address' of [admin])"), "{text}");
    // And an address that is named twice.
    let mut command = osier();
    command.args(["-l", &free_at.to_string(), "-l", &free_at.to_string()]);
    assert!(refused(command).contains(&free_at.to_string()));
}

#[test]
fn an_address_of_another_machine() {
    let mut command = osier();
    command.args(["-l", "192.0.2.1:8080"]);
    let text = refused(command);
    assert!(text.contains("192.0.2.1:8080") && text.contains("-l"), "{text}");
}

#[test]
fn help_and_version() {
    for argument in ["--help", "-h"] {
        let output = osier().arg(argument).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(
            (20..=40).contains(&text.lines().count()),
            "{} lines:\n{text}",
            text.lines().count()
        );
        for option in [
            "DIR",
            "--listen",
            "--workers",
            "--spa",
            "--no-listing",
            "--header",
            "--log",
            "--log-file",
            "8080",
        ] {
            assert!(text.contains(option), "{option} is missing:\n{text}");
        }
    }
    let output = osier().arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("osier {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn several_addresses_and_the_word_serve() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    let mut command = osier();
    command
        .arg("serve")
        .arg(folder.path())
        .args(["-l", "127.0.0.1:0", "-l", "127.0.0.1:0", "-w", "3"]);
    let server = Server::spawn(command);
    let addresses: Vec<_> = server
        .ready_line
        .split("http://")
        .skip(1)
        .map(|rest| rest.split('/').next().unwrap())
        .collect();
    assert_eq!(addresses.len(), 2, "{}", server.ready_line);
    for address in addresses {
        let mut client = crate::support::Client::new(address.parse().unwrap());
        client.send("GET", "/a.txt", &[]);
        assert_eq!(client.receive("GET").text(), "a");
    }
}

#[test]
fn the_limit_of_open_files_is_raised_as_far_as_it_may_be() {
    const CONNECTIONS: u64 = 100;
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if hard.is_some_and(|hard| hard < 3 * CONNECTIONS) {
        return println!("skipped: no more than {hard:?} files may be open here");
    }
    let folder = Folder::new();
    folder.write("a.txt", "a");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 64 && exec \"$0\" \"$@\""]);
    command
        .arg(osier().get_program())
        .arg(folder.path())
        .args(["-l", "127.0.0.1:0", "-w", "1"]);
    let server = Server::spawn(command);
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("GET", "/a.txt", &[]);
        assert_eq!(client.receive("GET").text(), "a");
    }
}

#[test]
fn idle_connections_give_way_when_no_more_files_may_be_open() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    let mut command = with_few_files(&folder);
    command.args([".", "-l", "127.0.0.1:0", "-w", "2"]);
    let server = Server::spawn(command);
    // Twice as many as there are descriptors. The earlier ones stay open on this side.
    let mut clients: Vec<_> = Vec::new();
    for _ in 0..128 {
        let mut client = server.connect();
        client.send("GET", "/a.txt", &[]);
        assert_eq!(client.receive("GET").text(), "a");
        clients.push(client);
    }
    let said = std::fs::read_to_string(folder.join("stderr")).unwrap();
    let line = "16 of 64 descriptors are left to files and backends by the connections: the ones that are idle longest are closed for new \
                ones; raise the limit of open files (LimitNOFILE=, ulimit -n)";
    assert!(said.contains(line), "{said}");
}

#[test]
fn handlers_get_descriptors_although_connections_want_all() {
    let folder = Folder::new();
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = backend.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in backend.incoming() {
            let mut client = Client::over(stream.unwrap());
            if client.receive_request().is_some() {
                client.send_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\nbackend");
            }
        }
    });
    folder.write("www/a.txt", "a");
    folder.write("www/first.txt", "first");
    folder.write(
        "site.toml",
        format!(
            "workers = 2\n[[listen]]\naddress = \"127.0.0.1:0\"\ntimeouts = {{ header = \"10m\" }}\n[[site]]\ndefault = true\n\
             [[site.route]]\npath = \"/backend\"\nproxy = \"http://{address}\"\n[[site.route]]\nfiles = \"www\"\n"
        ),
    );
    let mut command = with_few_files(&folder);
    command.arg("site.toml");
    let server = Server::spawn(command);
    // None of them is idle, so none gives way.
    let begin = |head: &str| {
        let mut client = server.connect();
        client.send_raw(head.as_bytes());
        client
    };
    // The answer to a first request shows that the server has accepted the connection, and has read the beginning of the second request.
    // It is another file, for one that is cached needs no descriptor.
    let mut early = ["/a.txt", "/backend"].map(|target| {
        let mut client = begin(&format!(
            "GET /first.txt HTTP/1.1\r\nhost: x\r\n\r\nGET {target} HTTP/1.1\r\n"
        ));
        assert_eq!(client.receive("GET").text(), "first");
        client
    });
    let _late: Vec<_> = (0..100).map(|_| begin("GET /a.txt HTTP/1.1\r\n")).collect();
    let stderr = || std::fs::read_to_string(folder.join("stderr")).unwrap();
    eventually("new ones wait", || {
        stderr().contains("none of them idle: new ones wait until some close; raise")
            || stderr().contains("cannot accept")
    });
    for (client, content) in early.iter_mut().zip(["a", "backend"]) {
        client.send_raw(b"host: x\r\n\r\n");
        assert_eq!(client.receive("GET").text(), content, "{}", stderr());
    }
}

#[test]
fn idle_connections_of_one_listener_give_way_to_clients_of_another() {
    let folder = Folder::new();
    let listen = ["a", "b"].map(|name| format!("[[listen]]\nname = \"{name}\"\naddress = \"127.0.0.1:0\"\n"));
    let site = "[[site]]\ndefault = true\n[[site.route]]\nrespond = \"a\"\n";
    folder.write("site.toml", format!("workers = 2\n{}{site}", listen.concat()));
    let mut command = with_few_files(&folder);
    command.arg("site.toml");
    let server = Server::spawn(command);
    let addresses: Vec<&str> = urls(&server.ready_line)
        .map(|url| url.split('/').next().unwrap())
        .collect();
    let [first, second] = addresses[..] else {
        panic!("{}", server.ready_line)
    };
    let connect = |address: &str| Client::new(address.parse().unwrap());
    let idle = (0..128).map(|_| {
        let mut client = connect(first);
        client.send("GET", "/", &[]);
        assert_eq!(client.receive("GET").text().trim(), "a");
        client
    });
    let _idle: Vec<_> = idle.collect();
    // These send their requests in two parts, so none of them is idle for long.
    let begun = (0..16).map(|_| {
        let mut client = connect(second);
        client.send_raw(b"GET / HTTP/1.1\r\n");
        client
    });
    for mut client in begun.collect::<Vec<_>>() {
        client.send_raw(b"host: x\r\n\r\n");
        assert_eq!(client.receive("GET").text().trim(), "a");
    }
}

/// Other code of the process may keep as many descriptors as it likes, here the sockets of listeners. Some connections are served
/// nevertheless, without a wait for the end of those that are busy.
#[test]
fn some_connections_are_served_although_others_have_taken_the_descriptors() {
    let folder = Folder::new();
    let others = (0..188).map(|number| format!("[[listen]]\naddress = \"unix:{number}.sock\"\n"));
    let site = "[[site]]\ndefault = true\n[[site.route]]\nrespond = \"a\"\n";
    let listen = format!("[[listen]]\naddress = \"127.0.0.1:0\"\n{}", others.collect::<String>());
    folder.write("site.toml", format!("workers = 1\n{listen}{site}"));
    // Some are the server's own, and it inherits some from whoever starts this test.
    let mut command = with_files(&folder, 256);
    command.arg("site.toml");
    let server = Server::spawn(command);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap();
    let count = descriptors.count();
    assert!((192..250).contains(&count), "{count} of 256");
    let address = urls(&server.ready_line).next().unwrap().split('/').next().unwrap();
    let connect = || Client::new(address.parse().unwrap());
    let mut busy = connect();
    busy.send_raw(b"GET / HTTP/1.1\r\n");
    for _ in 0..3 {
        let mut client = connect();
        client.send("GET", "/", &[]);
        assert_eq!(client.receive("GET").text(), "a");
    }
    busy.send_raw(b"host: x\r\n\r\n");
    assert_eq!(busy.receive("GET").text(), "a");
}

fn with_few_files(folder: &Folder) -> Command {
    with_files(folder, 64)
}

/// The program in `folder`, which may have `most` files open. Its stderr is a file there.
fn with_files(folder: &Folder, most: u32) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {most} && exec \"$0\" \"$@\" 2>stderr");
    command.args(["-c", &script]);
    command.current_dir(folder.path()).arg(osier().get_program());
    command
}

#[test]
fn a_file_is_a_configuration_whatever_its_name() {
    let folder = Folder::new();
    folder.write("www/a.txt", "a");
    folder.write(
        "noext",
        "workers = 1\n[[listen]]\naddress = \"127.0.0.1:0\"\n[[site]]\n[[site.route]]\nfiles = \"www\"\n",
    );
    let output = osier()
        .args(["check", "noext"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success());
    for arguments in [&["noext"][..], &["serve", "noext"]] {
        let mut command = osier();
        command.args(arguments).current_dir(folder.path());
        assert_eq!(crate::support::Server::spawn(command).get("/a.txt").text(), "a");
    }
}
