//! Upgrades: a new process takes over the sockets and the connections, and no client notices.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::config_system::with_sockets;
use crate::metrics::{ADMIN, admin_of, wait_for_value};
use crate::support::serving::{Serving, file, fixed};
use crate::support::sites::{Sites, send, wait_for};
use crate::support::{Client, DEADLINE, Folder, Server, Signal, pattern};

#[test]
fn idle_connections_move_and_a_head_that_has_arrived_in_part() {
    let mut sites = Serving::start(&file("", "old"));
    let mut used: Vec<Client> = (0..40).map(|_| sites.0.connect()).collect();
    used.iter_mut().for_each(|client| assert_eq!(fixed(client), "old"));
    let mut fresh: Vec<Client> = (0..20).map(|_| sites.0.connect()).collect();
    let mut partial: Vec<Client> = (0..20).map(|_| sites.0.connect()).collect();
    for client in &mut partial {
        client.send_raw(b"GET /fixed HTTP/1.1\r\nHos");
    }
    fs::write(
        sites.0.folder.join("site.toml"),
        format!(
            "workers = 2\n{}\n[[listen]]\naddress = \"127.0.0.1:0\"\n",
            file("", "new")
        ),
    )
    .unwrap();
    sites.upgrade();
    // It has nothing left, so it ends.
    sites.first_has_ended();
    for client in used.iter_mut().chain(&mut fresh) {
        assert_eq!(fixed(client), "new");
    }
    for client in &mut partial {
        client.send_raw(b"t: x\r\n\r\n");
        assert_eq!(client.receive("GET").text(), "new");
        assert_eq!(fixed(client), "new");
    }
    assert_eq!(sites.0.get("x", "/fixed").text(), "new");
}

#[test]
fn a_download_and_an_upload_end_in_the_old_process_and_their_connections_move() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = Sites::folder();
    let content = pattern(16 << 20);
    folder.write("www/large.bin", &content);
    let mut sites = Serving::start_in(folder, &with_backend(&backend, ""));
    let mut download = sites.0.connect();
    send(&mut download, "GET", "x", "/large.bin", &[]);
    let head = download.receive_head();
    assert_eq!((head.status, head.field("connection")), (200, None));
    let mut upload = InFlight::begin(&sites, &backend);
    let old = sites.id();
    assert_ne!(sites.upgrade(), old);
    assert!(upload.end());
    assert_eq!(fixed(&mut upload.client), "x");
    assert!(sites.0.server.is_running(), "the download goes on");
    let mut body = download.take_unread();
    let missing = content.len() - body.len();
    (&download.stream).take(missing as u64).read_to_end(&mut body).unwrap();
    assert!(body == content, "{} of {} bytes", body.len(), content.len());
    sites.first_has_ended();
    assert_eq!(fixed(&mut download), "x");
}

/// A request that the first process waits to answer while others take over: an upload to a backend that is asked to answer by `answer`.
pub struct InFlight {
    client: Client,
    backend: Client,
}

/// The file of a server with an upload, at `/up`, to this backend.
pub fn with_backend(backend: &TcpListener, top: &str) -> String {
    let to = backend.local_addr().unwrap();
    let route =
        format!("default = true\n[[site.route]]\npath = \"/up\"\nproxy = {{ to = \"{to}\", buffer = false }}\n");
    file(top, "x").replace("default = true\n", &route)
}

impl InFlight {
    pub fn begin(sites: &Serving, backend: &TcpListener) -> InFlight {
        InFlight::over(sites.0.connect(), backend)
    }

    pub fn over(mut client: Client, backend: &TcpListener) -> InFlight {
        client.send_raw(b"POST /up HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n01234");
        let (stream, _) = backend.accept().unwrap();
        let backend = Client::over(stream);
        InFlight { client, backend }
    }

    /// Ends the request. Returns whether its connection goes on.
    pub fn end(&mut self) -> bool {
        self.client.send_raw(b"56789");
        assert_eq!(self.backend.receive_request().unwrap(), b"0123456789");
        self.backend
            .send_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone");
        let reply = self.client.receive("POST");
        assert_eq!(reply.text(), "done");
        reply.field("connection").is_none()
    }
}

