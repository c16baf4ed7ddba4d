//! tokio-tungstenite on tokio's current_thread runtime: each message back to its sender. Argument: PORT.
//!
//! The read buffers have 4 KiB; the library's default is 128 KiB.
#![forbid(unsafe_code)]

use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::accept_async_with_config;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let rt = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // In a task, because tokio polls the future of block_on by other rules.
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

async fn echo(stream: TcpStream) {
    let config = WebSocketConfig::default().read_buffer_size(4096).write_buffer_size(0);
    let Ok(mut socket) = accept_async_with_config(stream, Some(config)).await else {
        return;
    };
    while let Some(Ok(message)) = socket.next().await {
        if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
            return;
        }
    }
}
