//! Server-sent events: a streamed response in the format that a browser's `EventSource` reads.
//!
//! ```
//! use osier::pubsub::{Policy, Topic};
//! use osier_web::{Router, sse};
//! use std::sync::Arc;
//!
//! let news: Topic<Arc<sse::Event>> = Topic::new();
//! let source = news.clone();
//! let router = Router::new().get("/news", move |_| sse::subscribe(source.subscribe(16, Policy::DropOldest)));
//! news.publish(sse::Event::new("osier is green").id("1").into());
//! ```
//!
//! The stream ends when the client disconnects: [`Sink::wait`], [`Sink::forward`] and [`Sink::send`]
//! fail then. Wait by them. A wait of another kind goes on until the next event is sent, unless the
//! route has [`cancel_when_gone`](crate::Route::cancel_when_gone). A client that does not read
//! suspends [`Sink::send`], which fails after the server's write timeout.
//!
//! The stream also ends when the graceful shutdown of the server begins: [`Sink::forward`] returns, and
//! [`Sink::wait`] and [`Sink::sleep`] fail with [`Cancelled`].

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use osier::Cancelled;
use osier::fiber::Activity;
use osier::memory::{Account, Charge};
use osier::pubsub::{Subscriber, TryRecvError};
use osier::time::Sleep;

use crate::conn::output::{Flushed, Outlet, PausedCode, Producer};
use crate::{Body, Request, Response};

/// Interval of the comments that keep a silent stream open. Many proxies and mobile networks close
/// a silent connection after a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// One encoded event. Share it in an `Arc` to send it to many clients. Its bytes are charged to
/// [`Account::MESSAGES`], as long as it waits in a queue or anywhere else.
#[derive(Debug)]
pub struct Event {
    /// Complete lines.
    text: String,
    charge: Charge,
}

impl Event {
    /// Makes an event with this data. Line ends in the data arrive as `\n`.
    ///
    /// ```
    /// use osier_web::sse::Event;
    ///
    /// let event = Event::new("two\nlines").id("7").name("tick");
    /// assert_eq!(event.to_string(), "data: two\ndata: lines\nid: 7\nevent: tick\n\n");
    /// ```
    pub fn new(data: impl AsRef<str>) -> Event {
        let mut text = String::new();
        for line in lines(data.as_ref()) {
            push(&mut text, "data", line);
        }
        Event::charged(text)
    }

    /// Makes an event without data, which pages do not see. It can set an [id](Event::id) or a
    /// [reconnection time](Event::retry).
    pub fn empty() -> Event {
        Event::charged(String::new())
    }

    /// Sets the id, which a client sends when it reconnects: see [`last_event_id`]. Line ends and
    /// NULs in the id are removed.
    pub fn id(self, id: impl AsRef<str>) -> Event {
        self.with(|text| push(text, "id", &one_line(id.as_ref()).replace('\0', "")))
    }

    /// Sets the event's type, which a page's listeners select by; `message` by default. Line ends
    /// in it are removed.
    pub fn name(self, name: impl AsRef<str>) -> Event {
        self.with(|text| push(text, "event", &one_line(name.as_ref())))
    }

    /// Sets the client's reconnection time, in whole milliseconds.
    pub fn retry(self, after: Duration) -> Event {
        self.with(|text| push(text, "retry", &after.as_millis().to_string()))
    }

    fn charged(text: String) -> Event {
        let charge = Account::MESSAGES.charge(text.capacity());
        Event { text, charge }
    }

    /// Adds a line.
    fn with(mut self, add: impl FnOnce(&mut String)) -> Event {
        add(&mut self.text);
        self.charge.resize(self.text.capacity());
        self
    }
}

impl Clone for Event {
    fn clone(&self) -> Event {
        Event::charged(self.text.clone())
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.text == other.text
    }
}

impl Eq for Event {}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.text)
    }
}

impl AsRef<Event> for Event {
    fn as_ref(&self) -> &Event {
        self
    }
}

fn push(text: &mut String, field: &str, value: &str) {
    for part in [field, ": ", value, "\n"] {
        text.push_str(part);
    }
}

/// Splits the text where the client would: at CR LF, LF and CR.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = text.find(['\r', '\n']) else {
            return rest.take();
        };
        let skip = if text[end..].starts_with("\r\n") { 2 } else { 1 };
        rest = Some(&text[end + skip..]);
        Some(&text[..end])
    })
}

fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], "")
}

/// Sends events to one client: see [`stream`].
pub struct Sink<'a> {
    out: &'a mut dyn Outlet,
    keep_alive: Duration,
    // Whether a wait has ended because the server shuts down.
    stopped: bool,
}

