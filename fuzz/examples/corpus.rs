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
    println!("{written} seeds");
    Ok(())
}
