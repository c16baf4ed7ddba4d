//! Writes the seeds of every target from the test vectors of `http/` and `web/`. Run `cargo run --example corpus` in this folder.

#[path = "../../http/tests/it/table.rs"]
mod table;

#[path = "../../http/tests/it/reply_table.rs"]
mod reply_table;

#[path = "../../web/tests/it/ws_table/mod.rs"]
#[allow(dead_code)] // the expected results
mod ws_table;

use std::{fs, io, path::Path};

use testkit::websocket::masked;

/// Paths, each with the name of its unusual spelling.
const PATHS: [(&str, &str); 6] = [
    ("plain", "/a/b.c"),
    ("slashes", "//a%2F/%2f//"),
    ("dots", "/a%2f..%5c.;x/%2e"),
    ("percent", "/%2561%25"),
    ("beyond-ascii", "/caf\u{e9}/%c3%a9%FF"),
    ("bad-escape", "/a%zz"),
];

/// Messages of an upgrade: heads without their checksums, which the target sets, and contents.
const UPGRADE: [(&str, [&[u8]; 2]); 4] = [
    ("hello", [b"\x0e\0\0\0\x01\0\0\0\0\0\0\0", b"osier-up\x02\0\x2a\0\0\0"]),
    (
        "item",
        [b"\x0d\0\0\0\x02\x02\0\0\0\0\0\0", b"\x03\0\0\0web\x02\0\0\0ab"],
    ),
    ("ready", [b"\x0b\0\0\0\x04\0\0\0\0\0\0\0", b"\x01\0\0\0\x03\0\0\0web"]),
    (
        "connections",
        [
            b"\x46\0\0\0\x09\x01\0\0\0\0\0\0",
            b"\x01\0\0\0\x01\0\0\0\x03\0\0\0web\x48\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\x01\x1f\x90\0\0\0\0\
              \x03\0\0\0GET\x04\0\0\0chat\x08\0\0\0whatever",
        ],
    ),
];

/// The longest seed, in bytes. A longer one teaches a fuzzer nothing.
const SEED_BYTES: usize = 400;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut written = 0;
    for (name, bytes, _) in table::VECTORS {
        let name = file_name(name);
        let mut seed = |target: &str, bytes: &[u8]| -> io::Result<()> {
            let directory = corpus.join(target);
            fs::create_dir_all(&directory)?;
            written += 1;
            fs::write(directory.join(&name), bytes)
        };
        seed("pipeline", bytes)?;
        match bytes
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .map(|at| bytes.split_at(at + 4))
        {
            Some((head, body)) if head.ends_with(b"Transfer-Encoding: chunked\r\n\r\n") && !body.is_empty() => {
                seed("chunked", body)?;
            }
            Some((head, [])) => seed("head", head)?,
            _ => {}
        }
    }
    for (name, bytes, _) in reply_table::VECTORS {
        let directory = corpus.join("reply");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(file_name(name)), bytes)?;
    }
    for (name, path) in PATHS {
        let directory = corpus.join("path");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(name), path)?;
    }
    for (name, records) in FASTCGI {
        let directory = corpus.join("fastcgi");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(name), records.concat())?;
    }
    for (name, header) in PROXY {
        let directory = corpus.join("proxy_protocol");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(name), header)?;
    }
    for (name, answer) in CGI {
        let directory = corpus.join("cgi");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(name), answer)?;
    }
    for (name, form) in MULTIPART {
        let directory = corpus.join("multipart");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(name), form)?;
    }
    for (name, frames) in H2_FRAMES {
        let directory = corpus.join("h2_frames");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(name), frames.concat())?;
        let directory = corpus.join("h2_connection");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(name), frames.concat())?;
    }
    for (name, frames) in H2_FRAMES.iter().chain(H2_CLIENT) {
        let directory = corpus.join("h2_client");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(name), frames.concat())?;
    }
    for (name, frames) in H2_CONNECTION {
        let directory = corpus.join("h2_connection");
        written += 1;
        fs::write(directory.join(name), frames.concat())?;
    }
    for (name, script) in H2_MESSAGES {
        let directory = corpus.join("h2_messages");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(name), script)?;
    }
    for (name, blocks) in H2_FIELDS {
        let directory = corpus.join("h2_fields");
        fs::create_dir_all(&directory)?;
        written += 1;
        let seed: Vec<u8> = blocks
            .iter()
            .flat_map(|block| [&[block.len() as u8], *block].concat())
            .collect();
        fs::write(directory.join(name), seed)?;
    }
    for (name, frame) in UPGRADE {
        let directory = corpus.join("upgrade");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(name), frame.concat())?;
    }
    for (name, bytes, _) in ws_table::cases() {
        if bytes.len() <= SEED_BYTES {
            let directory = corpus.join("ws");
            fs::create_dir_all(&directory)?;
            written += 1;
            fs::write(directory.join(file_name(&name)), bytes)?;
        }
    }
    println!("{written} seeds");
    Ok(())
}

fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '+' { c } else { '-' };
    name.chars().map(plain).collect()
}

/// Responses of an application, record by record.
const FASTCGI: &[(&str, &[&[u8]])] = &[
    ("hello", &[b"\x01\x06\0\x01\0\x05\x03\0hello\0\0\0", STDOUT_END, END]),
    (
        "stderr-between",
        &[
            b"\x01\x06\0\x01\0\x01\0\0a",
            b"\x01\x07\0\x01\0\x02\x06\0!!\0\0\0\0\0\0",
            b"\x01\x06\0\x01\0\x01\0\0b",
            END,
        ],
    ),
    ("early-end", &[END]),
    (
        "management",
        &[
            b"\x01\x0a\0\0\0\x02\0\0\x01\0",
            b"\x01\x0b\0\0\0\x08\0\0\x63\0\0\0\0\0\0\0",
            END,
        ],
    ),
    (
        "of-another",
        &[b"\x01\x06\0\x02\0\x01\0\0x", b"\x01\x03\0\x02\0\x01\0\0x", END],
    ),
    ("no-fastcgi", &[b"HTTP/1.1 400 Bad Request\r\n\r\n"]),
    ("short-end", &[b"\x01\x03\0\x01\0\x07\0\0\0\0\0\0\0\0\0"]),
];

