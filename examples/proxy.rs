//! A reverse proxy. It serves `/proxy` itself and forwards everything else to the backends, WebSockets too. A backend is `host:port`
//! or `unix:/path`.
//!
//! ```text
//! cargo run --release -p osier-examples --bin proxy -- [ADDR [BACKEND...]]
//! ```

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use osier_web::proxy::Proxy;
use osier_web::upstream::Upstream;
use osier_web::{Address, Request, Router, wrap};

mod start;

fn main() -> ExitCode {
    start::serve("proxy", |args| {
        let invalid = |error: String| io::Error::new(io::ErrorKind::InvalidInput, error);
        let default = ["127.0.0.1:3000".to_owned()];
        let names = if args.is_empty() { &default[..] } else { args };
        let backends = names.iter().map(|name| {
            let address = name.parse::<Address>();
            address.map_err(|error| invalid(format!("{name}: {error}")))
        });
        let upstream = Upstream::builder("backends")
            .backends(backends.collect::<io::Result<Vec<_>>>()?)
            .connect_timeout(Duration::from_secs(3))
            .build()?;
        let names = names.join(", ");
        let about = move |_: &mut Request<'_>| format!("in front of {names}\n");
        Ok(Router::new()
            .get("/proxy", about)
            .fallback(Proxy::new(upstream).handler())
            .wrap(wrap::request_id("x-request-id")))
    })
}
