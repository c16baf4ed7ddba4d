//! axum on tokio's current_thread runtime: hello, as its documentation has it. Argument: PORT.
#![forbid(unsafe_code)]

use axum::Router;
use axum::routing::get;

fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("argument: PORT");
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let router = Router::new().route("/", get(|| async { "Hello, World!" }));
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
            axum::serve(listener, router).await
        })
}
