//! Reads the file as a whole: the keys at its top, `[upgrade]`, `[admin]`, `[[listen]]` and `[[site]]`. Siblings read
//! the other tables.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use osier_web::{Limits, Rates, Timeouts};
use rustix::fs::Access;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::certificates::acme::settings as acme;
use crate::certificates::state;
use crate::policy::client::{Client, client};
use crate::policy::real_ip::RealIp;
use crate::process::privileges::{self, WrongKey};
use crate::reader::{At, Section, Source, is_refused, nearest, values};

use super::address::{Address, FORMS};
use super::check::{self, ListenAt, SiteAt};
use super::settings::*;
use super::{http2, log, policy, route, shared, tls};

/// The least memory limit, less than any server needs. A smaller one is a mistake, such as 0 for "no limit", or a lost
/// unit.
const MEMORY_LEAST: u64 = 1 << 20;

/// The shortest request line and the shortest head that a client can send.
const SHORTEST_LINE: &str = "GET / HTTP/1.1";
const SHORTEST_HEAD: &str = "GET / HTTP/1.0\r\n\r\n";

/// Reads a whole file. The result may be used only if no mistake was noted.
pub fn read(source: &Source<'_>, table: &Spanned<DeTable<'_>>) -> Config {
    let top = Section::new(source, "", table.get_ref(), 0..0);
    let user = top.string("user").map(|user| user.value);
    let group = top.string("group").map(|group| group.value);
    let chroot_at = top.key("chroot");
    let chroot = chroot(&top, user.as_deref(), group.as_deref());
    let landlock = top.boolean("landlock").unwrap_or(user.is_some());
    let workers = top.integer("workers", 1..=1024).map(|workers| workers as usize);
    let unless = "; leave it out for nine tenths of the system's memory";
    let memory = top.size_at_least("memory", MEMORY_LEAST, "\"1MiB\"", unless);
    // `include.rs` has read the files. A mistake in the value is noted here.
    let _ = top.strings("include");
    let drain = top.duration("drain").unwrap_or(DRAIN);
    let access_log = match log::access(&top) {
        Setting::On(log) => log,
        _ => Log::OFF,
    };
    let error_log = log::errors(&top);
    let state = top.writable_folder("state");
    let pid_file = pid_file(&top, user.is_some());
    let upgrade = top.section("upgrade").map(|section| upgrade(section, landlock));
    let upgrade = upgrade.unwrap_or_default();
    let ticket_keys = tls::ticket_keys(&top);
    let shared = top.section("shared").and_then(shared::read);
    let admin = top.section("admin").and_then(admin);
    let mut listeners: Vec<ListenAt> = top.sections("listen").into_iter().map(listen).collect();
    let is_implied = top.key("listen").is_none();
    let sections = top.sections("site");
    let is_only = sections.len() == 1;
    let named = policy::named(&top);
    let acme = top.section("acme");
    let acme = acme.map_or_else(acme::Settings::default, |section| {
        super::acme::read(section, &acme::Settings::default())
    });
    let sites = sections
        .into_iter()
        .map(|section| site(section, is_only, &named, &acme));
    let sites: Vec<SiteAt> = sites.collect();
    if top.key("site").is_none() {
        top.problem("there is no [[site]]: nothing would be served");
    }
    top.finish();
    if is_implied {
        let defaults = tls::default_listeners(sites.iter().map(|read| &read.site))
            .into_iter()
            .map(|listener| ListenAt {
                listener,
                at: 0..0,
                name_at: 0..0,
                sound: true,
            });
        listeners.extend(defaults);
    }
    check::listeners(source, &listeners, admin.as_ref(), user.is_some());
    let sites = check::sites(source, &listeners, is_implied, shared.is_some(), &acme, sites);
    let config = Config {
        user,
        group,
        chroot,
        landlock,
        workers,
        memory,
        drain,
        log: access_log,
        error_log,
        state,
        pid_file,
        upgrade,
        ticket_keys,
        acme,
        shared,
        admin: admin.map(|bind| Admin { bind: bind.value }),
        listeners: listeners.into_iter().map(|read| read.listener).collect(),
        sites,
        includes: Vec::new(),
        contents: source.contents(),
    };
    default_state(source, chroot_at, &config);
    config
}