/// Asks for `/fixed` over a Unix socket.
pub fn ask_unix(stream: &mut UnixStream) {
    stream.write_all(b"GET /fixed HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"\r\n\r\nx") {
        let mut piece = [0; 1000];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&reply));
        reply.extend_from_slice(&piece[..count]);
    }
}

/// Asks again and again until it is told to stop. Counts the answers.
pub fn load(address: SocketAddr, is_kept: bool, stop: &AtomicBool, answers: &AtomicUsize) -> std::io::Result<()> {
    let open = || {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        std::io::Result::Ok(stream)
    };
    let mut stream = open()?;
    while !stop.load(Ordering::Relaxed) {
        if !is_kept {
            stream = open()?;
        }
        stream.write_all(b"GET /fixed HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let mut reply = Vec::new();
        while !reply.ends_with(b"\r\n\r\nanswer") {
            let mut piece = [0; 1000];
            match stream.read(&mut piece)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => reply.extend_from_slice(&piece[..count]),
            }
        }
        let text = String::from_utf8_lossy(&reply).to_ascii_lowercase();
        assert!(
            text.starts_with("http/1.1 200 ") && !text.contains("connection: close"),
            "{text}"
        );
        answers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[test]
fn ten_upgrades_under_load_fail_no_request() {
    let mut sites = Serving::start(&file("", "answer"));
    let address = sites.0.addresses[0];
    let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
            thread::spawn(move || load(address, number % 2 == 0, &stop, &answers))
        })
        .collect();
    let mut idle: Vec<Client> = (0..50).map(|_| sites.0.connect()).collect();
    let mut seen = 0;
    for _ in 0..10 {
        sites.upgrade();
        // Each process serves some of the load.
        wait_for("more answers", || answers.load(Ordering::Relaxed) > seen + 20);
        seen = answers.load(Ordering::Relaxed);
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap().unwrap();
    }
    idle.iter_mut().for_each(|client| assert_eq!(fixed(client), "answer"));
    sites.first_has_ended();
}

#[test]
fn the_service_manager_is_told_which_process_is_the_service() {
    let folder = Sites::folder();
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let path = folder.join("notify");
    let mut sites = Serving::start_with(folder, &file("", "x"), |command| {
        command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", "60000000");
    });
    let heard = || {
        let mut buffer = [0; 2000];
        let count = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    };
    assert!(heard().starts_with("READY=1\n"));
    assert_eq!(heard(), "WATCHDOG=1");
    let new = sites.upgrade();
    let mut told = [heard(), heard(), heard()];
    told.sort();
    assert_eq!(told[0], format!("MAINPID={new}"));
    assert!(told[1].starts_with("READY=1\n") && told[2] == "WATCHDOG=1", "{told:?}");
    sites.first_has_ended();
    manager.set_nonblocking(true).unwrap();
    // The old process does not say that the service stops.
    assert!(manager.recv(&mut [0; 100]).is_err());
}

#[test]
fn sockets_of_systemd_are_taken_over() {
    let (folder, web) = (Sites::folder(), TcpListener::bind("127.0.0.1:0").unwrap());
    let text = file("workers = 2\n[[listen]]\naddress = \"systemd:web\"", "x");
    fs::write(folder.join("site.toml"), text).unwrap();
    let mut command = with_sockets(&folder, &[&web], "web");
    command.stderr(fs::File::create(folder.join("stderr")).unwrap());
    command.process_group(0);
    let server = Server::spawn(command);
    let addresses = vec![web.local_addr().unwrap()];
    let mut sites = Serving(Sites {
        server,
        folder,
        addresses,
    });
    let mut kept = sites.0.connect();
    assert_eq!(fixed(&mut kept), "x");
    for _ in 0..2 {
        sites.replace();
        assert_eq!(fixed(&mut kept), "x");
        assert_eq!(sites.0.get("x", "/fixed").text(), "x");
        let environment = fs::read_to_string(format!("/proc/{}/environ", sites.id())).unwrap();
        // They were for another process.
        assert!(!environment.contains("LISTEN_"), "{environment}");
    }
    sites.first_has_ended();
}

