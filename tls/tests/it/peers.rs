//! Other people's programs at the other end: OpenSSL, GnuTLS, curl, Python, Go.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use osier::net::{TcpListener, TcpStream};
use osier_tls::{Acceptor, ClientCertificates, Connector, Error, Stream, Version};
use testkit::{Folder, Program, free_port, skip};

use crate::made::{AUTHORITY, LOCALHOST};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

/// The certificates as files.
fn files() -> Folder {
    let folder = Folder::new();
    folder.write("ca.pem", &AUTHORITY.pem);
    folder.write("cert.pem", &LOCALHOST.chain);
    folder.write("key.pem", &LOCALHOST.key);
    folder
}

fn acceptor() -> Acceptor {
    let builder = Acceptor::builder(LOCALHOST.identity()).alpn(["http/1.1"]);
    builder.build().unwrap()
}

/// Answers one request on each of `count` connections, and says how each went.
fn serve(acceptor: Acceptor, count: usize) -> (SocketAddr, JoinHandle<Vec<io::Result<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let connections = (0..count).map(|_| answer(acceptor.accept(listener.accept()?.0)));
        connections.collect()
    });
    (address, serving)
}

/// Reads up to an empty line and says what the handshake has agreed on.
fn answer(mut stream: Stream) -> io::Result<String> {
    stream.set_read_timeout(PATIENCE)?;
    let mut lines = BufReader::new(&stream).lines();
    while !lines.next().ok_or(ErrorKind::UnexpectedEof)??.is_empty() {}
    let said = format!(
        "{} {} {} {} {}",
        stream.version().unwrap(),
        stream.server_name().unwrap_or("-"),
        String::from_utf8_lossy(stream.protocol().unwrap_or(b"-")),
        if stream.is_resumed() { "resumed" } else { "full" },
        stream.peer_certificates().len(),
    );
    let body = format!("{said}\n{}", "x".repeat(100_000));
    write!(
        stream,
        "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    stream.shutdown(Shutdown::Write)?;
    // Reading up to the client's end keeps the system from resetting the connection.
    let _ = stream.read_to_end(&mut Vec::new());
    Ok(said)
}

/// Runs a client with this input and returns all that it writes, or `None` where it is missing.
fn client(command: &mut Command, input: &str) -> Option<String> {
    talk(command, input, "", "")
}

/// The same with an input in two parts: `second` goes out when the client has written `answer` to its standard error.
fn talk(command: &mut Command, input: &str, answer: &str, second: &str) -> Option<String> {
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match piped.spawn() {
        Ok(child) => child,
        Err(error) => {
            skip(format_args!(
                "{} cannot be started: {error}",
                command.get_program().display()
            ));
            return None;
        }
    };
    let mut stdin = child.stdin.take().unwrap();
    // It stays open: some clients leave at its end.
    let _ = stdin.write_all(input.as_bytes());
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains(answer) {
        let mut byte = [0];
        child.stderr.as_mut().unwrap().read_exact(&mut byte).unwrap();
        said.push(byte[0]);
    }
    let _ = stdin.write_all(second.as_bytes());
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    Some(String::from_utf8_lossy(&[output.stdout, said, output.stderr].concat()).into_owned())
}

const REQUEST: &str = "GET / HTTP/1.0\nHost: localhost\n\n";

fn openssl(folder: &Folder, address: SocketAddr, options: &[&str]) -> Command {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &address.to_string(), "-servername", "localhost"]);
    command.args(["-verify_return_error", "-verify_hostname", "localhost"]);
    command.arg("-CAfile").arg(folder.join("ca.pem")).args(options);
    command
}

#[test]
fn openssl_is_a_client() {
    let folder = files();
    for (option, version) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let (address, serving) = serve(acceptor(), 2);
        let session = folder.join("session");
        let first = ["-alpn", "http/1.1", option, "-sess_out", session.to_str().unwrap()];
        let Some(text) = client(&mut openssl(&folder, address, &first), REQUEST) else {
            return;
        };
        assert!(text.contains("Verify return code: 0 (ok)"), "{text}");
        assert!(text.contains(&format!("{version} localhost http/1.1 full 0")), "{text}");
        let second = ["-alpn", "http/1.1", option, "-sess_in", session.to_str().unwrap()];
        let text = client(&mut openssl(&folder, address, &second), REQUEST).unwrap();
        assert!(
            text.contains(&format!("{version} localhost http/1.1 resumed 0")),
            "{text}"
        );
        assert!(serving.join().unwrap().iter().all(|served| served.is_ok()));
    }
}

#[test]
fn openssl_does_not_renegotiate() {
    let folder = files();
    let (address, serving) = serve(acceptor(), 1);
    let Some(text) = client(&mut openssl(&folder, address, &["-tls1_2"]), "R\n") else {
        return;
    };
    assert!(text.contains("RENEGOTIATING"), "{text}");
    assert!(text.contains("no renegotiation"), "{text}");
    serving.join().unwrap()[0].as_ref().unwrap_err();
}

