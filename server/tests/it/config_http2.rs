//! The HTTP/2 limits in a configuration: each reaches the connection, as its client sees it in raw frames.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::config_check::mistakes;
use crate::support::sites::Sites;

const SITE: &str = "[[site]]\ndefault = true\n[[site.route]]\nrespond = \"hello\"\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// `GET http://x/` without an entry of the dynamic table.
const GET: &[u8] = &[0x82, 0x86, 0x84, 0x01, 0x01, b'x'];

#[derive(Debug)]
struct Frame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// A client that has sent its preface and `settings`.
struct Client(TcpStream);

impl Client {
    fn connect(sites: &Sites, settings: &[u8]) -> Client {
        let stream = TcpStream::connect(sites.addresses[0]).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut client = Client(stream);
        client.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        client.send(SETTINGS, 0, 0, settings);
        client
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        // The server may have closed the connection. The frames that it sent before say why.
        let _ = self.0.write_all(&frame(kind, flags, stream, payload));
    }

    /// The next frame. None at the end of the connection.
    fn receive(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.0.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        Some(Frame {
            kind: head[3],
            stream,
            payload,
        })
    }

    /// The next frame of this kind.
    fn until(&mut self, kind: u8) -> Frame {
        let mut seen = Vec::new();
        while let Some(frame) = self.receive() {
            if frame.kind == kind {
                return frame;
            }
            seen.push(frame);
        }
        panic!("no frame {kind} among {seen:?}")
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().unwrap())
}

/// A server whose listener has these HTTP/2 limits.
fn sites(limits: &str) -> Sites {
    Sites::start(&format!(
        "[[listen]]\naddress = \"127.0.0.1:0\"\nhttp2 = {{ {limits} }}\n{SITE}"
    ))
}

#[test]
fn the_settings_of_a_connection_are_those_of_the_file() {
    let sites = Sites::start(&format!(
        "[[listen]]\naddress = \"127.0.0.1:0\"\nhead.bytes = \"20KiB\"\n[listen.http2]\nmax_streams = 7\nstream_window = 70000\n\
         connection_window = \"1MiB\"\ngrowth = \"4MiB\"\nmax_frame = 20000\ndecoder_table = 5000\nextended_connect = false\n{SITE}"
    ));
    let mut client = Client::connect(&sites, &[]);
    let frame = client.until(SETTINGS);
    let (settings, rest) = frame.payload.as_chunks::<6>();
    assert!(rest.is_empty());
    let of = |id: u8| {
        let mut found = settings.iter().filter(|setting| setting[..2] == [0, id]);
        found.next().map(|setting| number(&setting[2..]))
    };
    let names = [1, 3, 4, 5, 6].map(of);
    assert_eq!(
        names,
        [5_000, 7, 70_000, 20_000, 20 << 10].map(Some),
        "table, streams, window, frame, list"
    );
    assert!(matches!(of(8), None | Some(0)), "{:?}", of(8));
    let update = client.until(WINDOW_UPDATE);
    assert_eq!((update.stream, number(&update.payload)), (0, (1 << 20) - 65_535));
}

#[test]
fn work_without_progress_is_bounded_as_the_file_says() {
    // A PING costs 10 units.
    for (limits, answered) in [
        ("frame_burst = 45, frame_rate = 1", 4),
        ("frame_burst = 95, frame_rate = 1", 9),
    ] {
        let sites = sites(limits);
        let mut client = Client::connect(&sites, &[]);
        client.until(SETTINGS);
        for _ in 0..12 {
            client.send(PING, 0, 0, &[7; 8]);
        }
        let mut pongs = 0;
        let code = loop {
            match client.receive().expect("a GOAWAY") {
                Frame { kind: PING, .. } => pongs += 1,
                Frame {
                    kind: GOAWAY, payload, ..
                } => break number(&payload[4..8]),
                _ => {}
            }
        };
        // The SETTINGS frame of the client costs 10 as well.
        assert_eq!((pongs, code), (answered - 1, 11), "{limits}");
    }
    // A high rate makes up for the low burst.
    let sites = sites("frame_burst = 45, frame_rate = 1000000000");
    let mut client = Client::connect(&sites, &[]);
    for _ in 0..12 {
        client.send(PING, 0, 0, &[7; 8]);
        client.until(PING);
    }
}

