//! axum on tokio's current_thread runtime: hello at `/`, and 1 KiB of JSON at `/json`. Argument: PORT.
//!
//! hyper serves its router, because `axum::serve` cannot set `pipeline_flush`: pipelined responses would leave one by one.
#![forbid(unsafe_code)]

use axum::routing::get;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;

fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("argument: PORT");
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let router: Router = Router::new()
                .route("/", get(|| async { "Hello, World!" }))
                .route("/json", get(|| async { Json(payload::page()) }));
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let router = TowerToHyperService::new(router.clone());
                tokio::spawn(async move {
                    let connection = http1::Builder::new()
                        .pipeline_flush(true)
                        .serve_connection(TokioIo::new(stream), router);
                    let _ = connection.await;
                });
            }
        })
}