fn listen(address: &str) -> String {
    format!("[[listen]]\naddress = \"{address}\"\n")
}

/// An address that an old process does not keep. It keeps one whose port the system has chosen.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.4:0").unwrap().local_addr().unwrap()
}

#[test]
fn addresses_that_the_new_process_does_not_have_are_free_while_the_old_one_ends_its_requests() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let (one, gone) = (
        listen("127.0.0.1:0"),
        [listen(&free_port().to_string()), listen("unix:socket")].concat(),
    );
    let text = format!("workers = 2\n{}{one}{gone}", with_backend(&backend, ""));
    let mut sites = Serving::start(&text);
    let (old, socket) = (sites.0.addresses[1], sites.0.folder.join("socket"));
    let mut in_flight = InFlight::begin(&sites, &backend);
    let mut idle = Client::over(TcpStream::connect(old).unwrap());
    assert_eq!(fixed(&mut idle), "x");
    let mut requests: Vec<Client> = (0..20)
        .map(|_| Client::over(TcpStream::connect(old).unwrap()))
        .collect();
    for client in &mut requests {
        send(client, "GET", "x", "/fixed", &[]);
    }
    fs::write(sites.0.folder.join("site.toml"), text.replace(&gone, "")).unwrap();
    sites.upgrade();
    assert!(sites.0.server.is_running(), "the upload goes on");
    assert_eq!(
        TcpStream::connect(old).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    wait_for("the end of the file", || !socket.exists());
    let next = Sites::start(&format!("{}{}", file("", "next"), listen(&old.to_string())));
    assert_eq!(next.get("x", "/fixed").text(), "next");
    // Those that had connected before are answered.
    for client in &mut requests {
        assert_eq!(client.receive("GET").text(), "x");
    }
    send(&mut idle, "GET", "x", "/fixed", &[]);
    let reply = idle.receive("GET");
    assert_eq!((reply.text(), reply.field("connection")), ("x", Some("close")));
    assert!(in_flight.end());
    sites.first_has_ended();
}

#[test]
fn an_address_is_free_although_a_process_before_the_last_one_has_had_it() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let (one, gone) = (listen("127.0.0.1:0"), listen(&free_port().to_string()));
    let text = format!("workers = 2\n{}{one}{gone}", with_backend(&backend, ""));
    let mut sites = Serving::start(&text);
    let old = sites.0.addresses[1];
    let mut in_flight = InFlight::begin(&sites, &backend);
    sites.upgrade();
    TcpStream::connect(old).unwrap();
    fs::write(sites.0.folder.join("site.toml"), text.replace(&gone, "")).unwrap();
    sites.replace();
    assert!(sites.0.server.is_running(), "the upload goes on");
    assert_eq!(
        TcpStream::connect(old).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    in_flight.end();
    sites.first_has_ended();
}

#[test]
fn a_unix_socket_keeps_its_file() {
    let text = format!(
        "{}[[listen]]\naddress = \"unix:socket\"\nmode = \"0600\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n",
        file("", "x")
    );
    let mut sites = Serving::start(&text);
    let path = sites.0.folder.join("socket");
    let mut kept = UnixStream::connect(&path).unwrap();
    ask_unix(&mut kept);
    let inode = fs::metadata(&path).unwrap().ino();
    sites.upgrade();
    sites.first_has_ended();
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    ask_unix(&mut kept);
    ask_unix(&mut UnixStream::connect(&path).unwrap());
    sites.signal(Signal::TERM);
    wait_for("the end of the file", || !path.exists());
}

/// A connection to the removed socket keeps its server. The sockets that move are those that clients find.
#[test]
fn a_socket_file_that_a_reload_has_made_again_moves() {
    let text = format!(
        "{}[[listen]]\naddress = \"unix:socket\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n",
        file("", "x")
    );
    let mut sites = Serving::start(&text);
    let path = sites.0.folder.join("socket");
    let mut kept = UnixStream::connect(&path).unwrap();
    ask_unix(&mut kept);
    fs::remove_file(&path).unwrap();
    let said = sites.0.hang_up();
    assert!(said.contains("it is made again"), "{said}");
    sites.upgrade();
    sites.first_has_ended();
    ask_unix(&mut kept);
    ask_unix(&mut UnixStream::connect(&path).unwrap());
    sites.signal(Signal::TERM);
    wait_for("the end of the file", || !path.exists());
}

