//! tokio: sends back what it receives, with a task for each connection. Arguments: PORT [WORKERS]; without WORKERS, on current_thread.
#![forbid(unsafe_code)]

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let mut builder = match std::env::args().nth(2) {
        None => tokio::runtime::Builder::new_current_thread(),
        Some(_) => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(workers) = std::env::args().nth(2) {
        builder.worker_threads(workers.parse().expect("a number"));
    }
    let rt = builder.enable_io().build()?;
    // Inside a task: the future given to block_on is polled by other rules.
    rt.block_on(rt.spawn(accept(port))).expect("it does not panic")
}

async fn accept(port: u16) -> std::io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(echo(stream));
    }
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buf = [0; 1024];
    loop {
        match stream.read(&mut buf).await? {
            0 => return Ok(()),
            n => stream.write_all(&buf[..n]).await?,
        }
    }
}
