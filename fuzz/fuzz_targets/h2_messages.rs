//! Fuzzes whole exchanges against the crate `h2`: our client with its server, and its client with our server. An input is a script of
//! messages. Either side must receive each message as the other has sent it, whatever the pieces of the transport.
#![cfg_attr(fuzzing, no_main)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use osier_fuzz::fuzz_target;
use osier_http::h2::{Connection, Event, FieldSection, Limits, Outgoing};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let ours_is_client = script.byte() % 2 == 0;
    let pieces = usize::from(script.byte());
    let count = 1 + script.byte() % 3;
    let requests: Vec<Message> = (0..count).map(|_| Message::request(&mut script)).collect();
    let responses: Vec<Message> = (0..count).map(|_| Message::response(&mut script)).collect();
    let (theirs, ours) = match ours_is_client {
        true => (
            run(Ours::client(&requests), &responses, pieces, their_server),
            (&responses, &requests),
        ),
        false => (
            run(Ours::server(&responses), &requests, pieces, their_client),
            (&requests, &responses),
        ),
    };
    let (received_by_us, received_by_them) = theirs;
    assert_eq!(&received_by_us, ours.0, "received by us");
    assert_eq!(&received_by_them, ours.1, "received by them");
});

/// The bytes that decide.
struct Script<'d>(&'d [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.byte()) % of.len()]
    }

    fn fields(&mut self) -> Fields {
        const NAMES: [&str; 6] = [
            "accept",
            "x-a",
            "x-a-name-that-is-longer",
            "via",
            "set-cookie",
            "authorization",
        ];
        const LONG: &[u8] = &[b'v'; 700];
        const VALUES: [&[u8]; 7] = [
            b"",
            b"a",
            b"text/html",
            LONG,
            b"caf\xe9",
            b"Mon, 21 Oct 2013 20:13:21 GMT",
            b"\\^~",
        ];
        let count = self.byte() % 6;
        sorted(
            (0..count)
                .map(|_| (self.one_of(&NAMES).to_string(), self.one_of(&VALUES).to_vec()))
                .collect(),
        )
    }

    fn body(&mut self) -> Vec<u8> {
        let length = self.one_of(&[0, 1, 9, 100, 5_000, 16_384, 16_385, 65_535, 70_000]);
        (0..length).map(|at| (at % 251) as u8).collect()
    }
}

type Fields = Vec<(String, Vec<u8>)>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Message {
    /// The method and the path, or the status.
    start: String,
    fields: Fields,
    body: Vec<u8>,
    trailers: Fields,
}

impl Message {
    fn request(script: &mut Script<'_>) -> Message {
        let path = script.one_of(&["/", "/a?b=c", "/a/much/longer/path/than/the/other/ones"]);
        Message::new(
            format!("{} {path}", script.one_of(&["GET", "POST", "PUT", "BREW"])),
            script,
        )
    }

    fn response(script: &mut Script<'_>) -> Message {
        Message::new(script.one_of(&["200", "404", "500", "299", "302"]).to_string(), script)
    }

    fn new(start: String, script: &mut Script<'_>) -> Message {
        Message {
            start,
            fields: script.fields(),
            body: script.body(),
            trailers: if script.byte() % 3 == 0 {
                script.fields()
            } else {
                Fields::new()
            },
        }
    }

    fn ends_with_head(&self) -> bool {
        self.body.is_empty() && self.trailers.is_empty()
    }

    fn map(fields: &Fields) -> HeaderMap {
        let pairs = fields.iter().map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a valid name");
            (name, HeaderValue::from_bytes(value).expect("a valid value"))
        });
        let mut map = HeaderMap::new();
        pairs.for_each(|(name, value)| {
            map.append(name, value);
        });
        map
    }
}

fn sorted(mut fields: Fields) -> Fields {
    fields.sort();
    fields
}

fn of_map(map: &HeaderMap) -> Fields {
    sorted(
        map.iter()
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect(),
    )
}

/// Host stands among our fields also where the client sent only `:authority`.
fn of_section(section: &FieldSection) -> Fields {
    let fields = section.iter().filter(|(name, _)| *name != "host");
    sorted(fields.map(|(name, value)| (name.to_string(), value.to_vec())).collect())
}

fn lines(fields: &Fields) -> impl Iterator<Item = (&str, &[u8])> {
    fields.iter().map(|(name, value)| (&name[..], &value[..]))
}

/// Our side.
struct Ours {
    connection: Connection,
    now: Instant,
    /// The messages that a server sends.
    answers: Vec<Message>,
    /// The messages in progress, and how much of each body has been sent.
    sending: BTreeMap<u32, (Message, usize)>,
    received: BTreeMap<u32, Message>,
    ended: Vec<u32>,
    is_client: bool,
    count: usize,
}