/// The new process has the user and the Landlock domain of the old one, although it could not take them.
#[test]
fn a_process_that_has_given_up_privileges_is_upgraded_with_what_it_has() {
    if !rustix::process::geteuid().is_root() {
        return testkit::skip("only root can give privileges up");
    }
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_osier"));
    if is_out_of_reach(program) {
        return testkit::skip("the user nobody cannot reach the program");
    }
    let of = |more: &str| {
        let folder = Sites::folder();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Serving::start_in(
            folder,
            &file(&format!("user = \"65534\"\ngroup = \"65534\"\n{more}"), "x"),
        )
    };
    let mut sites = of(&format!("[upgrade]\nprogram = \"{}\"", program.display()));
    let mut client = sites.0.connect();
    assert_eq!(fixed(&mut client), "x");
    for _ in 0..2 {
        let new = sites.upgrade();
        assert_eq!(fs::metadata(format!("/proc/{new}")).unwrap().uid(), 65534);
        assert_eq!(fixed(&mut client), "x");
    }
    sites.first_has_ended();
    let good = fs::read_to_string(sites.0.folder.join("site.toml")).unwrap();
    fs::write(
        sites.0.folder.join("site.toml"),
        good.replace("user = \"65534\"", "user = \"65533\""),
    )
    .unwrap();
    let before = sites.0.said().len();
    sites.signal(Signal::USR2);
    wait_for("the refusal", || {
        sites.0.said()[before..].contains("this process goes on")
    });
    let said = sites.0.said()[before..].to_owned();
    assert!(
        said.contains("'user' has changed, but a process that takes over"),
        "{said}"
    );
    assert_eq!(fixed(&mut client), "x");

    let sites = of("");
    let said = sites.fail();
    assert!(said.contains("'landlock' forbids this process to start"), "{said}");
    assert_eq!(sites.0.get("x", "/fixed").text(), "x");
}

/// A folder with the program and its libraries, and a configuration whose root folder it is. Prints "skipped" and returns `None` where there
/// can be none.
pub fn root_folder() -> Option<(Folder, String)> {
    if !rustix::process::geteuid().is_root() {
        testkit::skip("only root can change the root folder");
        return None;
    }
    let folder = Sites::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = env!("CARGO_BIN_EXE_osier");
    let Ok(list) = Command::new("ldd").arg(program).output() else {
        testkit::skip("there is no ldd");
        return None;
    };
    let list = String::from_utf8(list.stdout).unwrap();
    let libraries = list.split_whitespace().filter(|word| word.starts_with('/'));
    for library in libraries {
        let copy = folder.join(&library[1..]);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(library, copy).unwrap();
    }
    fs::create_dir(folder.join("bin")).unwrap();
    let inside = folder.join("bin/osier");
    // It is large.
    if fs::hard_link(program, &inside).is_err() {
        fs::copy(program, &inside).unwrap();
    }
    let here = folder.path().display().to_string();
    let top = format!(
        "user = \"65534\"\ngroup = \"65534\"\nchroot = \"{here}\"\n[upgrade]\nprogram = \"{here}/bin/osier\"\ntimeout = \"20s\""
    );
    let text = file(&top, "x").replace("files = \"www\"", &format!("files = \"{here}/www\""));
    let text = text.replace("pid_file = \"pid\"", &format!("pid_file = \"{here}/pid\""));
    Some((folder, text))
}

#[test]
fn a_process_in_a_root_folder_of_its_own_is_upgraded_inside() {
    let Some((folder, text)) = root_folder() else {
        return;
    };
    let mut sites = Serving::start_in(folder, &text);
    let mut kept = sites.0.connect();
    assert_eq!(fixed(&mut kept), "x");
    for _ in 0..2 {
        let new = sites.upgrade();
        let root = fs::read_link(format!("/proc/{new}/root")).unwrap();
        assert_eq!(root, sites.0.folder.path().canonicalize().unwrap());
        assert_eq!(fixed(&mut kept), "x");
        assert_eq!(sites.0.get("x", "/a.txt").text(), "the file a");
    }
    let said = sites.0.said();
    assert!(!said.contains("the system reports no memory limit"), "{said}");
    sites.first_has_ended();
}