/// Checks that the default state folder, if the configuration needs it, is inside of the root folder.
fn default_state(source: &Source<'_>, at: Option<Range<usize>>, config: &Config) {
    let (Some(at), Some(chroot)) = (at, &config.chroot) else {
        return;
    };
    let is_used = !source.is_inside() && config.state.is_none() && config.needs_state();
    if let Some(folder) = state::default_of_root().filter(|folder| is_used && !folder.starts_with(chroot)) {
        let text = format!(
            "the certificates need a state folder, and '{}' is outside of chroot: set 'state' to a folder inside",
            folder.display()
        );
        // systemd may set it for the server, and not for the shell of a check.
        match (source.variable)("STATE_DIRECTORY") {
            Some(_) => source.problem(&at, text),
            None => source.warning(&at, format!("{text}, or STATE_DIRECTORY at the start")),
        }
    }
}

/// Reads `chroot`, and checks it together with the user and the group.
fn chroot(top: &Section<'_>, user: Option<&str>, group: Option<&str>) -> Option<PathBuf> {
    let (source, text) = (top.source(), top.string("chroot"));
    let chroot = match source.is_inside() {
        false => text.and_then(|text| top.existing_folder("chroot", &text)),
        // After the change of the root folder the configured folder is out of sight. A different one needs a restart.
        true => text.map(|root| source.named(&root.value)),
    };
    if !source.is_inside()
        && let Err(WrongKey { key, why }) = privileges::check(user, group, chroot.is_some())
    {
        let at = top.key(key).unwrap_or(0..0);
        source.problem(&at, why);
    }
    if let Some(chroot) = &chroot {
        let _ = source.chroot.set(chroot.clone());
    }
    chroot
}

/// Reads `[admin]`.
fn admin(section: Section<'_>) -> Option<At<Bind>> {
    section.require(
        "address",
        "where /health, /metrics and /fibers are served, \"127.0.0.1:9090\" for example",
    );
    let source = section.source();
    let bind = section.parsed("address", |text| bind(source, text));
    section.finish();
    bind
}

/// Reads `pid_file`. A missing folder is only a warning: a service manager may make it right before the start. With
/// `user`, root opens the file, whoever reads this.
fn pid_file(top: &Section<'_>, is_opened_by_root: bool) -> Option<PathBuf> {
    let (source, text) = (top.source(), top.string("pid_file")?);
    let path = source.named(&text.value);
    // The file is opened before the root folder changes, and stays open. Afterwards its folder may be out of sight.
    if source.is_inside() {
        return Some(path);
    }
    let unless = "the server does not start unless it can write this file";
    let shown = source.shown(&path);
    let folder = path.parent().unwrap_or(&path);
    if path.is_dir() {
        source.problem(&text.span, format!("'{shown}' is a folder; 'pid_file' must be a file"));
    } else if !folder.is_dir() {
        let text_of = format!("there is no folder '{}'; {unless}", source.shown(folder));
        source.warning(&text.span, text_of);
    } else if !is_opened_by_root {
        top.expect_writable(&text.span, &path, unless);
    }
    Some(path)
}

/// Reads `[upgrade]`. `landlock`: the server may start no program but the one that is named here.
fn upgrade(section: Section<'_>, landlock: bool) -> Upgrade {
    let (source, default) = (section.source(), Upgrade::default());
    let program = section.string("program");
    match &program {
        // After the change of the root folder other files have these names.
        _ if source.is_inside() => {}
        Some(program) => {
            if let Some(why) = why_not_started(source, &program.value) {
                source.warning(&program.span, format!("{why}; an upgrade is refused until it can be started"));
            }
        }
        None if landlock => source.warning(
            section.span(),
            "'landlock' keeps the server from starting any program, its own included, so an upgrade is refused; name it: program = \
             \"/usr/bin/osier\"",
        ),
        None if source.chroot.get().is_some_and(|chroot| is_outside(chroot)) => source.warning(
            section.span(),
            "this program lies outside of 'chroot', so an upgrade is refused; put it inside, with its libraries, and name it: 'program'",
        ),
        None => {}
    }
    let read = Upgrade {
        program: program.map(|program| source.named(&program.value)),
        timeout: section.duration("timeout").unwrap_or(default.timeout),
        drain: section.duration("drain").unwrap_or(default.drain),
    };
    section.finish();
    read
}

