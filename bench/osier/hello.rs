//! Osier: the hello of the bench, on one worker. Argument: PORT.
#![forbid(unsafe_code)]

use osier_web::{Router, serve};

fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("argument: PORT");
    let router = Router::new().get("/", |_| "Hello, World!");
    osier::Runtime::builder()
        .workers(1)
        .build()?
        .run(|| serve(("127.0.0.1", port), router))
}