/// Frames after a client's preface.
#[rustfmt::skip]
const H2_FRAMES: &[(&str, &[&[u8]])] = &[
    ("request-and-body", &[b"\0\0\x03\x01\x04\0\0\0\x01\x83\x86\x84", b"\0\0\x04\0\x01\0\0\0\x01body"]),
    ("padded", &[b"\0\0\x08\x01-\0\0\0\x01\x01\x80\0\0\x05\x10\x82\0", b"\0\0\x08\0\x09\0\0\0\x03\x03body\0\0\0"]),
    ("continuations", &[b"\0\0\x01\x01\x01\0\0\0\x01\x82", b"\0\0\0\x09\0\0\0\0\x01", b"\0\0\x01\x09\x04\0\0\0\x01\x84"]),
    ("settings", &[b"\0\x006\x04\0\0\0\0\0\0\x01\0\0\0\0\0\x02\0\0\0\0\0\x03\0\0\0d\0\x04\x7f\xff\xff\xff\0\x05\0\0@\0\0\x06\0\0@\0\0\x08\0\0\0\x01\0\x09\0\0\0\x01\xab\xcd\0\0\0\x01", b"\0\0\0\x04\x01\0\0\0\0"]),
    ("connection", &[b"\0\0\x08\x06\0\0\0\0\x0012345678", b"\0\0\x08\x06\x01\0\0\0\x0012345678", b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01", b"\0\0\x0d\x07\0\0\0\0\0\0\0\0\x05\0\0\0\x0bdebug"]),
    ("streams", &[b"\0\0\x05\x02\0\0\0\0\x03\x80\0\0\x01\xff", b"\0\0\x01\x02\0\0\0\0\x03\0", b"\0\0\x04\x03\0\0\0\0\x03\0\0\0\x08", b"\0\0\x04\x08\0\0\0\0\x03\0\0\0\0", b"\0\0\x0a\x10\0\0\0\0\0\0\0\0\x07u=2, i", b"\0\0\x083\xff\0\0\0\x09whatever"]),
    ("push", &[b"\0\0\x05\x05\x04\0\0\0\x01\0\0\0\x02\x82"]),
];

/// Frames after a client's preface and settings, for a server that answers.
#[rustfmt::skip]
const H2_CONNECTION: &[(&str, &[&[u8]])] = &[
    ("get", &[b"\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84A\x01a"]),
    ("post-with-trailer", &[b"\0\0\x06\x01\x04\0\0\0\x01\x83\x86\x84\x01\x01a", b"\0\0\x04\0\0\0\0\0\x01body", b"\0\0\x05\x01\x05\0\0\0\x01@\x01x\x01y"]),
    ("content-length", &[b"\0\0\x0a\x01\x04\0\0\0\x01\x83\x86\x84\x01\x01a\x0f\x0d\x014", b"\0\0\x04\0\x01\0\0\0\x01body", b"\0\0\x0a\x01\x04\0\0\0\x03\x83\x86\x84\x01\x01a\x0f\x0d\x012", b"\0\0\x01\0\x01\0\0\0\x03x"]),
    ("two-streams", &[b"\0\0\x06\x01\x04\0\0\0\x01\x83\x86\x84\x01\x01a", b"\0\0\x06\x01\x05\0\0\0\x03\x82\x86\x84A\x01a", b"\0\0\x01\0\x01\0\0\0\x01x", b"\0\0\x04\x08\0\0\0\0\x03\0\0\0\x01"]),
    ("resets", &[b"\0\0\x06\x01\x04\0\0\0\x01\x83\x86\x84\x01\x01a", b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08", b"\0\0\x06\x01\x04\0\0\0\x03\x83\x86\x84\x01\x01a", b"\0\0\x04\x08\0\0\0\0\x03\0\0\0\0"]),
    ("extended-connect", &[b"\0\0#\x01\x04\0\0\0\x01\x02\x07CONNECT\x86\x84\x01\x01a\0\x09:protocol\x09websocket", b"\0\0\x01\0\0\0\0\0\x01x"]),
    ("malformed", &[b"\0\0\x02\x01\x05\0\0\0\x01\x82\x84", b"\0\0\x18\x01\x05\0\0\0\x03\x82\x86\x84A\x01a\0\x0aconnection\x05close", b"\0\0\x0b\x01\x05\0\0\0\x05\x82\x86\x84A\x01a\0\x01X\x01y"]),
    ("cookies", &[b"\0\0\x10\x01\x05\0\0\0\x01\x82\x86\x84A\x01a`\x03a=b`\x03c=d"]),
    ("shut-windows", &[b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0", b"\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84A\x01a", b"\0\0\x04\x08\0\0\0\0\x01\0\0\0\x02"]),
];

/// Frames after a server's settings, for a client with requests on the streams 1, 3, 5 and 7.
#[rustfmt::skip]
const H2_CLIENT: &[(&str, &[&[u8]])] = &[
    ("response", &[b"\0\0\x01\x01\x04\0\0\0\x01\x88", b"\0\0\x05\0\x01\0\0\0\x01hello"]),
    ("trailer", &[b"\0\0\x01\x01\x04\0\0\0\x01\x88", b"\0\0\x05\0\0\0\0\0\x01hello", b"\0\0\x05\x01\x05\0\0\0\x01@\x01x\x01y"]),
    ("interim", &[b"\0\0\x05\x01\x04\0\0\0\x01\x08\x03103", b"\0\0\x01\x01\x05\0\0\0\x01\x89"]),
    ("content-length", &[b"\0\0\x05\x01\x04\0\0\0\x01\x88\x0f\x0d\x015", b"\0\0\x05\0\x01\0\0\0\x01hello", b"\0\0\x05\x01\x04\0\0\0\x03\x88\x0f\x0d\x012", b"\0\0\x01\0\x01\0\0\0\x03x"]),
    ("tunnel", &[b"\0\0\x01\x01\x04\0\0\0\x05\x88", b"\0\0\x01\0\0\0\0\0\x05x", b"\0\0\0\0\x01\0\0\0\x05"]),
    ("of-a-reset-stream", &[b"\0\0\x01\x01\x04\0\0\0\x07\x88", b"\0\0\x01\0\x01\0\0\0\x07x"]),
    ("windows", &[b"\0\0\x04\x08\0\0\0\0\x03\0\0\x10\0", b"\0\0\x04\x08\0\0\0\0\0\0\0\x10\0", b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\x01"]),
    ("refused", &[b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x07", b"\0\0\x08\x07\0\0\0\0\0\0\0\0\x03\0\0\0\0"]),
    ("malformed", &[b"\0\0\x02\x01\x05\0\0\0\x01\x88\x88", b"\0\0\x01\x01\x05\0\0\0\x03\x82"]),
];

/// Scripts: who is the client, the pieces of the transport, and the messages.
#[rustfmt::skip]
const H2_MESSAGES: &[(&str, &[u8])] = &[
    ("our-client", b"\0\x09\x01\x01\x01\x02\0\x01\x03\x02\x04\0\x02\x02\0\x01\x01\x02\0\x01\x03\x02\x04\0\x02\x02\0\x01\x01\x02\0\x01\x03\x02\x04\0\x02\x02\0"),
    ("our-server", b"\x01\xc8\x02\0\0\x01\x04\x05\x05\0\x01\x01\0\0\x01\x04\x05\x05\0\x01\x01\0\0\x01\x04\x05\x05\0\x01\x01\0\0\x01\x04\x05\x05\0\x01\x01\0\0\x01\x04\x05\x05\0\x01\x01\0\0\x01\x04\x05\x05\0\x01\x01"),
    ("long-bodies", b"\0\xff\x02\0\0\0\x08\x01\0\0\0\x08\x01\0\0\0\x08\x01\0\0\0\x08\x01\0\0\0\x08\x01\0\0\0\x08\x01\0\0\0\x08\x01\0\0\0\x08\x01\0\0\0\x08\x01"),
    ("trailers", b"\x01\x03\0\x01\0\0\x03\x03\x02\x01\x01\x02\x02\x01\0\0\x03\x03\x02\x01\x01\x02\x02\x01\0\0\x03\x03\x02\x01\x01\x02\x02\x01\0\0\x03\x03\x02\x01\x01\x02\x02"),
];

/// Field blocks of one connection, in order. The first three rows are of RFC 7541 appendix C.
#[rustfmt::skip]
const H2_FIELDS: &[(&str, &[&[u8]])] = &[
    ("requests", &[b"\x82\x86\x84A\x0fwww.example.com", b"\x82\x86\x84\xbeX\x08no-cache", b"\x82\x87\x85\xbf@\x0acustom-key\x0ccustom-value"]),
    ("requests-with-huffman", &[b"\x82\x86\x84A\x8c\xf1\xe3\xc2\xe5\xf2:k\xa0\xab\x90\xf4\xff", b"\x82\x86\x84\xbeX\x86\xa8\xeb\x10d\x9c\xbf", b"\x82\x87\x85\xbf@\x88%\xa8I\xe9[\xa9}\x7f\x89%\xa8I\xe9[\xb8\xe8\xb4\xbf"]),
    ("responses-with-huffman", &[b"?\xe1\x01H\x82d\x02X\x85\xae\xc3w\x1aKa\x96\xd0z\xbe\x94\x10T\xd4D\xa8 \x05\x95\x04\x0b\x81f\xe0\x82\xa6-\x1b\xffn\x91\x9d)\xad\x17\x18c\xc7\x8f\x0b\x97\xc8\xe9\xae\x82\xaeC\xd3", b"H\x83d\x0e\xff\xc1\xc0\xbf", b"\x88\xc1a\x96\xd0z\xbe\x94\x10T\xd4D\xa8 \x05\x95\x04\x0b\x81f\xe0\x84\xa6-\x1b\xff\xc0Z\x83\x9b\xd9\xabw\xad\x94\xe7\x82\x1d\xd7\xf2\xe6\xc7\xb35\xdf\xdf\xcd[9`\xd5\xaf'\x08\x7f6r\xc1\xab'\x0f\xb5)\x1f\x95\x871`e\xc0\x03\xedN\xe5\xb1\x06=P\x07"]),
    ("sizes", &[b" ?\xe1\x1f@\x01n\x01v\xbe", b"?\x02@\x01n\x01v", b"\x82"]),
    ("never-indexed", &[b"\x10\x08password\x06secret", b"\x1f\x08\x01s"]),
    ("wrong-padding", &[b"\x0f\x0d\x81\0"]),
];

/// Standard output of an application.
const CGI: &[(&str, &str)] = &[
    ("hello", "Content-Type: text/plain\n\nhello"),
    ("crlf", "Status: 404 Not Found\r\nContent-type: text/html\r\n\r\nno"),
    ("local-redirect", "Location: /other?a=1\n\n"),
    (
        "framing",
        "Content-Length: 5\nTransfer-Encoding: chunked\nConnection: X-Hop\nX-Hop: 1\n\nhello",
    ),
    ("two-lengths", "Content-Length: 5\nContent-Length: 6\n\nhello"),
    ("fold", "A: 1\n b\n\n"),
    ("nph", "HTTP/1.1 200 OK\r\nA: 1\r\n\r\n"),
    ("empty", "\n"),
];

/// Forms whose boundary is `cut`.
const MULTIPART: &[(&str, &str)] = &[
    (
        "two",
        "--cut\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--cut\r\nContent-Disposition: form-data; name=b; \
         filename=\"c\\\"d\"\r\nContent-Type: image/png\r\n\r\n\r\n--cu\r\n\r\n--cut--\r\n",
    ),
    ("none", "--cut--"),
    (
        "bare",
        "preamble\r\n--cut \t\r\nContent-Disposition: form-data; name=a\r\n\r\n--cut--epilogue",
    ),
    (
        "encoded",
        "--cut\r\nContent-Transfer-Encoding: base64\r\nContent-Disposition: form-data; name=a\r\n\r\nYQ==\r\n--cut--",
    ),
    (
        "cutter",
        "--cut\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n--cutter\r\n--cut--",
    ),
];

const STDOUT_END: &[u8] = b"\x01\x06\0\x01\0\0\0\0";
const END: &[u8] = b"\x01\x03\0\x01\0\x08\0\0\0\0\0\x07\0\0\0\0";

/// The headers of load balancers.
const PROXY: &[(&str, &[u8])] = &[
    (
        "tcp4",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\nGET / HTTP/1.1\r\n",
    ),
    ("tcp6", b"PROXY TCP6 2001:db8::9 ::1 80 8080\r\n"),
    ("unknown", b"PROXY UNKNOWN what ever\r\n"),
    (
        "v2-4",
        b"\r\n\r\n\0\r\nQUIT\n!\x11\0\x0c\xc0\0\x02\x07\xc63d\x01\xdc\x04\x01\xbb",
    ),
    (
        "v2-6",
        b"\r\n\r\n\0\r\nQUIT\n!!\0$\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    ),
    ("v2-local", b"\r\n\r\n\0\r\nQUIT\n \0\0\0"),
    (
        "v2-tlv",
        b"\r\n\r\n\0\r\nQUIT\n!\x11\0\x15\xc0\0\x02\x07\xc63d\x01\xdc\x04\x01\xbb\x02\0\x03abc\x05\0\0",
    ),
    (
        "v2-crc",
        b"\r\n\r\n\0\r\nQUIT\n!\x11\0\x13\xc0\0\x02\x07\xc63d\x01\xdc\x04\x01\xbb\x03\0\x04abcd",
    ),
    ("v2-6", &zeros::<52>([0x21, 0x21, 0, 36])),
    ("v2-unix", &zeros::<232>([0x21, 0x31, 0, 216])),
];

/// A header of version 2 whose addresses are zeros.
const fn zeros<const N: usize>(head: [u8; 4]) -> [u8; N] {
    let signature = *b"\r\n\r\n\0\r\nQUIT\n";
    let mut header = [0; N];
    let mut at = 0;
    while at < 16 {
        header[at] = if at < 12 { signature[at] } else { head[at - 12] };
        at += 1;
    }
    header
}
