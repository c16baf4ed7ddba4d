//! Starts an example, and connects to it.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running example, killed when dropped.
pub struct Running(pub Child);

impl Running {
    pub fn start(program: &str, args: &[&str]) -> Running {
        let child = Command::new(program).args(args).stdout(Stdio::piped()).spawn();
        Running(child.expect("the example was built with this test"))
    }

    /// The text after `prefix` in the line that the example prints once it listens.
    pub fn addr(&mut self, prefix: &str) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let addr = line.trim().strip_prefix(prefix).expect("it says where it listens");
        addr.trim_end_matches('/').to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn connect(addr: &str) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}