impl Ours {
    fn new(connection: Connection, now: Instant, is_client: bool, count: usize) -> Ours {
        Ours {
            connection,
            now,
            answers: Vec::new(),
            sending: BTreeMap::new(),
            received: BTreeMap::new(),
            ended: Vec::new(),
            is_client,
            count,
        }
    }

    fn client(requests: &[Message]) -> Ours {
        let now = Instant::now();
        let connection = Connection::client(&Limits::default(), now);
        let mut ours = Ours::new(connection, now, true, requests.len());
        for request in requests {
            let (method, path) = request.start.split_once(' ').expect("a method and a path");
            let target = Outgoing {
                method,
                scheme: "http",
                authority: "a",
                path,
                protocol: None,
            };
            let fields = lines(&request.fields);
            let stream = ours
                .connection
                .request(&target, fields, request.ends_with_head())
                .expect("a free slot");
            if !request.ends_with_head() {
                ours.sending.insert(stream, (request.clone(), 0));
            }
        }
        ours
    }

    fn server(responses: &[Message]) -> Ours {
        let now = Instant::now();
        let mut ours = Ours::new(Connection::server(&Limits::default(), now), now, false, responses.len());
        ours.answers = responses.to_vec();
        ours
    }

    fn receive(&mut self, mut bytes: &[u8]) {
        loop {
            let (consumed, event) = self
                .connection
                .receive(bytes, self.now)
                .expect("the peer breaks no rule");
            bytes = &bytes[consumed..];
            let Some(event) = event else { break };
            let ended = match event {
                Event::Request { stream, head, end } => {
                    let start = format!("{} {}", head.method(), head.path().expect("a path"));
                    let fields = of_section(head.fields());
                    self.received.insert(
                        stream,
                        Message {
                            start,
                            fields,
                            ..Message::default()
                        },
                    );
                    end.then_some(stream)
                }
                Event::Response { stream, head, end } => {
                    let (start, fields) = (head.status().to_string(), of_section(head.fields()));
                    self.received.insert(
                        stream,
                        Message {
                            start,
                            fields,
                            ..Message::default()
                        },
                    );
                    end.then_some(stream)
                }
                Event::Data { stream, bytes, end } => {
                    self.received
                        .get_mut(&stream)
                        .expect("a head")
                        .body
                        .extend_from_slice(bytes);
                    self.connection.consumed(stream, bytes.len());
                    end.then_some(stream)
                }
                Event::Trailers { stream, fields } => {
                    self.received.get_mut(&stream).expect("a head").trailers = of_section(&fields);
                    Some(stream)
                }
                other => panic!("{other:?}"),
            };
            if let Some(stream) = ended {
                self.ended.push(stream);
                if !self.is_client {
                    let answer = self.answers[stream as usize / 2].clone();
                    let status = answer.start.parse().expect("a status");
                    let end = answer.ends_with_head();
                    self.connection.send_head(stream, status, lines(&answer.fields), end);
                    match end {
                        true => self.connection.finish(stream),
                        false => drop(self.sending.insert(stream, (answer, 0))),
                    }
                }
            }
        }
    }

    fn send(&mut self) {
        for stream in self.sending.keys().copied().collect::<Vec<_>>() {
            self.send_on(stream);
        }
        while let Some(stream) = self.connection.next_writable() {
            self.send_on(stream);
        }
    }

    fn send_on(&mut self, stream: u32) {
        let Some((message, at)) = self.sending.get_mut(&stream) else {
            return;
        };
        let rest = &message.body[*at..];
        *at += self
            .connection
            .send_data(stream, rest, message.trailers.is_empty(), self.now);
        if *at < message.body.len() {
            return;
        }
        if !message.trailers.is_empty() {
            self.connection.send_trailers(stream, lines(&message.trailers));
        }
        self.sending.remove(&stream);
        if !self.is_client {
            self.connection.finish(stream);
        }
    }

    fn is_done(&self) -> bool {
        self.ended.len() == self.count && self.sending.is_empty() && self.connection.output().is_empty()
    }
}

/// The transport as the crate `h2` sees it.
#[derive(Clone, Default)]
struct Pipe(Rc<RefCell<(Vec<u8>, Vec<u8>)>>);

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let input = &mut self.0.borrow_mut().0;
        if input.is_empty() {
            return Poll::Pending;
        }
        let count = input.len().min(to.remaining());
        to.put_slice(&input[..count]);
        input.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().1.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The messages that their side has received, by the order of their streams. Either side is polled without a waker.
type Received = Rc<RefCell<BTreeMap<usize, Message>>>;

