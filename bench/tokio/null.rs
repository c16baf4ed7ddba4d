//! Counts blank lines on tokio: the cost of its sockets and tasks without a parser. Arguments: PORT [WORKERS]; without WORKERS, on
//! current_thread.
#![forbid(unsafe_code)]

use heads::{Heads, RESPONSE};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("argument: PORT");
    let mut builder = match std::env::args().nth(2) {
        None => tokio::runtime::Builder::new_current_thread(),
        Some(_) => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(workers) = std::env::args().nth(2) {
        builder.worker_threads(workers.parse().expect("a number"));
    }
    builder.enable_io().build()?.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
        let responses: Arc<[u8]> = heads::responses().into();
        loop {
            let (mut stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let responses = responses.clone();
            tokio::spawn(async move {
                let (mut heads, mut buf) = (Heads::default(), vec![0; 16 * 1024]);
                loop {
                    match stream.read(&mut buf).await {
                        Ok(0) | Err(_) => return,
                        Ok(read) => {
                            let bytes = heads.count(&buf[..read]) * RESPONSE.len();
                            if stream.write_all(&responses[..bytes]).await.is_err() {
                                return;
                            }
                        }
                    }
                }
            });
        }
    })
}
