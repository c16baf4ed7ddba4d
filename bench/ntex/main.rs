//! ntex with one worker. Argument: PORT.
#![forbid(unsafe_code)]

use ntex::web::{App, HttpResponse, HttpServer, get};

#[get("/")]
async fn hello() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/plain; charset=utf-8")
        .body("Hello, World!")
}

#[ntex::main]
async fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("argument: PORT");
    HttpServer::new(async || App::new().service(hello))
        .workers(1)
        .bind(("127.0.0.1", port))?
        .run()
        .await
}
