//! tokio-tungstenite: a room that sends every message to every guest, with a task for each guest, on current_thread.
//! Argument: PORT.
//!
//! All receivers share the text. The read buffers have 4 KiB; the library's default is 128 KiB.
#![forbid(unsafe_code)]

use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_tungstenite::accept_async_with_config;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let rt = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // Inside a task: the future given to block_on is polled by other rules.
    rt.block_on(rt.spawn(accept(port))).expect("it does not panic")
}

async fn accept(port: u16) -> std::io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let (room, _) = broadcast::channel(1024);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(guest(stream, room.clone()));
    }
}

async fn guest(stream: TcpStream, room: broadcast::Sender<Message>) {
    let config = WebSocketConfig::default().read_buffer_size(4096).write_buffer_size(0);
    let Ok(mut socket) = accept_async_with_config(stream, Some(config)).await else {
        return;
    };
    let mut others = room.subscribe();
    loop {
        tokio::select! {
            message = socket.next() => match message {
                Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => drop(room.send(message)),
                Some(Ok(_)) => {}
                _ => return,
            },
            message = others.recv() => match message {
                Ok(message) => if socket.send(message).await.is_err() { return },
                Err(_) => return,
            },
        }
    }
}
