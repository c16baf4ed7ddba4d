//! The rows of HttpArena's profiles: `examples/arena/` against entries of its repository, which `bench/entries.rs` builds.
//!
//! The requests, and how many of them a connection makes, are those of that repository's own load. Servers have one core, as in every row;
//! the database and the authentication server are on the core of the load. Two profiles have a server in front of the application: `osier`
//! and nginx, in front of the same one, and the figure is that of both together. Entries keep the cipher suites and the compiler flags that
//! they have there.

use super::{BELOW, Contestant, Row, contestant, sample};
use crate::bench::Plan;
use crate::bench::entries::{self, checkout};
use crate::bench::load::h2::{self, Streams};
use crate::bench::load::{self, Asked, Served};
use crate::bench::programs::{SERVER, osier, program};
use crate::bench::server::postgres::Postgres;
use crate::bench::server::{Server, nginx};
use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How clients reach a server.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Http,
    Https,
    H2c,
    H2,
}

/// The load of a profile.
#[derive(Clone, Copy)]
enum Load {
    /// Requests of these files, on so many connections of so many requests each; 0 is any number. A name that ends with a star stands for
    /// all files that begin like that.
    Raw(&'static [&'static str], usize, usize),
    /// The target, on 64 connections.
    Target,
    /// The target, 16 at a time.
    Pipelined,
    /// The requests of a script of wrk.
    Script(&'static str),
    /// The target, on many streams.
    Streams,
    /// The targets of a file, on so many connections of so many streams. A server that compresses on the fly held 17 GB for 6,400 streams.
    /// The content codings that clients accept come last.
    Targets(&'static str, usize, usize, Option<&'static str>),
    /// Messages over so many WebSockets.
    Echoes(usize),
    /// Two files of targets at once: one that is read and one that is written, by a user.
    ReadsAndWrites,
}

/// A profile: its load, and the entries that have it.
#[derive(Clone, Copy)]
struct Profile {
    name: &'static str,
    way: Way,
    /// A target to ask for before the load.
    asks: &'static str,
    /// A part of the body for it.
    expects: &'static str,
    load: Load,
    entries: &'static [&'static str],
    /// Whether the servers ask the database.
    database: bool,
    /// The configurations of `osier` and of nginx in front of the application.
    edge: Option<(&'static str, &'static str)>,
}

const SUMS: &[&str] = &["get.raw", "post_cl.raw", "post_chunked.raw"];

const SUM: Profile = Profile {
    name: "baseline",
    way: Way::Http,
    asks: "/baseline11?a=13&b=42",
    expects: "55",
    load: Load::Raw(SUMS, 64, 0),
    entries: &["actix", "hyper", "may-minihttp", "nginx", "h2o"],
    database: false,
    edge: None,
};

const SUM_BY_H2: Profile = Profile {
    name: "baseline-h2",
    way: Way::H2,
    asks: "/baseline2?a=13&b=42",
    load: Load::Streams,
    entries: &["actix", "hyper", "nginx", "h2o"],
    ..SUM
};

const PAGE: Profile = Profile {
    name: "json",
    asks: "/json/50?m=6",
    expects: "\"count\":50",
    load: Load::Raw(&["json-?.raw", "json-??.raw"], 64, 25),
    entries: &["actix"],
    ..SUM
};

const FILE: Profile = Profile {
    name: "static",
    asks: "/static/manifest.json",
    expects: "{",
    load: Load::Script("static-rotate.lua"),
    entries: &["actix", "nginx"],
    ..SUM
};

const ITEMS: Profile = Profile {
    name: "async-db",
    asks: "/async-db?min=10&max=50&limit=20",
    expects: "\"count\":20",
    load: Load::Raw(&["async-db-?.raw", "async-db-??.raw"], 64, 25),
    entries: &["actix"],
    database: true,
    ..SUM
};

const GATEWAY: Profile = Profile {
    name: "gateway-64",
    load: Load::Targets("gateway-64-uris.txt", 4, 32, Some(ACCEPTED)),
    entries: &[],
    database: true,
    edge: Some(("gateway.toml", "proxy/nginx.conf")),
    ..SUM_BY_H2
};