/// Whether a folder above the program is closed to others.
fn is_out_of_reach(program: &std::path::Path) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    let output = command.arg(program).arg("--version").output();
    !output.is_ok_and(|output| output.status.success())
}

/// The frame of a line. A mask of zeros leaves the bytes as they are.
fn frame(text: &str) -> Vec<u8> {
    let json = format!("{{\"text\": \"{text}\"}}");
    let mut frame = vec![0x81, 0x80 | u8::try_from(json.len()).expect("a short line"), 0, 0, 0, 0];
    frame.extend_from_slice(json.as_bytes());
    frame
}

/// A guest of a chat: its number, its connection, and the bytes that have not been read as frames.
pub struct Guest<S = TcpStream>(S, Vec<u8>);

impl Guest {
    fn enter(address: SocketAddr, query: &str) -> Guest {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Guest::over(stream, "http", query)
    }
}

impl<S: Read + Write> Guest<S> {
    /// Enters over a stream that has its timeouts.
    pub fn over(mut stream: S, scheme: &str, query: &str) -> Guest<S> {
        let head = format!(
            "GET /chat?{query} HTTP/1.1\r\nHost: x\r\nOrigin: {scheme}://x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        assert!(
            answer.starts_with(b"HTTP/1.1 101 "),
            "{}",
            String::from_utf8_lossy(&answer)
        );
        let mut guest = Guest(stream, Vec::new());
        // The history comes first, also an empty one: a guest who has it has joined the room, and gets every later line.
        while guest.whole().is_none() {
            guest.receive();
        }
        guest
    }

    pub fn say(&mut self, text: &str) {
        self.0.write_all(&frame(text)).unwrap();
    }

    /// The text of the next message. Pings are skipped.
    fn next(&mut self) -> String {
        loop {
            if let Some((opcode, text, end)) = self.whole() {
                self.1.drain(..end);
                assert_ne!(opcode, 8, "closed: {text:?}");
                if opcode == 1 {
                    return text;
                }
                continue;
            }
            self.receive();
        }
    }

    fn receive(&mut self) {
        let mut piece = [0; 4096];
        let count = self.0.read(&mut piece).unwrap();
        assert!(count > 0, "the connection has ended");
        self.1.extend_from_slice(&piece[..count]);
    }

    /// A frame that has arrived as a whole, and where it ends.
    fn whole(&self) -> Option<(u8, String, usize)> {
        let (first, length) = (*self.1.first()?, *self.1.get(1)?);
        let (start, length) = match length {
            126 => (4, usize::from(u16::from_be_bytes([*self.1.get(2)?, *self.1.get(3)?]))),
            short => (2, usize::from(short)),
        };
        let payload = self.1.get(start..start + length)?;
        Some((
            first & 15,
            String::from_utf8_lossy(payload).into_owned(),
            start + length,
        ))
    }

    /// The texts of the next lines, up to these. Histories and counts are skipped.
    pub fn lines_up_to(&mut self, last: &[String]) -> Vec<String> {
        let mut lines = Vec::new();
        while !last.iter().all(|last| lines.contains(last)) {
            let message = self.next();
            assert!(!message.contains("\"notice\""), "{message}");
            if message.contains("\"is\":\"line\"") && !message.starts_with("{\"is\":\"history\"") {
                let text = message.split("\"text\":\"").nth(1).unwrap();
                lines.push(text.split('"').next().unwrap().to_owned());
            }
        }
        lines
    }
}

