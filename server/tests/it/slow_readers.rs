//! Many slow readers of proxied responses at a server whose address space is limited.

use crate::support::sites::{Sites, send};
use crate::support::{Client, pattern};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testkit::allow_descriptors;

const READERS: usize = 300;

/// A megabyte more than the sockets hold.
const LENGTH: usize = 4 << 20;

/// Limits the address space of a shell and of what it starts, in kilobytes.
pub const LITTLE_SPACE: &str = "ulimit -v 500000";

/// The longest time in which all responses are read ahead.
const PATIENCE: Duration = Duration::from_secs(300);

/// A backend that answers every request with `body`, and the number of responses that it has sent. It ends with the test's process.
fn backend(body: Arc<Vec<u8>>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, sent) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = sent.clone();
    let serve = move |mut stream: TcpStream| {
        let mut request = [0; 4096];
        let asked = stream.read(&mut request).is_ok_and(|count| count > 0);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\nConnection: close\r\n\r\n");
        let answered = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        if asked && answered.is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    (address, sent)
}

/// Runs the command in a shell that has made a limit.
pub fn limited(command: &mut Command, limit: &str, folder: &std::path::Path) {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(folder)
        .stderr(File::create(folder.join("stderr")).unwrap());
    *command = shell;
}

/// A client whose kernel takes few bytes, and its socket.
pub fn slow_reader(address: SocketAddr) -> (Client, TcpStream) {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    set_socket_recv_buffer_size(&socket, 4096).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let stream = TcpStream::from(socket);
    (Client::over(stream.try_clone().unwrap()), stream)
}

#[test]
fn slow_readers_below_a_limit_of_memory_end_nothing_and_lose_nothing() {
    let wanted = 4 * READERS as u64;
    if !allow_descriptors(wanted) {
        return testkit::skip(format_args!("the connections need {wanted} descriptors"));
    }
    let body = Arc::new(pattern(LENGTH));
    let (application, sent) = backend(body.clone());
    // The readers wait for each other, longer than for the usual write timeout on a busy machine.
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:0\"\ntimeouts = {{ write = \"1h\" }}\n[[site]]\n[[site.route]]\npath = \"/fixed\"\nrespond = \"x\"\n\
         [[site.route]]\nproxy = \"{application}\"\n"
    );
    let folder = Sites::folder();
    let path = folder.path().to_path_buf();
    let mut sites = Sites::start_with(folder, &text, |command| limited(command, LITTLE_SPACE, &path));
    let address = sites.addresses[0];
    let mut readers: Vec<_> = (0..READERS).map(|_| slow_reader(address)).collect();
    for (reader, _) in &mut readers {
        send(reader, "GET", "x", "/ten", &[]);
    }
    // Honest clients, until the backend has got rid of all responses.
    let (begun, mut honest) = (Instant::now(), 0);
    while sent.load(Ordering::Relaxed) < READERS || honest < 20 {
        assert_eq!(sites.get("x", "/fixed").text(), "x");
        honest += 1;
        let sent = sent.load(Ordering::Relaxed);
        assert!(
            begun.elapsed() < PATIENCE,
            "{sent} of {READERS} responses were read ahead"
        );
    }
    assert!(sites.server.is_running(), "{}", sites.said());
    assert!(sites.get("x", "/again").body == *body, "an honest reader");
    println!(
        "{READERS} slow readers, {honest} requests of honest clients in {:?}",
        begun.elapsed()
    );
    // Some readers take all that is left.
    for (reader, stream) in readers.iter_mut().step_by(50) {
        set_socket_recv_buffer_size(stream, LENGTH).unwrap();
        assert!(reader.receive("GET").body == *body, "bytes were lost or changed");
    }
}
