//! monoio: sends back what it receives, with a task for each connection, on one thread. It uses io_uring where the kernel
//! allows it, and epoll elsewhere. Argument: PORT.
#![forbid(unsafe_code)]

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let mut rt = monoio::RuntimeBuilder::<monoio::FusionDriver>::new().build()?;
    rt.block_on(async move {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            monoio::spawn(echo(stream));
        }
    })
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buf = Vec::with_capacity(1024);
    loop {
        let read;
        (read, buf) = stream.read(buf).await;
        if read? == 0 {
            return Ok(());
        }
        let written;
        (written, buf) = stream.write_all(buf).await;
        written?;
        buf.clear();
    }
}