/// The reason why an upgrade could not start this program.
fn why_not_started(source: &Source<'_>, program: &str) -> Option<String> {
    let path = match source.path(program) {
        Ok(path) => path,
        Err(why) => return Some(why),
    };
    let shown = source.shown(&path);
    match path.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Some(format!("there is no file '{shown}'")),
        Ok(found) if !found.is_file() => Some(format!("'{shown}' is not a file")),
        _ if is_refused(&path, Access::EXEC_OK) => Some(format!("this user may not start '{shown}'")),
        _ => None,
    }
}

/// Whether the running program lies outside of a folder.
fn is_outside(folder: &Path) -> bool {
    std::env::current_exe().is_ok_and(|program| !program.starts_with(folder))
}

/// Reads a `[[listen]]`.
fn listen(section: Section<'_>) -> ListenAt {
    let source = section.source();
    section.require(
        "address",
        "\"127.0.0.1:8080\", \"unix:/run/osier.sock\" or \"systemd:NAME\"",
    );
    let name = section.string("name");
    let bind = section.parsed("address", |text| bind(source, text));
    let proxy_protocol = proxy_protocol(&section);
    let real_ip = RealIp::read(&section);
    let max_connections = section.integer("max_connections", 1..=10_000_000);
    let max_connections_per_client = section.integer("max_connections_per_client", 1..=10_000_000);
    let mode_at = section.key("mode");
    let mode = section.any("mode").and_then(|value| {
        let text = section.as_string("mode", value, "a string of octal digits")?;
        section.understand("mode", text, |text| {
            let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
            mode.ok_or("write the permissions in octal digits from \"0\" to \"0777\", \"0660\" for example")
        })
    });
    if let (Some(at), Some(bind)) = (mode_at, &bind)
        && !matches!(bind.value, Bind::Unix(_))
    {
        source.problem(&at, "'mode' is only for Unix sockets (address = \"unix:…\")");
    }
    let timeouts = section.section("timeouts").map(timeouts);
    let rates = section.section("rates").map(rates);
    let head = section.section("head").map(head);
    let tls = tls::listen(&section);
    let http2 = http2::http2(&section);
    let at = bind.as_ref().map_or(section.span().clone(), |bind| bind.span.clone());
    let name_at = name.as_ref().map_or(at.clone(), |name| name.span.clone());
    section.finish();
    let sound = bind.is_some();
    // A stand-in for an address that was refused. A configuration with a mistake is never used.
    let bind = bind.map_or(Bind::Systemd(String::new()), |bind| bind.value);
    ListenAt {
        listener: Listener {
            name: name.map_or_else(|| bind.to_string(), |name| name.value),
            bind,
            proxy_protocol: values(proxy_protocol),
            real_ip,
            max_connections: max_connections.map(|count| count as usize),
            max_connections_per_client: max_connections_per_client.map(|count| count as u32),
            mode: mode.map(|mode| mode.value),
            timeouts: timeouts.unwrap_or_default(),
            rates: rates.unwrap_or_default(),
            head: head.unwrap_or_default(),
            tls,
            http2,
            is_optional: false,
        },
        at,
        name_at,
        sound,
    }
}

/// Reads `proxy_protocol`: the peers that send a header. nginx has a switch in this place.
fn proxy_protocol(section: &Section<'_>) -> Option<Vec<At<Client>>> {
    let value = section.any("proxy_protocol")?;
    if let DeValue::Boolean(is_on) = value.get_ref() {
        let text = match is_on {
            true => {
                "'proxy_protocol' names the balancers that send the header; write proxy_protocol = [\"10.0.0.0/8\"]"
            }
            false => "'proxy_protocol' names the balancers that send the header, and is off without them; leave it out",
        };
        section.source().problem(&value.span(), text);
        return None;
    }
    section.parsed_list("proxy_protocol", client)
}