const PROFILES: [Profile; 20] = [
    SUM,
    Profile {
        name: "pipelined",
        asks: "/pipeline",
        expects: "ok",
        load: Load::Pipelined,
        ..SUM
    },
    Profile {
        name: "limited-conn",
        load: Load::Raw(SUMS, 64, 10),
        ..SUM
    },
    PAGE,
    Profile {
        name: "json-comp",
        load: Load::Raw(&["json-gzip-??.raw"], 64, 25),
        ..PAGE
    },
    Profile {
        name: "json-tls",
        way: Way::Https,
        load: Load::Script("json-tls-rotate.lua"),
        ..PAGE
    },
    Profile {
        name: "upload",
        // One core receives a few gigabytes a second.
        load: Load::Raw(
            &["upload-500k.raw", "upload-2m.raw", "upload-10m.raw", "upload-20m.raw"],
            4,
            5,
        ),
        entries: &["actix"],
        ..SUM
    },
    FILE,
    ITEMS,
    Profile {
        name: "crud",
        asks: "/crud/items/7",
        expects: "\"id\":7,",
        load: Load::Raw(&["crud-*"], 64, 200),
        entries: &[],
        ..ITEMS
    },
    Profile {
        name: "api-4",
        load: Load::Raw(
            &[
                "get.raw",
                "get.raw",
                "get.raw",
                "json-get.raw",
                "json-get.raw",
                "json-get.raw",
                "async-db-get.raw",
                "async-db-get.raw",
            ],
            64,
            5,
        ),
        ..ITEMS
    },
    SUM_BY_H2,
    Profile {
        name: "static-h2",
        way: Way::H2,
        load: Load::Targets("static-h2-uris.txt", 4, 32, Some(ACCEPTED)),
        entries: &["actix", "hyper", "nginx", "h2o"],
        ..FILE
    },
    Profile {
        name: "baseline-h2c",
        way: Way::H2c,
        entries: &["actix-h2c", "h2o-h2c"],
        ..SUM_BY_H2
    },
    Profile {
        name: "json-h2c",
        way: Way::H2c,
        load: Load::Targets("json-h2c-uris.txt", 16, 32, None),
        entries: &["actix-h2c", "h2o-h2c"],
        ..PAGE
    },
    Profile {
        name: "echo-ws",
        load: Load::Echoes(512),
        entries: &["actix-websocket"],
        ..SUM
    },
    GATEWAY,
    Profile {
        name: "production-stack",
        asks: "/public/baseline?a=13&b=42",
        load: Load::ReadsAndWrites,
        edge: Some(("production-stack.toml", "proxy-production/nginx.conf")),
        ..GATEWAY
    },
    // Two of TechEmpower's. The entries of that benchmark stand in another repository.
    Profile {
        name: "fortunes",
        asks: "/fortunes",
        expects: "Additional fortune",
        load: Load::Target,
        entries: &[],
        ..ITEMS
    },
    Profile {
        name: "updates",
        asks: "/updates?queries=20",
        expects: "randomNumber",
        load: Load::Target,
        entries: &[],
        ..ITEMS
    },
];

/// The database of all rows, started by the first that needs it.
type Database = Rc<OnceCell<Result<Postgres, String>>>;

/// No rows without a checkout of HttpArena, whose data all of them serve.
pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let database = Database::default();
    let Some(checkout) = checkout() else {
        return vec![];
    };
    let arena = Arena {
        plan,
        checkout,
        database,
    };
    PROFILES.map(|profile| row(arena.clone(), profile)).into()
}

/// Starts the server of a contestant.
type Start = Rc<dyn Fn(&Arena) -> Result<Server, String>>;

