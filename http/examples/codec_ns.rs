//! Prints what the codec costs per request: `cargo run --release -p osier-http --example codec_ns`.
//!
//! Each figure is the best of several rounds on one core, in nanoseconds; the input is hot in the cache.

use std::hint::black_box;
use std::time::Instant;

use osier_http::h2::hpack::{Decoder, Encoder, FieldLimits};
use osier_http::{
    BodyDecoder, BodyLength, DateLine, Exchange, Head, HeadScanner, HeadWriter, HeaderError, Limits, Method,
    ResponseBody, Slots, Version,
};

const SMALL: &[u8] = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

const BROWSER: &[u8] = b"GET /articles/2026/index.html?page=2 HTTP/1.1\r\nHost: www.example.org\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
Referer: https://www.example.org/articles/\r\nConnection: keep-alive\r\n\
Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\nUpgrade-Insecure-Requests: 1\r\n\
Sec-Fetch-Dest: document\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Site: same-origin\r\n\r\n";

fn main() {
    let limits = Limits::default();
    for (name, request) in [("small", SMALL), ("browser", BROWSER)] {
        let pipelined = request.repeat(16);
        println!("{name}: {} bytes", request.len());
        measure("  scan", 16, || {
            each_head(&pipelined, &limits, |_| {});
        });
        measure("  scan + parse", 16, || {
            each_head(&pipelined, &limits, |bytes| {
                let mut slots: Slots = Slots::new();
                let head = Head::parse(bytes, &mut slots, &limits).expect("the request is good");
                black_box(&head);
            });
        });
    }

    println!("chunked body: 64 chunks of 1000 bytes");
    let mut body = Vec::new();
    for _ in 0..64 {
        osier_http::write_chunk(&mut body, &[b'x'; 1000]);
    }
    body.extend_from_slice(osier_http::LAST_CHUNK);
    measure("  decode, per chunk", 64, || {
        let mut decoder = BodyDecoder::new(BodyLength::Chunked, &limits).expect("no length to refuse");
        let mut at = 0;
        while !decoder.is_done() {
            at += decoder
                .decode(black_box(&body[at..]), usize::MAX)
                .expect("the body is good")
                .consumed;
        }
    });

    println!("response: 200 with content-type, date and 12 bytes");
    let date = DateLine::new(b"Sun, 06 Nov 1994 08:49:37 GMT").expect("a date has no control characters");
    let exchange = Exchange::new(Method::Get, Version::Http11, true);
    let mut out = Vec::with_capacity(64 << 10);
    measure("  write", 16, || {
        out.clear();
        for _ in 0..16 {
            write_hello(black_box(&mut out), black_box(exchange), &date).expect("the fields are good");
        }
    });

    measure_fields();
}

/// The field compression of HTTP/2: a head that the tables do not have, and one that they have.
fn measure_fields() {
    let fields = browser_fields();
    let (mut literal, mut indexed) = (Encoder::new(0), Encoder::new(4096));
    println!("field block of the browser's head");
    for (name, encoder) in [("  decode, literal", &mut literal), ("  decode, indexed", &mut indexed)] {
        let limits = FieldLimits {
            bytes: 32 << 10,
            fields: 100,
        };
        let (mut decoder, mut block) = (Decoder::new(limits), Vec::new());
        // A field enters the table when it is sent for the second time.
        for _ in 0..3 {
            block.clear();
            encode(encoder, &mut block, &fields);
            decoder.decode(&block, true, &mut |_, _| {}).expect("the block is good");
        }
        measure(name, 1, || {
            let mut field = |name: &[u8], value: &[u8]| {
                black_box((name, value));
            };
            let status = decoder.decode(black_box(&block), true, &mut field);
            black_box(status.expect("the block is good"));
        });
    }

    println!("field block of a response with six fields");
    let response: Vec<(&str, &str)> = vec![
        ("server", "osier"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("content-type", "text/html; charset=utf-8"),
        ("content-length", "1234"),
        ("etag", "\"18c-5f0f2b7a4c280\""),
        ("cache-control", "max-age=3600"),
    ];
    let (mut encoder, mut block) = (Encoder::new(1024), Vec::new());
    measure("  encode", 1, || {
        block.clear();
        encode(&mut encoder, &mut block, black_box(&response));
    });
}

/// The fields of `BROWSER` as HTTP/2 has them.
fn browser_fields() -> Vec<(&'static str, &'static str)> {
    let head = std::str::from_utf8(BROWSER).expect("the head is ASCII");
    let lines = head.lines().skip(2).filter_map(|line| line.split_once(": "));
    let fields = lines.filter(|(name, _)| *name != "Connection");
    let names = [
        "user-agent",
        "accept",
        "accept-language",
        "accept-encoding",
        "referer",
        "cookie",
    ];
    let more = [
        "upgrade-insecure-requests",
        "sec-fetch-dest",
        "sec-fetch-mode",
        "sec-fetch-site",
    ];
    let values = fields.map(|(_, value)| value);
    let mut all = vec![
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/articles/2026/index.html?page=2"),
        (":authority", "www.example.org"),
    ];
    all.extend(names.into_iter().chain(more).zip(values));
    all
}

fn encode(encoder: &mut Encoder, block: &mut Vec<u8>, fields: &[(&str, &str)]) {
    encoder.begin(block);
    for (name, value) in fields {
        encoder.field(block, name.as_bytes(), value.as_bytes());
    }
}

fn each_head(mut bytes: &[u8], limits: &Limits, mut then: impl FnMut(&[u8])) {
    while !bytes.is_empty() {
        let end = HeadScanner::new()
            .scan(black_box(bytes), limits)
            .expect("the head is good")
            .expect("and whole");
        let (head, rest) = bytes.split_at(end);
        then(head);
        bytes = rest;
    }
}

fn write_hello(out: &mut Vec<u8>, exchange: Exchange, date: &DateLine) -> Result<(), HeaderError> {
    let mut head = HeadWriter::begin(out, black_box(200), exchange)?;
    head.date(black_box(date));
    head.header(black_box("content-type"), black_box(b"text/plain"))?;
    head.finish(ResponseBody::Known(black_box(12)));
    out.extend_from_slice(b"hello, world");
    Ok(())
}

fn measure(name: &str, units: u32, mut work: impl FnMut()) {
    const ROUNDS: u32 = 15;
    const TURNS: u32 = 5_000;
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..TURNS {
            work();
        }
        best = best.min(begun.elapsed().as_nanos() as f64 / f64::from(TURNS * units));
    }
    println!("{name:<22}{best:>8.1} ns");
}
