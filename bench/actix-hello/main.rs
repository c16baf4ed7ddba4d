//! actix-web with one worker: hello. Argument: PORT.
#![forbid(unsafe_code)]

use actix_web::{App, HttpResponse, HttpServer, web};

#[actix_web::main]
async fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("argument: PORT");
    let hello = || async {
        HttpResponse::Ok()
            .content_type("text/plain; charset=utf-8")
            .body("Hello, World!")
    };
    let app = move || App::new().route("/", web::get().to(hello));
    HttpServer::new(app).workers(1).bind(("127.0.0.1", port))?.run().await
}