fn row(arena: Arena<'_>, profile: Profile) -> Row<'_> {
    let load: &[&str] = match profile.load {
        Load::Raw(..) => &["load-raw"],
        Load::Echoes(_) => &["load-echo"],
        _ => &[],
    };
    let programs: &[&str] = match profile.edge {
        Some(_) => &["osier-arena", SERVER],
        None => &["osier-arena"],
    };
    let plan = arena.plan;
    let entered = |name, goal, start: Start| -> Contestant {
        let arena = arena.clone();
        contestant(name, goal, move || arena.under_load(&start(&arena)?, profile))
    };
    let entry = |name: &'static str| entered(name, BELOW, Rc::new(move |arena| arena.entry(name, profile)));
    let mut rivals: Vec<Contestant> = profile.entries.iter().copied().map(entry).collect();
    let mut ours = entered(
        "osier",
        None,
        Rc::new(move |arena| arena.ours(profile.way, profile.database)),
    );
    if let Some((of_ours, of_nginx)) = profile.edge {
        ours = entered("osier", None, Rc::new(move |arena| arena.behind_osier(of_ours)));
        let nginx = Rc::new(move |arena: &Arena| arena.behind_nginx(of_nginx));
        rivals.push(entered("nginx", BELOW, nginx));
    }
    Row {
        name: format!("arena: {}", profile.name),
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        load,
        ours: vec![ours.needs(programs)],
        rivals,
    }
}

/// The parts that all rows share.
#[derive(Clone)]
struct Arena<'a> {
    plan: &'a Plan,
    checkout: PathBuf,
    database: Database,
}