/// Reads `timeouts` of a listener.
fn timeouts(table: Section<'_>) -> Timeouts {
    let default = Timeouts::default();
    let read = Timeouts {
        handshake: table.duration("handshake").unwrap_or(default.handshake),
        header: table.duration("header").unwrap_or(default.header),
        body: table.duration("body").unwrap_or(default.body),
        idle: table.duration("idle").unwrap_or(default.idle),
        write: table.duration("write").unwrap_or(default.write),
        ..default
    };
    table.finish();
    read
}

/// Reads `rates` of a listener.
fn rates(table: Section<'_>) -> Rates {
    let default = Rates::default();
    // `set_write_progress` takes at most 4 MiB for each write timeout.
    let rate = |key: &'static str, default: u32| table.integer(key, 0..=100_000).map_or(default, |rate| rate as u32);
    let read = Rates {
        head: rate("head", default.head),
        body: rate("body", default.body),
        response: rate("response", default.response),
        grace: table.duration("grace").unwrap_or(default.grace),
    };
    table.finish();
    read
}

/// Reads `head` of a listener.
fn head(table: Section<'_>) -> Limits {
    let default = Limits::default();
    // The parser's own tables have 100 fields.
    let fields = table.integer("fields", 1..=100);
    let read = Limits {
        request_line: size_of_head(&table, "request_line", SHORTEST_LINE).unwrap_or(default.request_line),
        head_bytes: size_of_head(&table, "bytes", SHORTEST_HEAD).unwrap_or(default.head_bytes),
        header_count: fields.map_or(default.header_count, |fields| fields as usize),
        ..default
    };
    table.finish();
    read
}