/// Moves bytes until both sides are done. Returns what was received by us, and by them.
fn run<F: Future<Output = ()>>(
    mut ours: Ours,
    theirs: &[Message],
    pieces: usize,
    their_side: impl FnOnce(Pipe, Vec<Message>, Received) -> F,
) -> (Vec<Message>, Vec<Message>) {
    let (pipe, received) = (Pipe::default(), Received::default());
    let mut their_side = pin!(their_side(pipe.clone(), theirs.to_vec(), received.clone()));
    let mut context = Context::from_waker(Waker::noop());
    let longest = 1 + pieces * pieces;
    let mut idle = 0;
    while idle < 4 && !(ours.is_done() && received.borrow().len() == theirs.len()) {
        idle += 1;
        ours.send();
        let output = ours.connection.output();
        let count = output.len().min(longest.max(output.len() / 64));
        pipe.0.borrow_mut().0.extend_from_slice(&output[..count]);
        ours.connection.advance(count);
        assert!(
            their_side.as_mut().poll(&mut context).is_pending(),
            "their connection ended"
        );
        let input = std::mem::take(&mut pipe.0.borrow_mut().1);
        for piece in input.chunks(longest.max(input.len() / 64)) {
            ours.receive(piece);
        }
        if count > 0 || !input.is_empty() {
            idle = 0;
        }
    }
    assert!(ours.is_done(), "stuck: {:?}", ours.connection);
    let theirs = received.borrow().values().cloned().collect();
    (ours.received.into_values().collect(), theirs)
}

async fn read_body(mut body: RecvStream, message: &mut Message) {
    while let Some(data) = body.data().await {
        let data = data.expect("a body without an error");
        body.flow_control()
            .release_capacity(data.len())
            .expect("received bytes");
        message.body.extend_from_slice(&data);
    }
    if let Some(trailers) = body.trailers().await.expect("trailers without an error") {
        message.trailers = of_map(&trailers);
    }
}

fn send_rest(mut stream: SendStream<Bytes>, message: &Message) {
    let has_trailers = !message.trailers.is_empty();
    stream
        .send_data(Bytes::from(message.body.clone()), !has_trailers)
        .expect("an open stream");
    if has_trailers {
        stream
            .send_trailers(Message::map(&message.trailers))
            .expect("an open stream");
    }
}

/// Polls futures one after the other, each time all of them. The first one never ends.
async fn together(connection: impl Future<Output = ()>, mut others: Vec<Pin<Box<dyn Future<Output = ()>>>>) {
    let mut connection = pin!(connection);
    std::future::poll_fn(|context| {
        assert!(connection.as_mut().poll(context).is_pending(), "the connection ended");
        others.retain_mut(|other| other.as_mut().poll(context).is_pending());
        assert!(connection.as_mut().poll(context).is_pending(), "the connection ended");
        Poll::<()>::Pending
    })
    .await;
}

async fn their_server(pipe: Pipe, responses: Vec<Message>, received: Received) {
    let mut connection = h2::server::handshake(pipe).await.expect("a handshake");
    let mut exchanges: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    let mut next = 0;
    std::future::poll_fn(|context| {
        while let Poll::Ready(accepted) = connection.poll_accept(context) {
            let (request, mut respond) = accepted.expect("an open connection").expect("no error");
            let (at, response, received) = (next, responses[next].clone(), received.clone());
            next += 1;
            exchanges.push(Box::pin(async move {
                let (head, body) = request.into_parts();
                let mut message = Message {
                    start: format!("{} {}", head.method, head.uri.path_and_query().expect("a path")),
                    fields: of_map(&head.headers),
                    ..Message::default()
                };
                read_body(body, &mut message).await;
                received.borrow_mut().insert(at, message);
                let mut answer = Response::new(());
                *answer.status_mut() = response.start.parse().expect("a status");
                *answer.headers_mut() = Message::map(&response.fields);
                let ended = response.ends_with_head();
                let stream = respond.send_response(answer, ended).expect("an open stream");
                if !ended {
                    send_rest(stream, &response);
                }
            }));
        }
        exchanges.retain_mut(|exchange| exchange.as_mut().poll(context).is_pending());
        assert!(connection.poll_accept(context).is_pending());
        Poll::<()>::Pending
    })
    .await;
}

async fn their_client(pipe: Pipe, requests: Vec<Message>, received: Received) {
    let (mut client, connection) = h2::client::handshake(pipe).await.expect("a handshake");
    let mut exchanges: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    for (at, request) in requests.into_iter().enumerate() {
        let (method, path) = request.start.split_once(' ').expect("a method and a path");
        let mut head = Request::new(());
        *head.method_mut() = method.parse().expect("a method");
        *head.uri_mut() = format!("http://a{path}").parse().expect("a target");
        *head.headers_mut() = Message::map(&request.fields);
        let ended = request.ends_with_head();
        let (response, stream) = client.send_request(head, ended).expect("a free slot");
        if !ended {
            send_rest(stream, &request);
        }
        let received = received.clone();
        exchanges.push(Box::pin(async move {
            let (head, body) = response.await.expect("a response").into_parts();
            let mut message = Message {
                start: head.status.as_u16().to_string(),
                fields: of_map(&head.headers),
                ..Message::default()
            };
            read_body(body, &mut message).await;
            received.borrow_mut().insert(at, message);
        }));
    }
    together(async move { connection.await.expect("no error") }, exchanges).await;
}
