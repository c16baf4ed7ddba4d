//! The rows of HttpArena's profiles: `examples/arena/` against entries of its repository, which `bench/entries.rs` builds.
//!
//! `bench/arena.lua` makes the requests of a profile in turn. Servers have one core, as in every row, and the database is on the core of the
//! load. nginx and h2o are the installed ones with configurations of the bench, and take part where no program is needed.

use super::{BELOW, Contestant, Row, contestant, sample};
use crate::bench::Plan;
use crate::bench::entries::{self, checkout};
use crate::bench::load::{self, Asked, h2};
use crate::bench::programs::program;
use crate::bench::server::postgres::Postgres;
use crate::bench::server::{Server, nginx};
use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How clients reach a server.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Http,
    Https,
    H2,
}

/// A profile, as far as the servers are concerned.
#[derive(Clone, Copy)]
struct Profile {
    name: &'static str,
    way: Way,
    /// A target to ask for before the load.
    asks: &'static str,
    /// A part of the body for it.
    expects: &'static str,
    /// The entries that have this profile.
    entries: &'static [&'static str],
    /// Whether nginx can have it without a program.
    nginx: bool,
}

const SUM: Profile = Profile {
    name: "baseline",
    way: Way::Http,
    asks: "/baseline11?a=13&b=42",
    expects: "55",
    entries: &["actix", "hyper", "may-minihttp"],
    nginx: false,
};

const PAGE: Profile = Profile {
    name: "json",
    asks: "/json/50?m=6",
    expects: "\"count\":50",
    entries: &["actix"],
    ..SUM
};

const FILE: Profile = Profile {
    name: "static",
    asks: "/static/manifest.json",
    expects: "{",
    entries: &["actix"],
    nginx: true,
    ..SUM
};

const ITEMS: Profile = Profile {
    name: "async-db",
    asks: "/async-db?min=10&max=50&limit=20",
    expects: "\"count\":20",
    entries: &["actix"],
    ..SUM
};

const PROFILES: [Profile; 12] = [
    SUM,
    Profile {
        name: "pipelined",
        asks: "/pipeline",
        expects: "ok",
        nginx: true,
        ..SUM
    },
    // may-minihttp keeps a connection that the client asks it to close.
    Profile {
        name: "limited-conn",
        entries: &["actix", "hyper"],
        ..SUM
    },
    PAGE,
    Profile {
        name: "json-comp",
        ..PAGE
    },
    Profile {
        name: "json-tls",
        way: Way::Https,
        ..PAGE
    },
    Profile {
        name: "upload",
        entries: &["actix"],
        ..SUM
    },
    FILE,
    Profile {
        name: "baseline-h2",
        way: Way::H2,
        asks: "/baseline2?a=13&b=42",
        entries: &["actix", "hyper"],
        ..SUM
    },
    Profile {
        name: "static-h2",
        way: Way::H2,
        entries: &["actix", "hyper"],
        ..FILE
    },
    ITEMS,
    Profile { name: "api-4", ..ITEMS },
];

/// The database of all rows, started by the first that needs it.
type Database = Rc<OnceCell<Result<Postgres, String>>>;

/// No rows without a checkout of HttpArena, whose data all of them serve.
pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let database = Database::default();
    let checkout = checkout().into_iter();
    checkout
        .flat_map(|checkout| PROFILES.map(|profile| row(plan, profile, checkout.clone(), database.clone())))
        .collect()
}

fn row(plan: &Plan, profile: Profile, checkout: PathBuf, database: Database) -> Row<'_> {
    let Profile { name, way, .. } = profile;
    let db = database.clone();
    let folder = checkout.clone();
    let ours = move || under_load(plan, &ours(plan, way, &folder, &url(plan, profile, &db)?)?, profile);
    let entry = |entry: &'static str| {
        let database = database.clone();
        let run = move || {
            let environment = url(plan, profile, &database)?;
            under_load(plan, &start_entry(plan, entry, way, &environment)?, profile)
        };
        contestant(entry, BELOW, run)
    };
    let mut rivals: Vec<Contestant> = profile.entries.iter().copied().map(entry).collect();
    if profile.nginx {
        let run = move || under_load(plan, &start_nginx(plan, way, &checkout)?, profile);
        rivals.push(contestant("nginx", BELOW, run));
    }
    Row {
        name: format!("arena: {name}"),
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        load: &[],
        ours: vec![contestant("osier", None, ours).needs(&["osier-arena"])],
        rivals,
    }
}