/// Reads a limit of a request's head. One below the shortest request is a mistake, such as a lost unit.
fn size_of_head(head: &Section<'_>, key: &'static str, shortest: &str) -> Option<usize> {
    let shown = format!("{} bytes", shortest.len());
    let bytes = head.size_at_least(key, shortest.len() as u64, &shown, ": no request is shorter")?;
    Some(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Reads a `[[site]]`. The only site of a file answers for every host, unless it names one.
fn site(section: Section<'_>, is_only: bool, named: &policy::Named, acme: &acme::Settings) -> SiteAt {
    let hosts = section.parsed_list("host", host);
    let default_at = section.key("default");
    let is_plain = section.key("host").is_none() && default_at.is_none();
    let default = section.boolean("default").unwrap_or(is_only && is_plain);
    let is_mistyped = default_at.is_some()
        && section
            .any("default")
            .is_some_and(|value| value.get_ref().as_bool().is_none());
    if section.key("host").is_none() && !default && !is_mistyped {
        section.problem("[[site]] has no host: give it host = \"example.org\" or default = true");
    }
    let listen = section.strings("listen").unwrap_or_default();
    let real_ip = RealIp::read(&section);
    let error_pages = section.section("error_pages").map(error_pages).unwrap_or_default();
    let (tls, places) = tls::site(&section, acme);
    let policies = policy::read(&section, named);
    let routes = section.sections("route").into_iter();
    let routes: Vec<_> = routes.map(|section| route::read(section, named)).collect();
    let is_empty = |value: &Spanned<DeValue<'_>>| value.get_ref().as_array().is_some_and(|routes| routes.is_empty());
    if section.any("route").is_none_or(is_empty) {
        section.problem("[[site]] has no [[site.route]]: it would answer every request with 404");
    }
    let at = default_at.unwrap_or(section.span().clone());
    section.finish();
    let hosts = hosts.unwrap_or_default();
    SiteAt {
        site: Site {
            hosts: hosts.iter().map(|host| host.value.clone()).collect(),
            default,
            listeners: Vec::new(),
            real_ip,
            error_pages,
            tls,
            policies,
            routes: Vec::new(),
        },
        at,
        hosts,
        listen,
        tls: places,
        routes,
    }
}

/// Reads `error_pages`: the file of a page for each status.
fn error_pages(section: Section<'_>) -> Vec<(u16, PathBuf)> {
    let mut pages = Vec::new();
    if section.items().is_empty() {
        section.problem("'error_pages' names no page: write one, 404 = \"404.html\" for example, or leave it out");
    }
    for (status, path) in section.entries() {
        let code = status
            .value
            .parse::<u16>()
            .ok()
            .filter(|code| (400..=599).contains(code));
        if code.is_none() {
            let remedy = match status.value.parse::<u32>() {
                Ok(_) => "",
                Err(_) => "; write each by itself: { 403 = \"error.html\", 404 = \"error.html\" }",
            };
            let text = format!(
                "'{}' is not a status from 400 to 599{remedy}",
                status.value.escape_debug()
            );
            section.source().problem(&status.span, text);
        }
        if let (Some(path), Some(code)) = (
            section.as_file(&path, "the error keeps its short text until a reload finds the file"),
            code,
        ) {
            pages.push((code, path));
        }
    }
    pages
}

/// Parses an address to listen on.
fn bind(source: &Source<'_>, text: &str) -> Result<Bind, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        /// Bytes of `sun_path` without its NUL.
        const LONGEST: usize = 107;
        if path.is_empty() {
            return Err("name the socket, \"unix:/run/osier.sock\" for example".into());
        }
        let named = source.named(path);
        if named.as_os_str().len() > LONGEST {
            return Err(format!("the path of a Unix socket has at most {LONGEST} bytes"));
        }
        // The socket is opened before the root folder changes, or inside of the new one. A socket that was opened
        // outside stays open, but its path is out of sight. A new socket outside is refused when it is bound.
        let path = match source.path(path) {
            _ if !source.is_inside() => named.clone(),
            Ok(path) => path,
            Err(_) => return Ok(Bind::Unix(named)),
        };
        let parent = path.parent().unwrap_or(&path);
        if !parent.is_dir() {
            return Err(format!("there is no folder '{}'; make it first", source.shown(parent)));
        }
        return Ok(Bind::Unix(named));
    }
    if let Some(name) = text.strip_prefix("systemd:") {
        let fine = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        return if fine {
            Ok(Bind::Systemd(name.into()))
        } else {
            Err("name the socket as its unit does (FileDescriptorName=)".into())
        };
    }
    match text.parse::<Address>() {
        Ok(address) => Ok(Bind::Tcp(address.0)),
        Err(error) if !error.ends_with(FORMS) => Err(error),
        Err(error) => {
            let known = ["unix:", "systemd:"];
            let scheme = text.split_inclusive(':').next().unwrap_or_default();
            let guess = nearest(scheme, known.into_iter()).filter(|_| text.contains(":/"));
            let guess = guess
                .map(|guess| format!("; did you mean \"{guess}\"?"))
                .unwrap_or_default();
            Err(format!("{error}; or \"unix:PATH\", \"systemd:NAME\"{guess}"))
        }
    }
}

/// Parses a host name, a wildcard or an address.
fn host(text: &str) -> Result<Host, String> {
    let lower = text.to_ascii_lowercase();
    let (name, below) = match lower.strip_prefix("*.") {
        Some(name) => (name, true),
        None => (lower.as_str(), false),
    };
    // nginx has `_` for every host.
    if matches!(name, "*" | "_") {
        return Err("for every host write default = true".into());
    }
    if name.contains('*') {
        return Err("a '*' stands for whole labels in front: \"*.example.org\"".into());
    }
    let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    if let Some(literal) = literal {
        return match literal.parse::<std::net::Ipv6Addr>() {
            Ok(address) if !below => Ok(Host::Exact(format!("[{address}]"))),
            _ => Err("it is not an IPv6 address in brackets".into()),
        };
    }
    if name.contains(':') {
        let bare = lower.split_once("://").map_or(&*lower, |(_, rest)| rest);
        let bare = bare.split([':', '/']).next().unwrap_or_default();
        let is_name = !bare.is_empty()
            && bare
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-.*".contains(&byte));
        let guess = match is_name {
            true => format!("; did you mean \"{bare}\"?"),
            false => String::new(),
        };
        return Err(format!("a host is a name alone, without port or scheme{guess}"));
    }
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    if let Some(name) = lower.strip_suffix('.').filter(|name| !name.is_empty()) {
        return Err(format!("a host has no dot at its end; did you mean \"{name}\"?"));
    }
    if name.len() > 253 || !name.split('.').all(label) {
        return Err("it is not a host name (write international names in their ASCII form, \"xn--…\")".into());
    }
    Ok(if below {
        Host::Below(name.into())
    } else {
        Host::Exact(name.into())
    })
}
