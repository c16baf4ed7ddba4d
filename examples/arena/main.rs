//! The application that the public benchmark HttpArena asks for, with the routes of TechEmpower's beside it.
//!
//! ```text
//! cargo run --release --manifest-path examples/arena/Cargo.toml -- --data DIR --certs DIR [--http ADDR] [--https ADDR] [--h2c ADDR] [--h2 ADDR]
//! ```
//!
//! `DIR` of `--data` has `dataset.json` and the folder `static`, that of `--certs` has `server.crt` and `server.key`. Without an address
//! the program listens on the four ports of the benchmark: 8080 for HTTP, 8081 for HTTPS, 8082 for HTTP/2 in the clear and nothing else,
//! 8443 for HTTP/2 over TLS. The last needs certificates, and so does 8081; without them the program leaves both out.
//!
//! `DATABASE_URL` names a PostgreSQL server, and `DATABASE_MAX_CONN` the most connections to it.
//!
//! | file | routes |
//! |---|---|
//! | `sums.rs` | sums of numbers in queries and bodies, lengths of uploads, and the constant answer |
//! | `dataset.rs` | the items of a JSON file, with totals |
//! | `items.rs`, `crud.rs` | items of a table: by price; listed, read, created and changed |
//! | `stack.rs` | items and users behind a gateway that has verified the user |
//! | `techempower.rs` | fortunes and updates |
//! | `echo.rs` | a WebSocket that sends each message back |
//! | `main.rs` | the folder of static files |
//!
//! `gateway.toml` and `production-stack.toml` are configurations of the server `osier` in front of this program. The benchmark wants
//! `meta.json`, the Dockerfile and the compose files of an entry.
#![forbid(unsafe_code)]

mod cache;
mod crud;
mod dataset;
mod echo;
mod items;
mod settings;
mod stack;
mod sums;
mod techempower;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use osier::signal::{Signal, Signals};
use osier_postgres::Pipeline;
use osier_web::compress::Compress;
use osier_web::files::{Files, Options};
use osier_web::http::{StatusCode, Version};
use osier_web::tls::{Acceptor, Identity};
use osier_web::{IntoResponse, Listening, Next, Request, Response, Route, Router, Server};

use crud::Items;
use dataset::Dataset;
use items::Database;
use settings::{Port, Settings};
use stack::Users;

/// Longer than the longest upload of the benchmark.
const UPLOAD_BYTES: u64 = 32 << 20;

fn main() -> ExitCode {
    let settings = Settings::of(std::env::args().skip(1), |name| std::env::var(name).ok());
    let served = settings.and_then(|settings| osier::run(|| serve(&settings)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("arena: {error}");
            ExitCode::from(2)
        }
    }
}

/// Serves all ports until the process gets a signal.
fn serve(settings: &Settings) -> io::Result<()> {
    let signals = Signals::new([Signal::INT, Signal::TERM])?;
    let app = App::open(settings)?;
    let listening: Vec<Listening> = settings
        .ports()
        .map(|(port, addr)| listen(settings, &app, port, addr))
        .collect::<io::Result<_>>()?;
    for server in &listening {
        println!("arena listens on {}", server.local_addr());
    }
    let handles: Vec<_> = listening.iter().map(Listening::handle).collect();
    osier::scope(|scope| {
        for server in listening {
            scope.spawn(move || server.run());
        }
        let signal = signals.recv();
        handles.iter().for_each(|handle| handle.shutdown());
        signal.map(drop)
    })
}

/// Everything that the handlers of all ports share.
struct App {
    files: PathBuf,
    dataset: Dataset,
    database: Database,
    items: Items,
    users: Users,
}

impl App {
    fn open(settings: &Settings) -> io::Result<App> {
        Ok(App {
            files: settings.data.join("static"),
            dataset: Dataset::read(&settings.data.join("dataset.json"))?,
            database: Database(connect(settings)?),
            items: Items::default(),
            users: Users::default(),
        })
    }
}

/// Connects to the database, if there is one. Statements of many requests share a connection, so a few for each worker are enough.
fn connect(settings: &Settings) -> io::Result<Option<Pipeline>> {
    let Some(url) = &settings.database else { return Ok(None) };
    let connections = settings.connections.min(4 * osier::workers());
    Pipeline::connect(url, connections).map(Some).map_err(io::Error::other)
}

fn listen(settings: &Settings, app: &App, port: Port, addr: &str) -> io::Result<Listening> {
    let router = router(app)?;
    let server = match port {
        Port::Http => Server::new(router),
        Port::Https => Server::new(router).tls(acceptor(settings, &["http/1.1"])?),
        Port::H2c => Server::new(router.wrap(http2_only)),
        Port::H2 => Server::new(router).tls(acceptor(settings, &["h2"])?),
    };
    server.bind(addr)
}

fn acceptor(settings: &Settings, protocols: &[&str]) -> io::Result<Acceptor> {
    let pem = |name: &str| {
        let path = settings.certs.join(name);
        std::fs::read(&path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    };
    let identity = Identity::from_pem(&pem("server.crt")?, &pem("server.key")?)?;
    Ok(Acceptor::builder(identity).alpn(protocols.iter().copied()).build()?)
}

/// Refuses HTTP/1.1, for a port that has HTTP/2 alone.
fn http2_only(request: &mut Request<'_>, next: Next<'_>) -> Response {
    match request.version() {
        Version::HTTP_2 => next.run(request),
        _ => StatusCode::HTTP_VERSION_NOT_SUPPORTED.into_response().close(),
    }
}

/// The routes, which are the same on every port.
fn router(app: &App) -> io::Result<Router> {
    let json = || Route::new().get(dataset::page).wrap(Compress::new().wrap());
    let upload = Route::new().post(sums::upload).body_limit(UPLOAD_BYTES);
    Ok(Router::new()
        .get("/pipeline", |_| "ok")
        .get("/baseline11", sums::of_query)
        .post("/baseline11", sums::of_query_and_body)
        .get("/baseline2", sums::of_query)
        .route("/upload", upload)
        .route("/json/{count}", json())
        .get("/async-db", items::by_price)
        .get("/crud/items", crud::list)
        .post("/crud/items", crud::create)
        .get("/crud/items/{id}", crud::read)
        .put("/crud/items/{id}", crud::update)
        .get("/fortunes", techempower::fortunes)
        .get("/updates", techempower::updates)
        .get("/public/baseline", sums::of_query)
        .route("/public/json/{count}", json())
        .get("/api/items/{id}", crud::read)
        .post("/api/items/{id}", stack::update)
        .get("/api/me", stack::me)
        .get("/ws", echo::open)
        .mount("/static", files(&app.files)?.handler())
        .state(app.dataset.clone())
        .state(app.database.clone())
        .state(app.items.clone())
        .state(app.users.clone()))
}

/// The folder of static files. The rules forbid copies in memory, so each response is read from its file. Where a client accepts it, that
/// is the one beside it that was compressed before.
fn files(folder: &Path) -> io::Result<Files> {
    let options = Options {
        in_memory: 0,
        may_be_missing: true,
        ..Options::default()
    };
    Files::with(folder, options)
}
