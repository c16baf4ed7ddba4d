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