#[test]
fn chat_guests_keep_their_rooms_and_get_every_line_once() {
    const LINES: usize = 60;
    let chat = "default = true\n[[site.route]]\npath = \"/chat\"\nchat = { burst = 1000, history = 1000 }\n";
    let mut sites = Serving::start(&file("", "x").replace("default = true\n", chat));
    let address = sites.0.addresses[0];
    let mut guests: Vec<Guest> = (0..20)
        .map(|number| Guest::enter(address, &format!("room=r{}&name=guest{number}", number % 2)))
        .collect();
    // Two of each room speak without a pause while the process changes.
    let speakers: Vec<_> = (0..4)
        .map(|number| {
            let mut guest = Guest::enter(address, &format!("room=r{}&name=speaker{number}", number % 2));
            thread::spawn(move || {
                for line in 0..LINES {
                    guest.say(&format!("{number}-{line}"));
                    thread::sleep(std::time::Duration::from_millis(20));
                }
                guest
            })
        })
        .collect();
    // Half of a message moves behind its other half.
    let frame = frame("in two halves");
    guests[0].0.write_all(&frame[..9]).unwrap();
    for turn in 0..3 {
        sites.upgrade();
        if turn == 0 {
            guests[0].0.write_all(&frame[9..]).unwrap();
        }
    }
    let mut speakers: Vec<Guest> = speakers.into_iter().map(|speaker| speaker.join().unwrap()).collect();
    // Lines of different guests have no order.
    for (number, speaker) in speakers.iter_mut().enumerate() {
        speaker.say(&format!("the end of {number}"));
    }
    for (number, guest) in guests.iter_mut().chain(&mut speakers).enumerate() {
        let room = number % 2;
        let mut lines = guest.lines_up_to(&[room, room + 2].map(|speaker| format!("the end of {speaker}")));
        lines.retain(|line| line != "in two halves" && !line.starts_with("the end of "));
        for speaker in [room, room + 2] {
            let of_speaker: Vec<&String> = lines
                .iter()
                .filter(|line| line.starts_with(&format!("{speaker}-")))
                .collect();
            let expected: Vec<String> = (0..LINES).map(|line| format!("{speaker}-{line}")).collect();
            // A speaker may have entered a moment after the other one's first lines, which are in its history then.
            let missed = if number < 20 { 0 } else { LINES - of_speaker.len() };
            assert_eq!(
                of_speaker,
                expected[missed..].iter().collect::<Vec<_>>(),
                "guest {number}"
            );
        }
        assert!(
            lines
                .iter()
                .all(|line| line.starts_with(&format!("{room}-")) || line.starts_with(&format!("{}-", room + 2)))
        );
    }
    // The history has moved, too.
    let mut late = Guest::enter(address, "room=r1&name=late");
    let history = late.next();
    assert_eq!(history.matches("\"is\":\"line\"").count(), 2 * LINES + 2, "{history}");
    sites.first_has_ended();
    drop((guests, speakers));
}

#[test]
fn a_chat_moves_whose_site_has_got_another_host_by_a_reload() {
    let chat =
        |hosts: &str| format!("default = true\nhost = [{hosts}]\n[[site.route]]\npath = \"/chat\"\nchat = true\n");
    let text = |hosts: &str| file("", "x").replace("default = true\n", &chat(hosts));
    let mut sites = Serving::start(&text("\"a.example\""));
    sites.0.reload(&text("\"b.example\", \"a.example\""));
    let mut guest = Guest::enter(sites.0.addresses[0], "name=ada");
    guest.say("before");
    guest.lines_up_to(&["before".to_owned()]);
    sites.upgrade();
    guest.say("behind");
    guest.lines_up_to(&["behind".to_owned()]);
    let history = Guest::enter(sites.0.addresses[0], "name=late").next();
    assert!(history.contains("before"), "{history}");
    sites.first_has_ended();
}

/// A backend that changes the protocol and sends back what it gets, then `bye` behind the end.
pub fn echoing_backend() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let accepting = listener.try_clone().unwrap();
    thread::spawn(move || {
        // The test ends with the process.
        for stream in accepting.incoming().flatten() {
            thread::spawn(move || -> std::io::Result<()> {
                let mut stream = stream;
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte)?;
                    head.push(byte[0]);
                }
                let is_websocket = head.to_ascii_lowercase().windows(9).any(|word| word == b"websocket");
                let protocol = if is_websocket { "websocket" } else { "echo" };
                write!(
                    stream,
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: {protocol}\r\n\r\n"
                )?;
                std::io::copy(&mut stream.try_clone()?, &mut stream)?;
                stream.write_all(b"bye")
            });
        }
    });
    listener
}

pub fn tunnel(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    tunnel_over(stream)
}