impl Arena<'_> {
    /// The environment of a server: the database, for the profiles that ask it.
    fn environment(&self, has_database: bool) -> Result<Vec<OsString>, String> {
        if !has_database {
            return Ok(vec![]);
        }
        match self.database.get_or_init(|| Postgres::start(self.plan)) {
            Ok(postgres) => Ok(vec![
                format!("DATABASE_URL={}", postgres.url).into(),
                "DATABASE_MAX_CONN=64".into(),
            ]),
            Err(why) => Err(why.clone()),
        }
    }

    /// Our application, with one port.
    fn ours(&self, way: Way, has_database: bool) -> Result<Server, String> {
        let environment = self.environment(has_database)?;
        Server::start(self.plan, Path::new("env"), |port| {
            let mut args = environment.clone();
            args.push(program("osier-arena").into());
            args.extend(["--data".into(), self.checkout.join("data").into()]);
            args.extend(["--certs".into(), self.checkout.join("certs").into()]);
            args.push(match way {
                Way::Http => "--http".into(),
                Way::Https => "--https".into(),
                Way::H2c => "--h2c".into(),
                Way::H2 => "--h2".into(),
            });
            args.push(format!("127.0.0.1:{port}").into());
            Ok(args)
        })
    }

    fn entry(&self, name: &str, profile: Profile) -> Result<Server, String> {
        let port = match profile.way {
            Way::Http => entries::HTTP,
            Way::H2c => entries::H2C,
            Way::Https | Way::H2 => entries::H2,
        };
        if name == "nginx" {
            return self.nginx("nginx/nginx.conf", port, (0, 0));
        }
        let environment = self.environment(profile.database)?;
        let binary = entries::built(name)?;
        Server::start_at(self.plan, port, Path::new("env"), |_| {
            Ok(environment.iter().cloned().chain([binary.clone().into()]).collect())
        })
    }

    /// nginx with a configuration of the checkout, which has that port.
    fn nginx(&self, file: &str, port: u16, (backend, authentication): (u16, u16)) -> Result<Server, String> {
        let scratch = &self.plan.scratch;
        let file = entries::configuration_of_nginx(file, scratch, backend, authentication)?;
        Server::start_at(self.plan, port, Path::new("nginx"), |_| {
            nginx::args(self.plan, file.clone())
        })
    }

    /// Our application behind `osier`, by HTTP/2.
    fn behind_osier(&self, configuration: &str) -> Result<Server, String> {
        let (backend, authentication) = (self.ours(Way::H2c, true)?, self.authentication()?);
        let file = crate::root().join("examples/arena").join(configuration);
        let edge = Server::start(self.plan, Path::new("env"), |port| {
            Ok(vec![
                format!("ARENA_ADDRESS=127.0.0.1:{port}").into(),
                format!("ARENA_BACKEND=127.0.0.1:{}", backend.port).into(),
                format!("ARENA_AUTH=127.0.0.1:{}", authentication.port).into(),
                format!("ARENA_CERTS={}", self.checkout.join("certs").display()).into(),
                format!("ARENA_DATA={}", self.checkout.join("data").display()).into(),
                osier().into(),
                file.clone().into(),
            ])
        })?;
        Ok(edge.in_front_of(backend).beside(authentication))
    }

    /// Our application behind nginx, by HTTP/1.1 as that entry has it.
    fn behind_nginx(&self, configuration: &str) -> Result<Server, String> {
        let (backend, authentication) = (self.ours(Way::Http, true)?, self.authentication()?);
        let file = format!("aspnet-minimal_nginx/{configuration}");
        let edge = self.nginx(&file, entries::H2, (backend.port, authentication.port))?;
        Ok(edge.in_front_of(backend).beside(authentication))
    }

    /// The server that verifies users, which all entries share.
    fn authentication(&self) -> Result<Server, String> {
        let binary = entries::built("_shared/authsvc")?;
        Server::start_on(self.plan.cores.1, Path::new("env"), |port| {
            Ok(vec![
                format!("AUTHSVC_LISTEN=127.0.0.1:{port}").into(),
                binary.clone().into(),
            ])
        })
    }

    fn under_load(&self, server: &Server, profile: Profile) -> Result<super::Sample, String> {
        let (scheme, protocol) = spoken(profile.way);
        if !matches!(profile.load, Load::Echoes(_)) {
            let body = server.body_by(scheme, protocol, profile.asks)?;
            if !String::from_utf8_lossy(&body).contains(profile.expects) {
                return Err(format!("GET {}: no {} in the body", profile.asks, profile.expects));
            }
        }
        self.served(server, profile).map(sample)
    }

    fn served(&self, server: &Server, profile: Profile) -> Result<Served, String> {
        let (plan, tls) = (self.plan, matches!(profile.way, Way::Https | Way::H2));
        let requests = self.checkout.join("requests");
        let asked = Asked {
            tls,
            ..Asked::path(profile.asks)
        };
        match profile.load {
            Load::Raw(names, connections, each) => {
                make_uploads(&requests, names)?;
                load::raw(plan, server, &files(&requests, names)?, (connections, each))
            }
            Load::Target => load::requests(plan, server, asked),
            Load::Pipelined => load::requests(
                plan,
                server,
                Asked {
                    pipelined: true,
                    ..asked
                },
            ),
            Load::Script(name) => {
                let script = requests.join(name);
                let asked = Asked {
                    path: "/",
                    script: Some(&script),
                    ..asked
                };
                load::requests(plan, server, asked)
            }
            Load::Streams => h2::requests(plan, server, profile.asks, tls),
            Load::Targets(name, connections, streams, accepted) => {
                let file = requests.join(name);
                let mut options = vec!["-i".as_ref(), file.as_os_str()];
                if let Some(accepted) = accepted {
                    options.extend(["-H", accepted].map(OsStr::new));
                }
                let targets = Streams {
                    connections,
                    streams,
                    tls,
                    options: &options,
                    path: "/",
                };
                h2::at_once(plan, server, &[targets])
            }
            Load::Echoes(connections) => load::echoes(plan, server, connections, Some("/ws")),
            Load::ReadsAndWrites => self.reads_and_writes(server, &requests),
        }
    }

    fn reads_and_writes(&self, server: &Server, requests: &Path) -> Result<Served, String> {
        let token = self.checkout.join("data/jwt-token.txt");
        let token = std::fs::read_to_string(&token).map_err(|error| format!("{}: {error}", token.display()))?;
        let user = OsString::from(format!("Authorization: Bearer {}", token.trim()));
        let file = |name: &str| requests.join(format!("production-stack-{name}"));
        let (reads, writes, body) = (file("reads.txt"), file("writes.txt"), file("write-body.json"));
        let [input, field, data] = ["-i", "-H", "-d"].map(OsStr::new);
        let reads = Streams {
            connections: 4,
            streams: 16,
            tls: true,
            options: &[input, reads.as_os_str(), field, ACCEPTED.as_ref(), field, &user],
            path: "/",
        };
        let json = OsStr::new("Content-Type: application/json");
        let writes = Streams {
            connections: 1,
            streams: 8,
            options: &[
                input,
                writes.as_os_str(),
                data,
                body.as_os_str(),
                field,
                json,
                field,
                &user,
            ],
            ..reads
        };
        h2::at_once(self.plan, server, &[reads, writes])
    }
}

