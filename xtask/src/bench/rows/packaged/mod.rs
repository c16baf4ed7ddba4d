//! The rows about the server that a package holds: `osier` with a configuration, beside nginx and HAProxy as Debian packages them.
//!
//! A package is optimised with a profile (`package/profile.rs`), `cargo build --release` is not. Both take part, so a
//! row shows what the profile gives, too. The programs of `bench/` that other rows measure have no profile.
//!
//! The load of the profile (`package/training.rs`) has much of the load of these rows: the same scripts of wrk and of PHP, the same files, as
//! many connections. So a package is measured at what it has been optimised for. The release build beside it is the figure without that.
//!
//! `logged.rs` has access logs, `cached.rs` stored responses, `tunnels.rs` WebSockets and `uploads.rs` request bodies through the proxy, and
//! `secured.rs` requests over TLS. `steady.rs` has load at a fixed rate.

mod cached;
mod logged;
mod secured;
mod steady;
mod tunnels;
mod uploads;

use super::php;
use super::proxy::{self, OF_HAPROXY, OF_NGINX};
use super::{BELOW, Contestant, HELLO, Row, Sample, contestant, sample, site};
use crate::bench::Plan;
use crate::bench::load::{self, Asked};
use crate::bench::programs::{PACKAGED, SERVER, program};
use crate::bench::server::{Server, nginx};
use crate::running::Fpm;
use std::path::Path;

/// The header fields of each request, apart from Host.
type Fields = &'static [&'static str];

/// None against another checkout, whose package is not built.
pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    match plan.against {
        Some(_) => vec![],
        None => {
            let groups = [
                vec![
                    hello(plan),
                    file(plan, &[]),
                    file(plan, load::OF_BROWSERS),
                    proxied(plan, &[]),
                    proxied(plan, load::OF_BROWSERS),
                    scripts(plan, Script::Hello, &[]),
                    scripts(plan, Script::Hello, load::OF_BROWSERS),
                    scripts(plan, Script::Page, load::OF_BROWSERS),
                ],
                logged::rows(plan),
                cached::rows(plan),
                tunnels::rows(plan),
                uploads::rows(plan),
                secured::rows(plan),
                steady::rows(plan),
            ];
            groups.into_iter().flatten().collect()
        }
    }
}

fn hello(plan: &Plan) -> Row<'_> {
    let under_load = move |server: Server| {
        server.check("/", HELLO)?;
        load::requests(plan, &server, Asked::path("/")).map(sample)
    };
    let route = "respond = { body = \"Hello, World!\" }";
    let rivals = vec![contestant("nginx", BELOW, move || under_load(of_files(plan)?))];
    row(
        plan,
        "hello",
        move |binary| under_load(osier(plan, binary, route)?),
        rivals,
    )
}

fn file<'a>(plan: &'a Plan, fields: Fields) -> Row<'a> {
    const BYTES: usize = 100;
    let under_load = move |server: Server| {
        let path = format!("/{BYTES}.bin");
        server.check(&path, &super::file(plan, BYTES)?)?;
        load::requests(plan, &server, asked(&path, fields)).map(sample)
    };
    let ours = move |binary: &'static str| {
        let route = format!("files = {:?}", site(plan).display().to_string());
        under_load(osier(plan, binary, &route)?)
    };
    let rivals = vec![
        contestant("nginx", Some(0.65), move || under_load(of_files(plan)?)),
        contestant("nginx, sendfile off", Some(0.65), move || {
            under_load(of_files_without_sendfile(plan)?)
        }),
    ];
    row(plan, &named("file of 100 B", fields), ours, rivals)
}

fn proxied<'a>(plan: &'a Plan, fields: Fields) -> Row<'a> {
    let under_load = move |start: &dyn Fn(u16) -> Result<Server, String>| {
        let backend = proxy::backend(plan)?;
        let server = start(backend.port)?;
        server.check("/", HELLO)?;
        load::requests(plan, &server, asked("/", fields)).map(sample)
    };
    let ours = move |binary| under_load(&|backend| osier(plan, binary, &format!("proxy = \"127.0.0.1:{backend}\"")));
    let rivals = vec![
        contestant("nginx", OF_NGINX, move || {
            under_load(&|port| proxy::behind_nginx(plan, port))
        }),
        contestant("HAProxy", OF_HAPROXY, move || {
            under_load(&|port| proxy::behind_haproxy(plan, port))
        }),
    ];
    row(plan, &named("proxied hello", fields), ours, rivals)
}