#[test]
fn resets_are_bounded_as_the_file_says() {
    let reset = |client: &mut Client, id: u32| {
        let both = [frame(HEADERS, 5, id, GET), frame(RST_STREAM, 0, id, &[0, 0, 0, 8])].concat();
        let _ = client.0.write_all(&both);
    };
    let low = sites("reset_burst = 3, reset_rate = 1");
    let mut client = Client::connect(&low, &[]);
    (0..12).for_each(|index| reset(&mut client, 2 * index + 1));
    let goaway = client.until(GOAWAY);
    assert_eq!(number(&goaway.payload[4..8]), 11, "ENHANCE_YOUR_CALM");
    // A high rate makes up for the low burst.
    let high = sites("reset_burst = 3, reset_rate = 1000000000");
    let mut client = Client::connect(&high, &[]);
    for index in 0..12 {
        reset(&mut client, 2 * index + 1);
        client.send(PING, 0, 0, &[7; 8]);
        client.until(PING);
    }
}

#[test]
fn the_memory_of_heads_and_the_table_of_sent_fields_are_those_of_the_file() {
    // A head of 1.5 KB does not fit.
    let long = [GET, &[0x00, 0x01, b'a', 0x7f, 0xd9, 0x0a], &[b'b'; 1_496][..]].concat();
    for (bytes, kind) in [("1KiB", RST_STREAM), ("4KiB", HEADERS)] {
        let sites = sites(&format!("heads_bytes = \"{bytes}\""));
        let mut client = Client::connect(&sites, &[]);
        client.send(HEADERS, 5, 1, &long);
        let reply = loop {
            let frame = client.receive().expect("a reply");
            if frame.stream == 1 {
                break frame;
            }
        };
        assert_eq!(reply.kind, kind, "{bytes}");
        if kind == RST_STREAM {
            assert_eq!(number(&reply.payload), 7, "REFUSED_STREAM");
        }
    }
    // With a table the second response names the fields of the first one.
    for (bytes, is_shorter) in [("1KiB", true), ("0", false)] {
        let sites = sites(&format!("encoder_table = \"{bytes}\"").replace("\"0\"", "0"));
        let mut client = Client::connect(&sites, &[]);
        let mut lengths = [1, 3].map(|id| {
            client.send(HEADERS, 5, id, GET);
            client.until(HEADERS).payload.len()
        });
        if !is_shorter {
            // The first head says that there is no table.
            lengths[0] -= 1;
        }
        assert_eq!(lengths[1] < lengths[0], is_shorter, "{bytes}: {lengths:?}");
    }
}

#[test]
fn tunnels_have_as_much_room_of_their_own_as_the_file_says() {
    // `CONNECT ws://x/chat` without an entry of the dynamic table.
    let mut head = vec![0x86, 0x02, 7];
    head.extend(b"CONNECT");
    head.extend([0x04, 5]);
    head.extend(b"/chat");
    head.extend([0x01, 1, b'x']);
    for (name, value) in [
        (":protocol", "websocket"),
        ("sec-websocket-version", "13"),
        ("origin", "http://x"),
    ] {
        for text in [name, value] {
            head.extend((text == name).then_some(0));
            head.push(u8::try_from(text.len()).unwrap());
            head.extend(text.as_bytes());
        }
    }
    let site = SITE.replace("respond = \"hello\"", "path = \"/chat\"\nchat = {}");
    for most in 0..=2 {
        let sites = Sites::start(&format!(
            "[[listen]]\naddress = \"127.0.0.1:0\"\nhttp2 = {{ max_streams = 7, max_tunnels = {most} }}\n{site}"
        ));
        let mut client = Client::connect(&sites, &[]);
        client.until(SETTINGS);
        client.send(SETTINGS, 1, 0, &[]);
        let mut room = Vec::new();
        for id in [1, 3, 5] {
            client.send(HEADERS, 4, id, &head);
            client.until(HEADERS);
            client.send(PING, 0, 0, &[7; 8]);
            loop {
                match client.receive().expect("a PING") {
                    Frame { kind: PING, .. } => break,
                    Frame {
                        kind: SETTINGS,
                        payload,
                        ..
                    } if !payload.is_empty() => {
                        assert_eq!(payload[..2], [0, 3], "SETTINGS_MAX_CONCURRENT_STREAMS");
                        room.push(number(&payload[2..]));
                        client.send(SETTINGS, 1, 0, &[]);
                    }
                    _ => {}
                }
            }
        }
        assert_eq!(room, (8..8 + most).collect::<Vec<u32>>());
    }
}