/// The environment of a server: the database, for the profiles that ask it.
fn url(plan: &Plan, profile: Profile, database: &Database) -> Result<Vec<OsString>, String> {
    if !["async-db", "api-4"].contains(&profile.name) {
        return Ok(vec![]);
    }
    match database.get_or_init(|| Postgres::start(plan)) {
        Ok(postgres) => Ok(vec![
            format!("DATABASE_URL={}", postgres.url).into(),
            "DATABASE_MAX_CONN=64".into(),
        ]),
        Err(why) => Err(why.clone()),
    }
}

fn ours(plan: &Plan, way: Way, checkout: &Path, environment: &[OsString]) -> Result<Server, String> {
    Server::start(plan, Path::new("env"), |port| {
        let mut args = environment.to_vec();
        args.push(program("osier-arena").into());
        args.extend(["--data".into(), checkout.join("data").into()]);
        args.extend(["--certs".into(), checkout.join("certs").into()]);
        args.push(match way {
            Way::Http => "--http".into(),
            Way::Https => "--https".into(),
            Way::H2 => "--h2".into(),
        });
        args.push(format!("127.0.0.1:{port}").into());
        Ok(args)
    })
}

fn start_entry(plan: &Plan, name: &str, way: Way, environment: &[OsString]) -> Result<Server, String> {
    let port = match way {
        Way::Http => entries::HTTP,
        Way::Https | Way::H2 => entries::H2,
    };
    let binary = entries::built(name)?;
    Server::start_at(plan, port, Path::new("env"), |_| {
        let mut args = environment.to_vec();
        args.push(binary.clone().into());
        Ok(args)
    })
}

/// nginx with one worker, serving the folder of static files with those that were compressed before.
fn start_nginx(plan: &Plan, way: Way, checkout: &Path) -> Result<Server, String> {
    Server::start(plan, Path::new("nginx"), |port| {
        let (data, certs) = (checkout.join("data"), checkout.join("certs"));
        let listen = match way {
            Way::Http => format!("listen 127.0.0.1:{port};"),
            Way::Https | Way::H2 => format!(
                "listen 127.0.0.1:{port} ssl http2; ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {0}/server.crt;\n\
                 ssl_certificate_key {0}/server.key;",
                certs.display()
            ),
        };
        let server = format!(
            "server {{ {listen} location = /pipeline {{ return 200 \"ok\"; }}\n\
             location /static/ {{ root {}; gzip_static on; }} }}",
            data.display()
        );
        nginx::args(plan, nginx::write(&plan.scratch, port, &server)?)
    })
}

fn under_load(plan: &Plan, server: &Server, profile: Profile) -> Result<super::Sample, String> {
    let (scheme, protocol) = spoken(profile.way);
    let body = server.body_by(scheme, protocol, profile.asks)?;
    if !String::from_utf8_lossy(&body).contains(profile.expects) {
        return Err(format!("GET {}: no {} in the body", profile.asks, profile.expects));
    }
    let served = match (profile.way, profile.name) {
        (Way::H2, "static-h2") => {
            let names = std::fs::read_dir(checkout().unwrap_or_default().join("data/static"));
            let names = names.into_iter().flatten().flatten().map(|file| file.file_name());
            let names = names.map(|name| format!("/static/{}", name.display()));
            let plain = names.filter(|name| !name.ends_with(".br") && !name.ends_with(".gz"));
            h2::requests_in_turn(plan, server, &plain.collect::<Vec<_>>())
        }
        (Way::H2, _) => h2::requests(plan, server, profile.asks, true),
        (_, "pipelined") => {
            let asked = Asked {
                pipelined: true,
                ..Asked::path(profile.asks)
            };
            load::requests(plan, server, asked)
        }
        (way, name) => {
            let asked = Asked {
                // One core receives a few gigabytes a second.
                connections: if name == "upload" { 4 } else { 64 },
                tls: way == Way::Https,
                profile: Some(if name == "json-tls" { "json" } else { name }),
                ..Asked::path("/")
            };
            load::requests(plan, server, asked)
        }
    };
    served.map(sample)
}

/// The scheme, and the option of curl for the protocol.
fn spoken(way: Way) -> (&'static str, &'static str) {
    match way {
        Way::Http => ("http", "--http1.1"),
        Way::Https => ("https", "--http1.1"),
        Way::H2 => ("https", "--http2"),
    }
}
