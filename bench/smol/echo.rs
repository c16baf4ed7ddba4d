//! smol: sends back what it receives, with a task for each connection, on a LocalExecutor. Argument: PORT.
#![forbid(unsafe_code)]

use smol::LocalExecutor;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::{TcpListener, TcpStream};

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let ex = LocalExecutor::new();
    smol::block_on(ex.run(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            ex.spawn(echo(stream)).detach();
        }
    }))
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