#[test]
fn more_streams_have_more_memory_for_heads() {
    // One head of 600 KB shows how much there is.
    let long = [GET, &[0x00, 0x01, b'a', 0x7f, 0xc1, 0xce, 0x24], &[b'b'; 600_000][..]].concat();
    for (limits, kind) in [
        ("max_streams = 100", RST_STREAM),
        ("max_streams = 300", HEADERS),
        ("max_streams = 300, heads_bytes = \"512KiB\"", RST_STREAM),
    ] {
        let sites = Sites::start(&format!(
            "[[listen]]\naddress = \"127.0.0.1:0\"\nhead.bytes = \"1MiB\"\nhttp2 = {{ {limits}, max_frame = 1000000 }}\n{SITE}"
        ));
        let mut client = Client::connect(&sites, &[]);
        client.until(SETTINGS);
        // Long frames may follow the acknowledgement.
        client.send(SETTINGS, 1, 0, &[]);
        client.send(HEADERS, 5, 1, &long);
        let reply = loop {
            let frame = client.receive().expect("a reply");
            if frame.stream == 1 {
                break frame;
            }
        };
        assert_eq!(reply.kind, kind, "{limits}");
    }
}

#[test]
fn the_output_of_a_connection_is_that_of_the_file() {
    // The windows and the frames of the client are large. A body gets at least 16 KiB of the output at once.
    for output in ["1KiB", "64KiB"] {
        let (folder, size) = (Sites::folder(), 40_000);
        folder.write("www/large.bin", "x".repeat(size));
        let sites = Sites::start_in(
            folder,
            &format!(
                "[[listen]]\naddress = \"127.0.0.1:0\"\nhttp2 = {{ output_bytes = \"{output}\" }}\n[[site]]\ndefault = true\n\
                 [[site.route]]\nfiles = \"www\"\n"
            ),
        );
        let mut client = Client::connect(&sites, &[0, 4, 0, 0x10, 0, 0, 0, 5, 0, 1, 0, 0]);
        client.send(
            HEADERS,
            5,
            1,
            &[&[0x82, 0x86, 0x04, 10], &b"/large.bin"[..], &[0x01, 0x01, b'x']].concat(),
        );
        let (mut longest, mut sum) = (0, 0);
        while sum < size {
            let frame = client.until(DATA);
            (longest, sum) = (longest.max(frame.payload.len()), sum + frame.payload.len());
        }
        assert_eq!(sum, size);
        assert_eq!(longest <= 16 << 10, output == "1KiB", "{output}: {longest}");
    }
}

#[test]
fn mistakes_of_http2_have_their_places() {
    let listen = "[[listen]]\naddress = \"127.0.0.1:1\"\n";
    for (value, said) in [
        ("7", "'http2' must be true or false, not the number 7"),
        (
            "{ max_streams = 0 }",
            "'max_streams' must be a whole number from 1 to 1000000, not the number 0",
        ),
        (
            "{ max_frame = \"1KiB\" }",
            "'max_frame' must be a size from 16384 to 16777215 bytes, not 1024",
        ),
        (
            "{ connection_window = 1 }",
            "'connection_window' must be a size from 65535 to 2147483647 bytes, not 1",
        ),
        ("{ max_stream = 1 }", "did you mean 'max_streams'?"),
    ] {
        let found = mistakes(&format!("{listen}http2 = {value}\n{SITE}"));
        assert!(found.len() == 1 && found[0].contains(said), "{value}: {found:?}");
        assert!(found[0].starts_with("3:"), "{found:?}");
    }
}