/// Asks for a tunnel at `/up`.
pub fn tunnel_over<S: Read + Write>(mut stream: S) -> S {
    stream
        .write_all(b"GET /up HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    stream
}

pub fn echoes(stream: &mut (impl Read + Write), bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    assert!(back == bytes, "other bytes than those that were sent");
}

/// An operator restarts a backend when nobody uses it, whichever process the tunnels have begun in.
#[test]
fn tunnels_that_have_moved_are_counted_with_their_backend() {
    let backend = echoing_backend();
    // Two listeners of one address would have one name in the upgrade.
    let admin = ADMIN.replace("127.0.0.1", "127.0.0.2");
    let mut sites = Serving::start(&with_backend(&backend, &admin));
    let address = sites.0.addresses[0];
    let mut tunnels: Vec<TcpStream> = (0..3).map(|_| tunnel(address)).collect();
    sites.upgrade();
    sites.first_has_ended();
    tunnels.iter_mut().for_each(|stream| echoes(stream, b"hello"));
    let admin = admin_of(&sites.0);
    let to = backend.local_addr().unwrap().to_string();
    let labels = [("backend", &*to)];
    for name in ["osier_upstream_tunnels", "osier_upstream_requests_in_flight"] {
        wait_for_value(admin, name, &labels, 3.0);
    }
    drop(tunnels);
    wait_for_value(admin, "osier_upstream_tunnels", &labels, 0.0);
    wait_for_value(
        admin,
        "osier_upstream_tunnel_bytes_total",
        &[("direction", "to_backend")],
        15.0,
    );
}

#[test]
fn tunnels_to_a_backend_move_with_both_ends() {
    let backend = echoing_backend();
    let mut sites = Serving::start(&with_backend(&backend, ""));
    let address = sites.0.addresses[0];
    let mut idle: Vec<TcpStream> = (0..100).map(|_| tunnel(address)).collect();
    idle.iter_mut().for_each(|stream| echoes(stream, b"before"));
    // One of them never stops.
    let stop = Arc::new(AtomicBool::new(false));
    let talking = {
        let (mut stream, stop) = (tunnel(address), Arc::clone(&stop));
        thread::spawn(move || {
            let mut turns = 0;
            while !stop.load(Ordering::Relaxed) {
                echoes(&mut stream, &pattern(1 + turns * 37 % 50_000));
                turns += 1;
            }
            turns
        })
    };
    for turn in 0..3u8 {
        sites.upgrade();
        if turn == 0 {
            sites.first_has_ended();
        }
        idle.iter_mut().for_each(|stream| echoes(stream, &[turn; 300]));
    }
    stop.store(true, Ordering::Relaxed);
    assert!(talking.join().unwrap() > 0);
    // The ends are passed on as ever.
    for stream in &mut idle {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"bye");
    }
}

/// The system chooses all of these ports, and each server keeps its own.
#[test]
fn admin_and_listeners_on_ports_of_the_system_are_not_mixed_up() {
    let text = format!(
        "workers = 2\n{}{}{}name = \"other\"\n",
        file(ADMIN, "x"),
        listen("127.0.0.1:0"),
        listen("127.0.0.1:0")
    );
    let mut sites = Serving::start(&text);
    let (admin, addresses) = (admin_of(&sites.0), sites.0.addresses.clone());
    assert!(addresses.len() == 2 && addresses[0] != addresses[1], "{addresses:?}");
    let mut idle: Vec<Client> = addresses.iter().map(|address| Client::new(*address)).collect();
    idle.iter_mut().for_each(|client| assert_eq!(fixed(client), "x"));
    for _ in 0..2 {
        sites.replace();
        for client in &mut idle {
            assert_eq!(fixed(client), "x");
        }
        for address in &addresses {
            assert_eq!(fixed(&mut Client::new(*address)), "x");
        }
        let mut client = Client::new(admin);
        send(&mut client, "GET", "x", "/health", &[]);
        assert_eq!(client.receive("GET").status, 200);
        send(&mut client, "GET", "x", "/fixed", &[]);
        assert_eq!(client.receive("GET").status, 404);
    }
    sites.first_has_ended();
}
