//! Counts blank lines on smol, on one thread. Argument: PORT.
#![forbid(unsafe_code)]

use heads::{Heads, RESPONSE};
use smol::io::{AsyncReadExt, AsyncWriteExt};
use std::rc::Rc;

fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("argument: PORT");
    let ex = Rc::new(smol::LocalExecutor::new());
    smol::block_on(ex.run(async {
        let listener = smol::net::TcpListener::bind(("127.0.0.1", port)).await?;
        let responses: Rc<[u8]> = heads::responses().into();
        loop {
            let (mut stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let responses = responses.clone();
            let serve = async move {
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
            };
            ex.spawn(serve).detach();
        }
    }))
}