#[derive(Clone, Copy)]
enum Script {
    Hello,
    /// One that writes a page in parts, as most applications do. Each takes a connection of its own.
    Page,
}

fn scripts<'a>(plan: &'a Plan, script: Script, fields: Fields) -> Row<'a> {
    let (name, path, kept) = match script {
        Script::Hello => ("PHP hello, kept connections", "/hello.php", php::PROCESSES),
        Script::Page => ("PHP page of 56 KB", "/page.php", 0),
    };
    let under_load = move |start: &dyn Fn(&Fpm) -> Result<Server, String>| {
        let fpm = php::fpm(plan)?;
        let server = start(&fpm)?;
        match script {
            Script::Hello => server.check(path, HELLO)?,
            Script::Page => server.check(path, Fpm::page().as_bytes())?,
        }
        load::requests(plan, &server, asked(path, fields)).map(sample)
    };
    let ours = move |binary| {
        under_load(&|fpm| {
            let root = site(plan).display().to_string();
            let socket = format!("unix:{}", fpm.socket.display());
            let route = format!("fastcgi = {{ root = {root:?}, to = {socket:?}, keep = {kept} }}");
            osier(plan, binary, &route)
        })
    };
    let nginx = move || under_load(&|fpm| php::behind_nginx(plan, fpm, kept));
    let mut rivals = vec![contestant("nginx", php::GOAL, nginx)];
    if let Script::Page = script {
        rivals.push(contestant("nginx, fastcgi_buffers 16 16k", php::GOAL, move || {
            under_load(&|fpm| php::behind_nginx_with_large_buffers(plan, fpm, kept))
        }));
    }
    row(plan, &named(name, fields), ours, rivals)
}

fn asked(path: &str, fields: Fields) -> Asked<'_> {
    Asked {
        fields,
        ..Asked::path(path)
    }
}

fn named(what: &str, fields: Fields) -> String {
    match fields {
        [] => what.into(),
        _ => format!("{what}, a browser's fields"),
    }
}

fn row<'a>(
    plan: &'a Plan,
    name: &str,
    ours: impl Fn(&'static str) -> Result<Sample, String> + Copy + 'a,
    rivals: Vec<Contestant<'a>>,
) -> Row<'a> {
    let of = |name, binary| contestant(name, None, move || ours(binary)).needs(&[binary]);
    Row {
        name: format!("server: {name}"),
        unit: "µs CPU/request",
        rounds: plan.rounds,
        bound: None,
        load: &[],
        ours: vec![of("package", PACKAGED), of("release build", SERVER)],
        rivals,
    }
}

/// One of the two servers of ours with one route.
fn osier(plan: &Plan, binary: &str, route: &str) -> Result<Server, String> {
    osier_with(plan, binary, "", "", route)
}

/// As [`osier`], with more lines for its listener and its site.
fn osier_with(plan: &Plan, binary: &str, listen: &str, site: &str, route: &str) -> Result<Server, String> {
    Server::start(plan, &program(binary), |port| {
        let config = plan.scratch.join(format!("packaged-{port}.toml"));
        let text = format!(
            "workers = 1\nlog = false\n[[listen]]\naddress = \"127.0.0.1:{port}\"\n{listen}\n[[site]]\ndefault = true\n{site}\n\
             [[site.route]]\n{route}\n"
        );
        std::fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
        Ok(vec![config.into()])
    })
}

fn of_files_without_sendfile(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    Server::start(plan, Path::new("nginx"), |port| {
        let config = nginx::files(&plan.scratch, &site, port)?;
        nginx::args(plan, nginx::without_sendfile(config)?)
    })
}

fn of_files(plan: &Plan) -> Result<Server, String> {
    let site = site(plan);
    Server::start(plan, Path::new("nginx"), |port| {
        nginx::args(plan, nginx::files(&plan.scratch, &site, port)?)
    })
}
