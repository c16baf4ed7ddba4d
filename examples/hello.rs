//! The smallest web server.
//!
//! ```text
//! cargo run --release -p osier-examples --bin hello -- [ADDR [WORKERS]]
//! ```

use std::process::ExitCode;
use std::{env, io};

use osier_web::{Request, Router, Server};

fn greet(request: &mut Request<'_>) -> String {
    format!("Hello, {}!\n", request.param("name").unwrap_or_default())
}

fn run(addr: &str, workers: Option<&str>) -> io::Result<()> {
    let mut runtime = osier::Runtime::builder();
    if let Some(workers) = workers {
        let invalid = |_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("WORKERS is not a number: {workers:?}"),
            )
        };
        runtime = runtime.workers(workers.parse().map_err(invalid)?);
    }
    let router = Router::new().get("/", |_| "Hello, World!").get("/{name}", greet);
    runtime.build()?.run(|| {
        let listening = Server::new(router).bind(addr)?;
        println!("hello on http://{}/", listening.local_addr());
        listening.run();
        Ok(())
    })
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let addr = args.first().map_or("127.0.0.1:8080", String::as_str);
    match run(addr, args.get(1).map(String::as_str)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hello: {error}");
            ExitCode::from(2)
        }
    }
}
