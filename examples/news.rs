//! A news ticker that upgrades itself: build a new version, send SIGUSR2, and no reader misses a line or sees one twice.
//!
//! ```text
//! cargo run --release -p osier-examples --bin news -- [ADDR]
//! curl -N http://127.0.0.1:8080/news &
//! curl -d 'osier is green' http://127.0.0.1:8080/news
//! kill -USR2 PID
//! ```
//!
//! The new process runs the program that is then at the same path. It takes over the listening sockets, the connections and the lines.
//! Event streams end in the old process, and their readers ask the new one for the lines after their last one.

use std::collections::VecDeque;
use std::io;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard};
use std::{env, mem};

use osier::pubsub::{Policy, Topic};
use osier::signal::{Signal, Signals};
use osier_web::upgrade::{Link, Part, Program, Upgrade};
use osier_web::{Rejection, Request, Response, Router, Server, http::StatusCode, sse};

/// Events that wait for a slow reader, at most. Beyond that its stream ends, and the reader reconnects.
const BEHIND: usize = 256;

/// The lines that are kept for readers who come or return.
const LINES: usize = 10_000;

/// The longest line.
const LINE_BYTES: u64 = 1000;

/// The latest lines. They have the numbers from 1 on.
#[derive(Default)]
struct News {
    state: Mutex<State>,
    topic: Topic<Arc<sse::Event>>,
}

#[derive(Default)]
struct State {
    lines: VecDeque<(usize, String)>,
    /// The link to the new process, which numbers the lines from the upgrade on.
    next: Option<Link>,
    /// The lines that the new process got from readers of this one. They come back if the upgrade fails.
    passed_on: Vec<String>,
}

impl State {
    fn keep(&mut self, number: usize, line: String) {
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back((number, line));
    }
}

impl News {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    fn add(&self, line: String) {
        let mut state = self.state();
        if let Some(next) = &state.next {
            next.send(format!("{UNNUMBERED} {line}"));
            return state.passed_on.push(line);
        }
        let number = state.lines.back().map_or(1, |(last, _)| last + 1);
        self.topic.publish(Arc::new(event(number, &line)));
        state.keep(number, line);
    }

    /// The lines after `number`, then those to come.
    fn since(self: &Arc<Self>, number: usize) -> Response {
        // Both under one lock, so that no line is lost in between.
        let state = self.state();
        let mut subscriber = self.topic.subscribe(BEHIND, Policy::Disconnect);
        let missed: Vec<_> = (state.lines.iter().filter(|(of_line, _)| *of_line > number))
            .map(|(number, line)| event(*number, line))
            .collect();
        sse::stream(move |sink| {
            missed.iter().try_for_each(|event| sink.send(event))?;
            sink.forward(&mut subscriber)
        })
    }
}

fn event(number: usize, line: &str) -> sse::Event {
    sse::Event::new(line).id(number.to_string())
}

/// Stands for the number of a line to which the new process gives one.
const UNNUMBERED: usize = 0;

/// The lines move to the new process, each after its number. No session does: event streams end, and their readers reconnect.
impl Part for News {
    fn leave(&self, link: &Link) {
        let mut state = self.state();
        for (number, line) in &state.lines {
            link.send(format!("{number} {line}"));
        }
        state.next = Some(link.clone());
    }

    fn receive(&self, message: &[u8], _: &Link) {
        let text = String::from_utf8_lossy(message);
        let Some((number, line)) = text.split_once(' ') else {
            return;
        };
        match number.parse() {
            Ok(UNNUMBERED) => self.add(line.to_owned()),
            Ok(number) => self.state().keep(number, line.to_owned()),
            Err(_) => eprintln!("news: a line of another version is lost: {text}"),
        }
    }

    fn alone(&self) {
        let mut state = self.state();
        state.next = None;
        let passed_on = mem::take(&mut state.passed_on);
        drop(state);
        passed_on.into_iter().for_each(|line| self.add(line));
    }
}

fn read(request: &mut Request<'_>) -> Result<Response, Rejection> {
    let news: &Arc<News> = request.state()?;
    let last = sse::last_event_id(request).and_then(|id| id.parse().ok());
    Ok(news.since(last.unwrap_or(0)))
}

fn write(request: &mut Request<'_>) -> Result<StatusCode, Rejection> {
    let line = request.text(LINE_BYTES)?;
    let news: &Arc<News> = request.state()?;
    news.add(line);
    Ok(StatusCode::NO_CONTENT)
}

fn process(_: &mut Request<'_>) -> String {
    format!("{}\n", std::process::id())
}

fn serve(addr: &str) -> io::Result<()> {
    // First of all, because an earlier signal would end the process.
    let signals = Signals::new([Signal::INT, Signal::TERM, Signal::USR2])?;
    let upgrade = Upgrade::new()?;
    osier::run(move || {
        let news = Arc::<News>::default();
        upgrade.part("news", &news);
        let router = Router::new()
            .get("/news", read)
            .post("/news", write)
            .get("/process", process);
        let server = Server::new(router.state(news)).upgradable(&upgrade, "news");
        let listening = server.bind(addr)?;
        if !upgrade.has_arrived() {
            println!("news on http://{}/", listening.local_addr());
        }
        let stop = listening.handle();
        let serving = osier::spawn(move || listening.run());
        // In a process that an upgrade has started: waits until the old one hands over.
        upgrade.ready()?;
        osier::spawn(move || {
            while let Ok(signal) = signals.recv() {
                if signal != Signal::USR2 {
                    stop.shutdown();
                    continue;
                }
                match Program::this().map(|program| upgrade.run(&program)) {
                    Ok(Ok(())) => break, // the server has ended
                    Ok(Err(why)) => eprintln!("news: no upgrade: {why}"),
                    Err(error) => eprintln!("news: no upgrade: {error}"),
                }
            }
        });
        let _ = serving.join();
        Ok(())
    })
}

fn main() -> ExitCode {
    let addr = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".into());
    match serve(&addr) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("news: {error}");
            ExitCode::from(2)
        }
    }
}
