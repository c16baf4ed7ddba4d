//! A Redis server on a Unix socket of the test's own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{DEADLINE, Folder, Program, eventually};

/// A Redis server without a TCP port that keeps nothing on disk. Dropping it ends it.
#[derive(Debug)]
pub struct Redis {
    // Before the folder: it is still running in it.
    program: Option<Program>,
    folder: Folder,
    args: Vec<String>,
}

impl Redis {
    /// Starts it with further arguments. Prints "skipped" and returns `None` if Redis is not installed.
    pub fn start(args: &[&str]) -> Option<Redis> {
        let mut redis = Redis {
            program: None,
            folder: Folder::new(),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
        };
        redis.run().then_some(redis)
    }

    /// The socket that it listens on, also while it does not run.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("redis.sock")
    }

    /// Its folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Kills it as a crash would. [`Redis::restart`] brings it back, empty.
    pub fn kill(&mut self) {
        if let Some(program) = self.program.take() {
            program.kill();
        }
        let _ = std::fs::remove_file(self.socket());
    }

    /// Starts it again on the same socket.
    ///
    /// # Panics
    /// Panics if it cannot be started a second time.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.run(), "redis-server could be started before");
    }

    /// The reply to a command of plain words.
    ///
    /// # Panics
    /// Panics if it does not answer within [`DEADLINE`].
    pub fn ask(&self, command: &str) -> String {
        let mut stream = UnixStream::connect(self.socket()).expect("Redis listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a time above zero");
        let mut answer = String::new();
        write!(stream, "{command}\r\nQUIT\r\n").expect("Redis reads");
        stream.read_to_string(&mut answer).expect("Redis answers");
        answer
    }

    /// Waits until so many clients have subscribed to a channel.
    pub fn wait_for_listeners(&self, channel: &str, count: usize) {
        let (command, wanted) = (format!("PUBSUB NUMSUB {channel}"), format!(":{count}\r\n"));
        eventually("the subscribers of the channel", || {
            self.ask(&command).contains(&wanted)
        });
    }

    fn run(&mut self) -> bool {
        let socket = self.socket();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        command.arg(&socket).arg("--dir").arg(self.folder.path());
        command.args(&self.args).stdout(Stdio::null());
        self.program = Program::start(&mut command);
        if let Some(program) = &mut self.program {
            program.wait_until(|| UnixStream::connect(&socket).is_ok(), || "redis-server".into());
        }
        self.program.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_also_after_a_crash() {
        let Some(mut redis) = Redis::start(&[]) else { return };
        assert!(redis.ask("SET name osier").contains("+OK"));
        assert!(redis.ask("GET name").contains("osier"));
        redis.kill();
        assert!(UnixStream::connect(redis.socket()).is_err());
        redis.restart();
        assert!(redis.ask("GET name").starts_with("$-1"), "nothing is kept");
    }
}
