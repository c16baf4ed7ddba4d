//! A quiet client beside clients that read files from the disk. Arguments: PORT FOLDER READERS MIB MILLISECONDS.
//!
//! The folder gets a file of MIB mebibytes for each reader, `cold-N.bin`, unless it has it. A reader drops its file from the page cache,
//! asks for it, reads all of it, and begins again. The quiet client asks for `/hello` once in a millisecond: for MILLISECONDS alone, then
//! for as long beside the readers.
//!
//! The program prints a line `NAME NUMBER` for each figure: the times of the quiet client in microseconds, and what the readers have read.
//! The quiet client is the first thread. The row gives it real-time priority, so that it waits for the server and not for the readers.
#![forbid(unsafe_code)]

use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(1);
/// The time between the start of the readers and the first request beside them. The disk, or what is below it, gives less in the first two
/// seconds after another server has had the same files.
const WARM_UP: Duration = Duration::from_secs(4);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [port, folder, numbers @ ..] = &args[..] else {
        panic!("arguments: PORT FOLDER READERS MIB MILLISECONDS");
    };
    let numbers: Vec<u64> = numbers.iter().map(|text| text.parse().expect("a number")).collect();
    let ([readers, mib, millis], Ok(port)) = (&numbers[..], port.parse()) else {
        panic!("arguments: PORT FOLDER READERS MIB MILLISECONDS");
    };
    let (bytes, time) = (mib << 20, Duration::from_millis(*millis));
    let files = (0..*readers).map(|number| written(Path::new(folder), number, bytes));
    let files: Vec<PathBuf> = files.collect::<Result<_>>()?;

    print("alone", times(port, time)?);
    let (stop, read) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let reading = |file| read_again(port, file, bytes, &stop, &read);
        let readers: Vec<_> = files.iter().map(|file| scope.spawn(move || reading(file))).collect();
        thread::sleep(WARM_UP);
        let (before, begun) = (read.load(Ordering::Relaxed), Instant::now());
        let beside = times(port, time);
        let read = read.load(Ordering::Relaxed) - before;
        let seconds = begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().expect("it does not panic")?;
        }
        print("beside", beside?);
        println!("read_mb_s {:.1}", read as f64 / seconds / 1e6);
        Ok(())
    })
}

/// A file of so many bytes, on the disk.
fn written(folder: &Path, number: u64, bytes: u64) -> Result<PathBuf> {
    let path = folder.join(format!("cold-{number}.bin"));
    if path.metadata().is_ok_and(|found| found.len() == bytes) {
        return Ok(path);
    }
    let piece: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
    let mut file = File::create(&path)?;
    for _ in 0..bytes >> 20 {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(path)
}

/// Asks for `/hello` once in a while, and returns how long the answers took.
fn times(port: u16, time: Duration) -> Result<Vec<Duration>> {
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port))?);
    stream.get_ref().set_nodelay(true)?;
    let (begun, mut due, mut times) = (Instant::now(), Instant::now(), Vec::new());
    while begun.elapsed() < time {
        due += PAUSE;
        let early = due.saturating_duration_since(Instant::now());
        thread::sleep(early);
        // A request that was due while the client still waited counts from then on, not from when it is sent.
        let asked = if early.is_zero() { due } else { Instant::now() };
        let length = ask(&mut stream, "/hello")?;
        stream.read_exact(&mut vec![0; length as usize])?;
        times.push(asked.elapsed());
    }
    Ok(times)
}

/// Reads the file from the disk, by the server, until it is told to stop.
fn read_again(port: u16, file: &Path, bytes: u64, stop: &AtomicBool, read: &AtomicU64) -> Result<()> {
    let url = format!("/{}", file.file_name().unwrap_or_default().display());
    let file = File::open(file)?;
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port))?);
    let mut piece = vec![0; 256 << 10];
    while !stop.load(Ordering::Relaxed) {
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let mut left = ask(&mut stream, &url)?;
        assert_eq!(left, bytes, "another length than that of the file");
        while left > 0 {
            let room = piece.len().min(left as usize);
            let count = stream.read(&mut piece[..room])?;
            if count == 0 {
                return Err(std::io::Error::other("a file ended early"));
            }
            left -= count as u64;
            read.fetch_add(count as u64, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Sends a request, reads the head of the response, and returns the length of the body.
fn ask(stream: &mut BufReader<TcpStream>, path: &str) -> Result<u64> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes())?;
    let (mut line, mut length) = (String::new(), None);
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Err(std::io::Error::other("closed before a response"));
        }
        if line == "\r\n" {
            return length.ok_or_else(|| std::io::Error::other("a response without Content-Length"));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok();
        }
    }
}

fn print(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: usize| times[(times.len() * part / 1000).min(times.len() - 1)].as_secs_f64() * 1e6;
    println!("{name}_median_us {:.1}", at(500));
    println!("{name}_p99_us {:.1}", at(990));
    println!("{name}_most_us {:.1}", at(1000));
}
