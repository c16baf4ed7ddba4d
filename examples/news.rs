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

use std::io::{self, Read};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard};
use std::{env, mem};

use osier::pubsub::{Policy, Topic};
use osier::signal::{Signal, Signals};
use osier_web::upgrade::{Link, Part, Program, Upgrade};
use osier_web::{Rejection, Request, Response, Router, Server, http::StatusCode, sse};

/// Events that wait for a slow reader, at most. Beyond that its stream ends, and the reader reconnects.
const BEHIND: usize = 256;

/// The lines of all time. The number of a line is its place, from 1 on.
#[derive(Default)]
struct News {
    state: Mutex<State>,
    topic: Topic<Arc<sse::Event>>,
}

#[derive(Default)]
struct State {
    lines: Vec<String>,
    /// The link to the new process, which numbers the lines from the upgrade on.
    next: Option<Link>,
    /// The lines that the new process got from readers of this one. They come back if the upgrade fails.
    passed_on: Vec<String>,
}

impl News {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    fn add(&self, line: String) {
        let mut state = self.state();
        if let Some(next) = &state.next {
            next.send(line.clone());
            return state.passed_on.push(line);
        }
        state.lines.push(line);
        let number = state.lines.len();
        self.topic.publish(Arc::new(event(number, &state.lines[number - 1])));
    }

    /// The lines after `number`, then those to come.
    fn since(self: &Arc<Self>, number: usize) -> Response {
        // Both under one lock, so that no line is lost in between.
        let state = self.state();
        let mut subscriber = self.topic.subscribe(BEHIND, Policy::Disconnect);
        let missed: Vec<_> = (state.lines.iter().zip(1..).skip(number))
            .map(|(line, number)| event(number, line))
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

/// The lines move to the new process. No session does: event streams end, and their readers reconnect.
impl Part for News {
    fn leave(&self, link: &Link) {
        let mut state = self.state();
        state.lines.iter().for_each(|line| link.send(line.as_bytes()));
        state.next = Some(link.clone());
    }

    fn receive(&self, line: &[u8], _: &Link) {
        self.add(String::from_utf8_lossy(line).into_owned());
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
    let mut line = String::new();
    if request.body().read_to_string(&mut line).is_err() {
        return Ok(StatusCode::BAD_REQUEST);
    }
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
