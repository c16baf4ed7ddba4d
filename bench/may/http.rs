//! may_minihttp: stackful coroutines that may change threads. Argument: PORT.
#![forbid(unsafe_code)]

use may_minihttp::{HttpServer, HttpService, Request, Response};

#[derive(Clone)]
struct Hello;

impl HttpService for Hello {
    fn call(&mut self, _: Request, response: &mut Response) -> std::io::Result<()> {
        response.header("content-type: text/plain; charset=utf-8");
        response.body("Hello, World!");
        Ok(())
    }
}

fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("argument: PORT");
    may::config().set_workers(1);
    let server = HttpServer(Hello).start(("127.0.0.1", port))?;
    let _ = server.join();
    Ok(())
}
