//! Spans of interleaved fibers reach a collector of OTLP over HTTP. The collector stands in this file, and reads protobuf with a
//! decoder of its own.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use osier_tracing::otlp;
use tracing::{Instrument, info_span};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// A field of a protobuf message.
#[derive(Debug)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return value;
        }
    }
}

/// The fields of a message, by number.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)),
            kind @ (1 | 5) => {
                let (number, rest) = bytes.split_at(if kind == 1 { 8 } else { 4 });
                bytes = rest;
                Field::Number(number.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (part, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(part)
            }
            kind => panic!("a field of kind {kind}"),
        };
        fields.push((tag >> 3, field));
    }
    fields
}

/// The values of the fields with this number, which hold bytes.
fn all(message: &[u8], number: u64) -> Vec<&[u8]> {
    let found = fields(message).into_iter().filter(move |(known, _)| *known == number);
    found
        .map(|(_, field)| match field {
            Field::Bytes(bytes) => bytes,
            Field::Number(number) => panic!("the number {number}"),
        })
        .collect()
}

fn text(message: &[u8], number: u64) -> String {
    all(message, number)
        .first()
        .map_or(String::new(), |bytes| String::from_utf8(bytes.to_vec()).unwrap())
}

fn hex(message: &[u8], number: u64) -> String {
    all(message, number)
        .concat()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn number(message: &[u8], number: u64) -> u64 {
    let found = fields(message).into_iter().find(|(known, _)| *known == number);
    match found {
        Some((_, Field::Number(number))) => number,
        other => panic!("{other:?}"),
    }
}

/// The key values (fields `number`) that hold a string.
fn attributes(message: &[u8], number: u64) -> HashMap<String, String> {
    let pairs = all(message, number).into_iter();
    pairs
        .map(|pair| {
            (
                text(pair, 1),
                all(pair, 2).first().map_or(String::new(), |value| text_or_empty(value)),
            )
        })
        .collect()
}

fn text_or_empty(value: &[u8]) -> String {
    match fields(value).first() {
        Some((1, Field::Bytes(bytes))) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}

/// A span as the collector sees it.
#[derive(Clone, Debug)]
struct Got {
    service: String,
    trace: String,
    id: String,
    parent: String,
    nanos: u64,
    events: Vec<String>,
}

/// The spans of an `ExportTraceServiceRequest`, by name.
fn spans(body: &[u8]) -> Vec<(String, Got)> {
    let mut spans = Vec::new();
    for resource in all(body, 1) {
        let service = attributes(all(resource, 1)[0], 1).remove("service.name").unwrap();
        for scope in all(resource, 2) {
            for span in all(scope, 2) {
                let got = Got {
                    service: service.clone(),
                    trace: hex(span, 1),
                    id: hex(span, 2),
                    parent: hex(span, 4),
                    nanos: number(span, 8) - number(span, 7),
                    events: all(span, 11).into_iter().map(|event| text(event, 2)).collect(),
                };
                spans.push((text(span, 5), got));
            }
        }
    }
    spans
}

/// Receives the bodies of requests.
fn collector() -> (SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut bytes = Vec::new();
                let mut piece = [0; 4096];
                loop {
                    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
                        match stream.read(&mut piece) {
                            Ok(0) | Err(_) => return,
                            Ok(count) => bytes.extend_from_slice(&piece[..count]),
                        }
                        continue;
                    };
                    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
                    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                    let length: usize = length.unwrap().parse().unwrap();
                    while bytes.len() < end + 4 + length {
                        let count = stream.read(&mut piece).unwrap();
                        bytes.extend_from_slice(&piece[..count]);
                    }
                    let body = bytes[end + 4..end + 4 + length].to_vec();
                    bytes.drain(..end + 4 + length);
                    let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
                    stream.write_all(head).unwrap();
                    sender.send(body).unwrap();
                }
            });
        }
    });
    (address, receiver)
}

fn wait() {
    osier::sleep(Duration::from_millis(2));
}

#[test]
fn spans_of_interleaved_fibers_reach_a_collector() {
    let (address, batches) = collector();
    let provider = otlp::provider("shop", &format!("http://{address}/v1/traces")).unwrap();
    let subscriber = tracing_subscriber::registry().with(otlp::layer(&provider));
    osier_tracing::Fibers::new(subscriber).init();
    let incoming = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    let sent = runtime.run(|| {
        let order = |name: &'static str| {
            move || {
                let span = info_span!("order", otel.name = name);
                assert!(name != "traced" || otlp::set_parent(&span, incoming));
                let _entered = span.entered();
                wait();
                let sent = {
                    let step = info_span!("step").entered();
                    wait();
                    tracing::info!(name, "shipped");
                    otlp::traceparent(&step)
                };
                wait();
                sent
            }
        };
        let traced = osier::spawn_local(order("traced"));
        let other = osier::spawn_local(order("other"));
        osier::spawn_local(|| osier::block_on(async { wait() }.instrument(info_span!("task"))))
            .join()
            .unwrap();
        (traced.join().unwrap().unwrap(), other.join().unwrap().unwrap())
    });
    provider.force_flush().unwrap();
    let mut got: Vec<(String, Got)> = Vec::new();
    while got.len() < 5 {
        let body = batches.recv_timeout(Duration::from_secs(20)).expect("all spans come");
        got.extend(spans(&body));
    }
    provider.shutdown().unwrap();
    let one = |name: &str| {
        let found: Vec<_> = got.iter().filter(|(known, _)| known == name).collect();
        assert_eq!(found.len(), 1, "{name}: {got:?}");
        found[0].1.clone()
    };
    let (traced, other, task) = (one("traced"), one("other"), one("task"));
    assert_eq!((&*traced.trace, &*traced.parent), (&incoming[3..35], &incoming[36..52]));
    assert!(
        other.trace != traced.trace && other.parent.is_empty() && task.parent.is_empty(),
        "{got:?}"
    );
    // Each step lies in the span of its own fiber, though both fibers waited in theirs.
    let steps: Vec<&Got> = got
        .iter()
        .filter(|(name, _)| name == "step")
        .map(|(_, got)| got)
        .collect();
    assert_eq!(steps.len(), 2);
    for (order, sent) in [(&traced, &sent.0), (&other, &sent.1)] {
        let step = steps
            .iter()
            .find(|step| step.parent == order.id)
            .expect("a step below its order");
        assert_eq!(step.trace, order.trace);
        assert_eq!(*sent, format!("00-{}-{}-01", step.trace, step.id));
        assert_eq!(step.events, ["shipped"]);
        assert!(
            step.nanos >= 2_000_000 && order.nanos >= 6_000_000,
            "{step:?} {order:?}"
        );
        assert_eq!(step.service, "shop");
    }
}

#[test]
fn a_bad_parent_is_left_out() {
    let span = tracing::Span::none();
    for bad in [
        "",
        "00-x-y-z",
        "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-0-0-0",
    ] {
        assert!(!otlp::set_parent(&span, bad), "{bad}");
    }
    assert_eq!(otlp::traceparent(&span), None);
}