const ACCEPTED: &str = "Accept-Encoding: br;q=1, gzip;q=0.8";

/// The long uploads, which a copy of the repository lacks, and the bytes of their bodies.
const UPLOADS: [(&str, usize); 2] = [("upload-10m.raw", 10 << 20), ("upload-20m.raw", 20 << 20)];

/// Makes those of these requests that are long uploads and missing. Their bodies are random and the same in each copy.
fn make_uploads(folder: &Path, names: &[&str]) -> Result<(), String> {
    for (name, length) in UPLOADS.into_iter().filter(|(name, _)| names.contains(name)) {
        let path = folder.join(name);
        if path.exists() {
            continue;
        }
        // A run that ends meanwhile leaves no half of a request under that name.
        let part = path.with_extension("part");
        std::fs::write(&part, upload(length))
            .and_then(|()| std::fs::rename(&part, &path))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// A request with a body of so many random bytes.
fn upload(length: usize) -> Vec<u8> {
    let mut request =
        format!("POST /upload HTTP/1.1\r\nHost: localhost:8080\r\nContent-Length: {length}\r\n\r\n").into_bytes();
    let end = request.len() + length;
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    while request.len() < end {
        // Marsaglia's xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        request.extend_from_slice(&state.to_le_bytes());
    }
    request.truncate(end);
    request
}

/// The files of a folder that have these names, in order. `?` stands for a character, a star at the end for any.
fn files(folder: &Path, names: &[&str]) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut all: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().display().to_string())
        .collect();
    all.sort();
    let mut files = vec![];
    for name in names {
        let found: Vec<&String> = all.iter().filter(|file| is_like(file, name)).collect();
        if found.is_empty() {
            return Err(format!("{}: no {name}", folder.display()));
        }
        files.extend(found.into_iter().map(|file| folder.join(file)));
    }
    Ok(files)
}

fn is_like(file: &str, pattern: &str) -> bool {
    let (start, is_open) = match pattern.strip_suffix('*') {
        Some(start) => (start, true),
        None => (pattern, false),
    };
    let fits = file.len() == start.len() || (is_open && file.len() > start.len());
    fits && file
        .bytes()
        .zip(start.bytes())
        .all(|(a, b)| a == b || (b == b'?' && a.is_ascii_digit()))
}

/// The scheme, and the option of curl for the protocol.
fn spoken(way: Way) -> (&'static str, &'static str) {
    match way {
        Way::Http => ("http", "--http1.1"),
        Way::Https => ("https", "--http1.1"),
        Way::H2c => ("http", "--http2-prior-knowledge"),
        Way::H2 => ("https", "--http2"),
    }
}

#[cfg(test)]
mod tests {
    use super::{is_like, upload};

    #[test]
    fn an_upload_has_its_length_and_no_pattern() {
        let request = upload(1001);
        let text = String::from_utf8_lossy(&request);
        let (head, _) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /upload HTTP/1.1\r\n") && head.ends_with("\r\nContent-Length: 1001"));
        let body = &request[head.len() + 4..];
        assert_eq!(body.len(), 1001);
        assert!((0..=255u8).all(|byte| body.iter().filter(|other| **other == byte).count() < 20));
    }

    #[test]
    fn names_of_files_stand_for_several() {
        assert!(is_like("json-25.raw", "json-??.raw") && is_like("get.raw", "get.raw"));
        assert!(!is_like("json-get.raw", "json-???.raw") && !is_like("json-5.raw", "json-??.raw"));
        assert!(is_like("crud-get-1.raw", "crud-*") && !is_like("get.raw", "crud-*"));
    }
}
