//! axum on tokio's current_thread runtime: hello at `/`, and 1 KiB of JSON at `/json`. Argument: PORT.
#![forbid(unsafe_code)]

use axum::routing::get;
use axum::{Json, Router};

fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("argument: PORT");
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let router = Router::new()
                .route("/", get(|| async { "Hello, World!" }))
                .route("/json", get(|| async { Json(payload::page()) }));
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
            axum::serve(listener, router).await
        })
}