#[test]
fn openssl_changes_keys() {
    let folder = files();
    let (address, serving) = serve(acceptor(), 1);
    // `K` changes the keys of the client and asks for others of the server.
    let mut command = openssl(&folder, address, &["-tls1_3"]);
    let Some(text) = talk(&mut command, "K\n", "KEYUPDATE", REQUEST) else {
        return;
    };
    assert!(text.contains("full 0"), "{text}");
    assert_eq!(serving.join().unwrap().remove(0).unwrap(), "TLSv1.3 localhost - full 0");
}

#[test]
fn openssl_does_not_notice_that_the_stream_is_another() {
    let folder = files();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let socket = listener.accept()?.0;
        let first = acceptor().accept(socket.try_clone()?);
        first.handshake()?;
        answer(acceptor().import(socket, &first.export().unwrap())?)
    });
    // The keys change after the move too.
    let mut command = openssl(&folder, address, &["-tls1_3"]);
    let Some(text) = talk(&mut command, "K\n", "KEYUPDATE", REQUEST) else {
        return;
    };
    assert!(text.contains("full 0"), "{text}");
    assert_eq!(serving.join().unwrap().unwrap(), "TLSv1.3 localhost - full 0");
}

#[test]
fn openssl_keeps_a_connection_of_tls_1_2_where_it_is() {
    let folder = files();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let stream = acceptor().accept(listener.accept()?.0);
        stream.handshake()?;
        let refused = stream.export().unwrap_err().to_string();
        answer(stream).map(|_| refused)
    });
    let Some(text) = client(&mut openssl(&folder, address, &["-tls1_2"]), REQUEST) else {
        return;
    };
    assert!(text.contains("full 0"), "{text}");
    let refused = serving.join().unwrap().unwrap();
    assert!(refused.ends_with("it speaks TLS 1.2"), "{refused}");
}

#[test]
fn openssl_shows_a_certificate() {
    let folder = files();
    let clients = ClientCertificates::Required(AUTHORITY.pem.clone().into_bytes());
    let builder = Acceptor::builder(LOCALHOST.identity()).client_certificates(clients);
    let (address, serving) = serve(builder.build().unwrap(), 2);
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let shown = ["-cert", cert.to_str().unwrap(), "-key", key.to_str().unwrap()];
    let Some(text) = client(&mut openssl(&folder, address, &shown), REQUEST) else {
        return;
    };
    // OpenSSL sends the authority's certificate too.
    assert!(text.contains("TLSv1.3 localhost - full 2"), "{text}");
    let text = client(&mut openssl(&folder, address, &[]), REQUEST).unwrap();
    assert!(text.contains("certificate required"), "{text}");
    let refused = serving.join().unwrap().remove(1).unwrap_err();
    assert!(Error::of(&refused).unwrap().is_certificate());
}

#[test]
fn gnutls_is_a_client() {
    let folder = files();
    let (address, serving) = serve(acceptor(), 1);
    let mut command = Command::new("gnutls-cli");
    command.args(["127.0.0.1", "--port", &address.port().to_string(), "--alpn", "http/1.1"]);
    command.args(["--sni-hostname", "localhost", "--verify-hostname", "localhost"]);
    command.arg("--x509cafile").arg(folder.join("ca.pem"));
    let Some(text) = client(&mut command, REQUEST) else {
        return;
    };
    assert!(text.contains("The certificate is trusted"), "{text}");
    assert_eq!(
        serving.join().unwrap().remove(0).unwrap(),
        "TLSv1.3 localhost http/1.1 full 0"
    );
}

#[test]
fn curl_is_a_client() {
    let folder = files();
    let (address, serving) = serve(acceptor(), 2);
    for option in ["--tlsv1.3", "--tls-max=1.2"] {
        let mut command = Command::new("curl");
        let name = option.split('=').next().unwrap();
        command
            .args(["--silent", "--show-error", "--http1.1", name])
            .args(option.split('=').nth(1));
        command.arg("--cacert").arg(folder.join("ca.pem"));
        command.args([
            "--connect-to",
            &format!("localhost:443:{address}"),
            "https://localhost/",
        ]);
        let Some(text) = client(&mut command, "") else {
            return;
        };
        let (said, body) = text.split_once('\n').unwrap_or_else(|| panic!("{text}"));
        assert!(said.ends_with("localhost http/1.1 full 0"), "{said}");
        assert_eq!(body.len(), 100_000);
    }
    assert!(serving.join().unwrap().iter().all(|served| served.is_ok()));
}

