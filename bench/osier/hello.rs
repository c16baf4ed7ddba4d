//! Osier: the hello of the bench. Arguments: PORT [WORKERS]; without WORKERS, one worker.
#![forbid(unsafe_code)]

use osier_web::{Router, serve};

fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("argument: PORT");
    let workers = std::env::args()
        .nth(2)
        .map_or(1, |text| text.parse().expect("a number"));
    let router = Router::new().get("/", |_| "Hello, World!");
    osier::Runtime::builder()
        .workers(workers)
        .build()?
        .run(|| serve(("127.0.0.1", port), router))
}
