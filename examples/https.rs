//! Hello over HTTPS. The page says which TLS the browser speaks.
//!
//! ```text
//! openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost \
//!     -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE -keyout key.pem -out chain.pem
//! cargo run --release -p osier-examples --bin https -- chain.pem key.pem [ADDR]
//! curl --cacert chain.pem https://localhost:8443/
//! ```

use std::io;
use std::process::ExitCode;

use osier_web::tls::{Acceptor, Identity};
use osier_web::{Request, Router, Server};

fn hello(request: &mut Request<'_>) -> String {
    let tls = request.tls();
    let version = tls
        .and_then(|tls| tls.version())
        .map_or("no TLS", |version| version.as_str());
    let name = tls
        .and_then(|tls| tls.server_name())
        .unwrap_or("a server without a name");
    format!("hello over {version} from {name}\n")
}

fn serve(args: &[String]) -> io::Result<()> {
    let [chain, key, rest @ ..] = args else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "usage: https CHAIN.PEM KEY.PEM [ADDR]",
        ));
    };
    let addr = rest.first().map_or("127.0.0.1:8443", |addr| addr);
    let identity = Identity::from_pem(&std::fs::read(chain)?, &std::fs::read(key)?)?;
    let acceptor = Acceptor::builder(identity).alpn(["http/1.1"]).build()?;
    osier::run(|| {
        let server = Server::new(Router::new().get("/", hello)).tls(acceptor).bind(addr)?;
        println!("https listens on {}", server.local_addr());
        server.run();
        Ok(())
    })
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match serve(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("https: {error}");
            ExitCode::FAILURE
        }
    }
}
