//! fastwebsockets on hyper and tokio's current_thread runtime: each message back to its sender. Argument: PORT.
#![forbid(unsafe_code)]

use fastwebsockets::{Frame, OpCode, WebSocketError, upgrade};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let rt = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // In a task, because tokio polls the future of block_on by other rules.
    rt.block_on(rt.spawn(accept(port))).expect("it does not panic")
}

async fn accept(port: u16) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(open))
                .with_upgrades();
            let _ = connection.await;
        });
    }
}

async fn open(mut request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, WebSocketError> {
    let (response, socket) = upgrade::upgrade(&mut request)?;
    tokio::spawn(async move {
        let _ = echo(socket).await;
    });
    Ok(response)
}

async fn echo(socket: upgrade::UpgradeFut) -> Result<(), WebSocketError> {
    let mut socket = socket.await?;
    loop {
        let message = socket.read_frame().await?;
        match message.opcode {
            OpCode::Close => return Ok(()),
            OpCode::Text | OpCode::Binary => {
                let answer = Frame::new(true, message.opcode, None, message.payload);
                socket.write_frame(answer).await?;
            }
            _ => {}
        }
    }
}
