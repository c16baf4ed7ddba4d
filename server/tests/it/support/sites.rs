//! A server process with a configuration file that a test may change and reload.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;

pub use testkit::eventually as wait_for;

use super::{Client, Folder, Reply, Server, Signal, osier, urls};

/// Serves `site.toml` in a folder of its own; what it says goes to a file there.
pub struct Sites {
    pub server: Server,
    pub folder: Folder,
    /// The TCP addresses in the order of the file.
    pub addresses: Vec<SocketAddr>,
}

impl Sites {
    /// A folder with some files to serve.
    pub fn folder() -> Folder {
        let folder = Folder::new();
        folder.write("www/index.html", "the index");
        folder.write("www/a.txt", "the file a");
        folder.write("www/sub/index.html", "sub");
        folder.write("other/index.html", "the other index");
        folder.write("404.html", "<h1>lost</h1>");
        folder
    }

    pub fn start(text: &str) -> Sites {
        Sites::start_in(Sites::folder(), text)
    }

    pub fn start_in(folder: Folder, text: &str) -> Sites {
        Sites::start_with(folder, text, |_| {})
    }

    /// `text` without a `[[listen]]` listens on a port the system chooses, on two workers.
    pub fn start_with(folder: Folder, text: &str, prepare: impl FnOnce(&mut Command)) -> Sites {
        fs::write(folder.join("site.toml"), complete(text)).unwrap();
        let mut command = osier();
        command.arg("site.toml").current_dir(folder.path());
        command.stderr(File::create(folder.join("stderr")).unwrap());
        prepare(&mut command);
        let server = Server::spawn(command);
        let addresses = urls(&server.ready_line)
            .map(|url| url.split('/').next().unwrap().parse().unwrap())
            .collect();
        Sites {
            server,
            folder,
            addresses,
        }
    }

    /// The server's standard error so far.
    pub fn said(&self) -> String {
        fs::read_to_string(self.folder.join("stderr")).unwrap()
    }

    /// Waits until the server has said this. Returns all that it has said.
    pub fn wait_until_said(&self, text: &str) -> String {
        let missing = fmt::from_fn(|f| write!(f, "{text:?}; the server has said:\n{}", self.said()));
        testkit::wait_for(missing, || Some(self.said()).filter(|said| said.contains(text)))
    }

    /// Changes the file, sends SIGHUP, and waits until the server has said what became of it; that is returned.
    pub fn reload(&self, text: &str) -> String {
        fs::write(self.folder.join("site.toml"), complete(text)).unwrap();
        self.hang_up()
    }

    /// As [`Sites::reload`], with the file as it is.
    pub fn hang_up(&self) -> String {
        let before = self.said().len();
        self.server.signal(Signal::HUP);
        let said = || self.said()[before..].to_string();
        wait_for("the reload", || {
            let said = said();
            said.contains("osier: reloaded ") || said.contains("the old configuration stays")
        });
        said()
    }

    pub fn connect(&self) -> Client {
        Client::new(self.addresses[0])
    }

    /// GET of a host, on a connection of its own.
    pub fn get(&self, host: &str, target: &str) -> Reply {
        self.ask("GET", host, target, &[])
    }

    pub fn ask(&self, method: &str, host: &str, target: &str, fields: &[&str]) -> Reply {
        let mut client = self.connect();
        send(&mut client, method, host, target, fields);
        client.receive(method)
    }
}

pub fn send<S: Read + Write>(client: &mut Client<S>, method: &str, host: &str, target: &str, fields: &[&str]) {
    let mut request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n");
    for field in fields {
        request.push_str(field);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    client.send_raw(request.as_bytes());
}

fn complete(text: &str) -> String {
    let workers = if text.contains("workers =") {
        ""
    } else {
        "workers = 2\n"
    };
    let listen = if text.contains("[[listen]]") {
        ""
    } else {
        "\n[[listen]]\naddress = \"127.0.0.1:0\"\n"
    };
    format!("{workers}{text}{listen}")
}

/// The status and the body of a reply.
pub fn text(reply: &Reply) -> (u16, &str) {
    (reply.status, reply.text())
}

/// The toml blocks of a recipe of the documents.
pub fn recipes(heading: &str) -> Vec<&'static str> {
    let document = include_str!("../../../../docs/configuration.md");
    let section = document.split(&format!("\n### {heading}\n")).nth(1).unwrap();
    let section = section.split("\n### ").next().unwrap();
    let blocks = section.split("```toml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}
