//! Writes the seeds of every target from the test vectors of `http/`: `cargo run --example corpus`, in this directory.

#[path = "../../http/tests/table/mod.rs"]
mod table;

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut written = 0;
    for (name, bytes, _) in table::VECTORS {
        let name: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '+' { c } else { '-' })
            .collect();
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
    for (name, records) in FASTCGI {
        let directory = corpus.join("fastcgi");
        fs::create_dir_all(&directory)?;
        written += 1;
        fs::write(directory.join(name), records.concat())?;
    }
    println!("{written} seeds");
    Ok(())
}

/// Answers of an application, record by record.
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

const STDOUT_END: &[u8] = b"\x01\x06\0\x01\0\0\0\0";
const END: &[u8] = b"\x01\x03\0\x01\0\x08\0\0\0\0\0\x07\0\0\0\0";