#[test]
fn python_is_a_client() {
    let folder = files();
    let (address, serving) = serve(acceptor(), 2);
    let script = r#"
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
context.set_alpn_protocols(["http/1.1"])
session = None
for _ in range(2):
    with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as plain:
        with context.wrap_socket(plain, server_hostname="localhost", session=session) as tls:
            tls.sendall(b"GET / HTTP/1.0\r\n\r\n")
            received = b""
            while chunk := tls.recv(65536):
                received += chunk
            session = tls.session
            print(tls.version(), tls.session_reused, len(received), received.split(b"\r\n\r\n")[1][:60].split(b"\n")[0])
            tls.unwrap()
"#;
    let mut command = Command::new("python3");
    command
        .arg("-c")
        .arg(script)
        .arg(folder.join("ca.pem"))
        .arg(address.port().to_string());
    let Some(text) = client(&mut command, "") else {
        return;
    };
    assert!(
        text.contains("TLSv1.3 False") && text.contains("TLSv1.3 True"),
        "{text}"
    );
    let served: Vec<_> = serving.join().unwrap().into_iter().map(Result::unwrap).collect();
    assert_eq!(
        served,
        [
            "TLSv1.3 localhost http/1.1 full 0",
            "TLSv1.3 localhost http/1.1 resumed 0"
        ]
    );
}

#[test]
fn go_is_a_client() {
    let folder = files();
    let (address, serving) = serve(acceptor(), 1);
    let source = r#"
package main

import ("crypto/tls"; "crypto/x509"; "fmt"; "io"; "os")

func main() {
	pem, _ := os.ReadFile(os.Args[1])
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"http/1.1"}}
	connection, err := tls.Dial("tcp", os.Args[2], config)
	if err != nil { fmt.Println(err); os.Exit(1) }
	fmt.Fprintf(connection, "GET / HTTP/1.0\r\n\r\n")
	received, err := io.ReadAll(connection)
	fmt.Println(len(received), err)
	connection.Close()
}
"#;
    let main = folder.write("main.go", source);
    let mut command = Command::new("go");
    command
        .args(["run"])
        .arg(main)
        .arg(folder.join("ca.pem"))
        .arg(address.to_string());
    command
        .env("GOFLAGS", "-mod=mod")
        .env("GOTOOLCHAIN", "local")
        .env("GO111MODULE", "off");
    let Some(text) = client(&mut command, "") else {
        return;
    };
    assert!(text.contains("<nil>"), "{text}");
    assert_eq!(
        serving.join().unwrap().remove(0).unwrap(),
        "TLSv1.3 localhost http/1.1 full 0"
    );
}

/// A server that is not ours, on a port of its own.
fn server(command: &mut Command, port: u16) -> Option<Program> {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut program = Program::start(quiet)?;
    let is_there = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    program.wait_until(is_there, || format!("nothing listens on port {port}"));
    Some(program)
}

fn connect(connector: &Connector, port: u16) -> Stream {
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let stream = connector.connect("localhost", socket).unwrap();
    stream.set_read_timeout(PATIENCE).unwrap();
    stream
}

#[test]
fn openssl_is_a_server() {
    let folder = files();
    for (option, version) in [("-tls1_2", Version::Tls12), ("-tls1_3", Version::Tls13)] {
        let port = free_port();
        let mut command = Command::new("openssl");
        command.args(["s_server", "-accept", &port.to_string(), "-rev", option, "-Verify", "1"]);
        command.arg("-cert").arg(folder.join("cert.pem"));
        command.arg("-key").arg(folder.join("key.pem"));
        command.arg("-CAfile").arg(folder.join("ca.pem"));
        let Some(_program) = server(&mut command, port) else {
            return;
        };
        let builder = Connector::builder().ca_pem(AUTHORITY.pem.as_bytes());
        let connector = builder.identity(LOCALHOST.identity()).build().unwrap();
        for is_resumed in [false, true] {
            let mut stream = connect(&connector, port);
            stream.write_all(b"hello\n").unwrap();
            let mut reply = [0; 6];
            stream.read_exact(&mut reply).unwrap();
            assert_eq!(&reply, b"olleh\n");
            assert_eq!((stream.version(), stream.is_resumed()), (Some(version), is_resumed));
            stream.close_notify().unwrap();
        }
    }
}

#[test]
fn gnutls_is_a_server() {
    let folder = files();
    let port = free_port();
    let mut command = Command::new("gnutls-serv");
    command.args(["--echo", "--port", &port.to_string()]);
    command.arg("--x509certfile").arg(folder.join("cert.pem"));
    command.arg("--x509keyfile").arg(folder.join("key.pem"));
    let Some(_program) = server(&mut command, port) else {
        return;
    };
    let connector = AUTHORITY.connector();
    for is_resumed in [false, true] {
        let mut stream = connect(&connector, port);
        let sent = [&vec![b'x'; 4000][..], b"\n"].concat();
        stream.write_all(&sent).unwrap();
        let mut reply = vec![0; sent.len()];
        stream.read_exact(&mut reply).unwrap();
        assert!(reply == sent);
        assert_eq!(
            (stream.version(), stream.is_resumed()),
            (Some(Version::Tls13), is_resumed)
        );
        stream.close_notify().unwrap();
    }
}
