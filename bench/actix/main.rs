//! actix-web with one worker: hello at `/`, and 1 KiB of JSON at `/json`. Argument: PORT.
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
    let json = || async { web::Json(payload::page()) };
    let app = move || {
        App::new()
            .route("/", web::get().to(hello))
            .route("/json", web::get().to(json))
    };
    HttpServer::new(app).workers(1).bind(("127.0.0.1", port))?.run().await
}