impl<'a> Sink<'a> {
    fn new(out: &'a mut dyn Outlet) -> Sink<'a> {
        Sink {
            out,
            keep_alive: KEEP_ALIVE,
            stopped: false,
        }
    }
}

impl Sink<'_> {
    /// Sends an event at once.
    ///
    /// # Suspends
    ///
    /// While the socket's send buffer is full.
    ///
    /// # Errors
    ///
    /// Any error of the socket; `TimedOut` after the server's write timeout.
    pub fn send(&mut self, event: impl AsRef<Event>) -> io::Result<()> {
        self.write(&event.as_ref().text)
    }

    /// Sends a comment, a line that clients ignore.
    ///
    /// # Suspends
    ///
    /// Same as [`send`](Sink::send).
    ///
    /// # Errors
    ///
    /// Same as [`send`](Sink::send).
    pub fn comment(&mut self, text: &str) -> io::Result<()> {
        self.write(&format!(": {}\n", one_line(text)))
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    /// Waits for a future. Meanwhile it sends a comment after each [keep-alive](Sink::keep_alive)
    /// interval, 15 s by default.
    ///
    /// # Suspends
    ///
    /// Until the future is ready.
    ///
    /// # Cancellation
    ///
    /// Unwinds when the fiber is cancelled, and drops the future.
    ///
    /// # Errors
    ///
    /// Same as [`send`](Sink::send). `ConnectionAborted` when the client disconnects, and
    /// [`Cancelled`] when the server shuts down. A stream that returns the latter ends as a complete
    /// response, without a line in the log.
    pub fn wait<F: Future>(&mut self, leaf: F) -> io::Result<F::Output> {
        let mut leaf = pin!(leaf);
        loop {
            match self.wait_for(leaf.as_mut(), self.keep_alive)? {
                News::Event(output) => return Ok(output),
                News::Stop => {
                    self.stopped = true;
                    return Err(Cancelled.into());
                }
                News::Silence => self.comment("")?,
            }
        }
    }

    /// Waits for a future, at most for `time`.
    ///
    /// # Suspends
    ///
    /// Until then.
    fn wait_for<F: Future>(&mut self, mut leaf: Pin<&mut F>, time: Duration) -> io::Result<News<F::Output>> {
        let mut news = News::Silence;
        self.out.while_connected(&mut |shutdown| {
            let stop = async {
                match shutdown {
                    Some(shutdown) => shutdown.wait_async().await,
                    None => std::future::pending().await,
                }
            };
            osier::select! {
                ready = leaf.as_mut() => news = News::Event(ready),
                () = stop => news = News::Stop,
                timeout time => {}
            }
        })?;
        Ok(news)
    }

    /// Waits for a time, as [`wait`](Sink::wait) does for a future.
    ///
    /// # Suspends
    ///
    /// Until the time has passed.
    ///
    /// # Errors
    ///
    /// Same as [`wait`](Sink::wait).
    pub fn sleep(&mut self, time: Duration) -> io::Result<()> {
        self.wait(Sleep::new(time))
    }

    /// Sets the interval of keep-alive comments.
    pub fn keep_alive(&mut self, every: Duration) {
        self.keep_alive = every;
    }

    /// Sends every event of a subscriber, until its topic is gone, it was too slow, or the server shuts
    /// down.
    ///
    /// # Suspends
    ///
    /// Until the subscription ends.
    ///
    /// # Errors
    ///
    /// Same as [`send`](Sink::send).
    pub fn forward(&mut self, subscriber: &mut Subscriber<Arc<Event>>) -> io::Result<()> {
        loop {
            match self.wait(subscriber.recv_async()) {
                Ok(Ok(event)) => self.send(event)?,
                Ok(Err(_)) => return Ok(()),
                Err(error) if Cancelled::is(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// The end of a wait for an event.
enum News<T> {
    Event(T),
    /// The server shuts down.
    Stop,
    Silence,
}

osier_queue::impl_debug!(Sink<'a>, self => { keep_alive: self.keep_alive, .. });

/// Makes a response whose events `run` sends, until it returns or the client disconnects.
///
/// ```
/// use osier_web::{Request, Router, sse};
/// use std::time::Duration;
///
/// let router = Router::new().get("/clock", |request: &mut Request<'_>| {
///     let mut n: u64 = sse::last_event_id(request).and_then(|id| id.parse().ok()).unwrap_or(0);
///     sse::stream(move |sink| loop {
///         n += 1;
///         sink.send(sse::Event::new("tick").id(n.to_string()))?;
///         sink.sleep(Duration::from_secs(1))?;
///     })
/// });
/// ```
#[doc(alias = "EventSource")]
pub fn stream(run: impl FnOnce(&mut Sink<'_>) -> io::Result<()> + 'static) -> Response {
    respond(move |out| {
        let mut sink = Sink::new(out);
        match run(&mut sink) {
            // The end of the stream, not of a broken response: the client learns that it is complete.
            Err(error) if sink.stopped && Cancelled::is(&error) => Ok(()),
            done => done,
        }
    })
}

fn respond(send: impl FnOnce(&mut dyn Outlet) -> io::Result<()> + 'static) -> Response {
    let body = move |out: &mut dyn Outlet| {
        out.flush()?; // sends the head, so that the page knows that it is connected
        send(out)
    };
    Response::new(StatusCode::OK)
        .body(Body::produced(body))
        .content_type("text/event-stream")
        .header("cache-control", "no-cache")
        // nginx and compatible proxies would buffer the events otherwise.
        .header("x-accel-buffering", "no")
}

/// Makes a response that sends a subscriber's events; see [`Sink::forward`]. A client costs no stack while there are no events, unless its
/// route has [`cancel_when_gone`](crate::Route::cancel_when_gone) or the response is encoded.
pub fn subscribe(subscriber: Subscriber<Arc<Event>>) -> Response {
    let mut response = respond(move |out| forward(subscriber, out));
    response.ends_with_client = true;
    response
}

/// Sends every event of a subscriber, as [`Sink::forward`] does. If `out` lets it, it pauses where no event comes for a while.
fn forward(mut subscriber: Subscriber<Arc<Event>>, out: &mut dyn Outlet) -> io::Result<()> {
    let mut sink = Sink::new(out);
    while let Some(patience) = sink.out.patience() {
        let news = match patience {
            Duration::ZERO => match subscriber.try_recv() {
                Err(TryRecvError::Empty) => News::Silence,
                received => News::Event(received.ok()),
            },
            patience => match sink.wait_for(pin!(subscriber.recv_async()), patience)? {
                News::Event(received) => News::Event(received.ok()),
                News::Stop => News::Stop,
                News::Silence => News::Silence,
            },
        };
        match news {
            News::Event(Some(event)) => sink.send(event)?,
            News::Event(None) | News::Stop => return Ok(()),
            News::Silence if sink.out.try_flush()? == Flushed::All => {
                pause(subscriber, patience, sink.out);
                return Ok(());
            }
            News::Silence => break,
        }
    }
    sink.forward(&mut subscriber)
}

/// Leaves the wait for the next event to `out`. There was none for `waited`.
fn pause(mut subscriber: Subscriber<Arc<Event>>, waited: Duration, out: &mut dyn Outlet) {
    let shutdown = out.shutdown();
    let code = Box::pin(async move {
        let event = async { News::Event(subscriber.recv_async().await) };
        let stop = async {
            match shutdown {
                Some(shutdown) => shutdown.wait_async().await,
                None => std::future::pending().await,
            }
            News::Stop
        };
        let silence = async {
            Sleep::new(KEEP_ALIVE.saturating_sub(waited)).await;
            News::Silence
        };
        let news = osier::race_async((event, stop, silence)).await;
        let go_on: Producer = Box::new(move |out| {
            let mut sink = Sink::new(out);
            match news {
                News::Event(Ok(event)) => sink.send(event)?,
                News::Event(Err(_)) | News::Stop => return Ok(()),
                News::Silence => sink.comment("")?,
            }
            forward(subscriber, out)
        });
        go_on
    });
    out.pause(PausedCode {
        code,
        waits_for: Activity::Other,
    });
}

/// The id of the last event that a reconnecting client has received.
pub fn last_event_id<'a>(request: &Request<'a>) -> Option<&'a str> {
    request.header_str("last-event-id").filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier::pubsub::{Policy, Topic};

    #[test]
    fn events_in_a_queue_are_charged_once_and_until_they_leave_it() {
        const COUNT: usize = 20;
        const BYTES: usize = 1 << 20;
        let held = || {
            osier::memory::settle();
            Account::MESSAGES.held()
        };
        // Another test of this process may hold frames meanwhile, but not half of this.
        let topic: Topic<Arc<Event>> = Topic::new();
        let mut readers = [(); 3].map(|()| topic.subscribe(COUNT / 2, Policy::DropOldest));
        for number in 0..COUNT {
            topic.publish(Arc::new(Event::new("x".repeat(BYTES)).id(number.to_string())));
        }
        let queued = held();
        assert!((10 * BYTES..25 * BYTES).contains(&queued), "{queued}");
        readers.iter_mut().for_each(|reader| drop(reader.recv()));
        assert!(held() < queued - BYTES / 2, "the readers have taken one event");
        drop(readers);
        assert!(held() < 5 * BYTES, "{}", held());
    }

    #[test]
    fn events_are_lines_and_nothing_in_them_makes_another() {
        for (event, expected) in [
            (Event::new("a"), "data: a\n\n"),
            (Event::new(""), "data: \n\n"),
            (
                Event::new("a\nb\r\nc\rd\n"),
                "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n",
            ),
            (Event::new(" a: b"), "data:  a: b\n\n"),
            (
                Event::new("a").id("1\nevent: x").name("n\r\n\r\n"),
                "data: a\nid: 1event: x\nevent: n\n\n",
            ),
            (Event::new("a").id("\0 7"), "data: a\nid:  7\n\n"),
            (Event::empty().retry(Duration::from_millis(1500)), "retry: 1500\n\n"),
        ] {
            assert_eq!(event.to_string(), expected);
        }
    }
}
