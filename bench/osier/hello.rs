//! Ours: the hello of the bench, one worker. Argument: PORT.
#![forbid(unsafe_code)]

use osier_web::{Router, Server};

fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("argument: PORT");
    let router = Router::new().get("/", |_: &mut osier_web::Request| "Hello, World!");
    Server::new(router).workers(1).serve(("127.0.0.1", port))
}
