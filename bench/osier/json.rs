//! Osier: 1 KiB of JSON, serialised for each request, on one worker. Argument: PORT.
#![forbid(unsafe_code)]

use osier_web::{Json, Router, serve};

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let router = Router::new().get("/json", |_| Json(payload::page()));
    osier::Runtime::builder()
        .workers(1)
        .build()?
        .run(|| serve(("127.0.0.1", port), router))
}
