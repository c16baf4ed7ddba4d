//! Finds mistakes that show only when listeners, sites and routes are compared with each other: two listeners on one
//! address, a site that names a missing listener, a route that an earlier route hides. Each compared value has its
//! place in the file.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use osier_web::wrap::cache::StoreOptions;
use rustix::fs::Access;
use rustix::io::Errno;

use crate::certificates::acme::settings as acme;
use crate::handler::{HandlerSettings, Match, Spools};
use crate::policy::prefixes::Prefixes;
use crate::reader::{At, Source, is_refused, nearest};

use super::address::is_ipv4_taken_with_ipv6;
use super::loops;
use super::settings::*;
use super::tls;

/// A listener with its places in the file.
pub struct ListenAt {
    pub listener: Listener,
    /// Place of the address, or of the table when there is no address.
    pub at: Range<usize>,
    /// Place of the name, or `at` for a listener without one.
    pub name_at: Range<usize>,
    /// Whether the address is valid. Only such a listener is compared with others.
    pub sound: bool,
}

/// A site with its places in the file.
pub struct SiteAt {
    pub site: Site,
    /// Place of `default`, or of the table without that key.
    pub at: Range<usize>,
    pub hosts: Vec<At<Host>>,
    /// The names of its listeners. Empty for all listeners.
    pub listen: Vec<At<String>>,
    pub tls: tls::Places,
    pub routes: Vec<RouteAt>,
}

/// A route with its place in the file.
pub struct RouteAt {
    pub route: Route,
    pub at: Range<usize>,
    /// Whether the route has no mistake of its own. Only such a route is compared with others.
    pub sound: bool,
}

/// Checks that no two listeners share an address or a name, and that this machine can open each. `is_opened_by_root`: root opens them,
/// whoever reads this.
pub fn listeners(source: &Source<'_>, listeners: &[ListenAt], admin: Option<&At<Bind>>, is_opened_by_root: bool) {
    let sound = listeners.iter().filter(|one| one.sound);
    let named = sound.map(|one| (&one.listener.bind, &one.at));
    for (bind, at) in named.chain(admin.map(|admin| (&admin.value, &admin.span))) {
        can_open(source, bind, at, is_opened_by_root);
    }
    for (index, one) in listeners.iter().enumerate().filter(|(_, one)| one.sound) {
        for earlier in listeners[..index].iter().filter(|earlier| earlier.sound) {
            if collide(&earlier.listener.bind, &one.listener.bind) {
                let text = format!(
                    "'{}' is already in use by another [[listen]] ({})",
                    one.listener.bind,
                    source.line(earlier.at.start, one.at.start)
                );
                source.problem(&one.at, text);
            } else if earlier.listener.name == one.listener.name {
                let text = format!(
                    "another [[listen]] is named '{}' ({})",
                    one.listener.name,
                    source.line(earlier.name_at.start, one.name_at.start)
                );
                source.problem(&one.name_at, text);
            }
        }
        if let Some(admin) = admin
            && collide(&admin.value, &one.listener.bind)
        {
            let text = format!(
                "[admin] needs an address of its own: '{}' is used by a [[listen]]",
                admin.value
            );
            source.problem(&admin.span, text);
        }
    }
}

/// Warns of an address that this machine does not have, and of a place where this user can make no socket.
fn can_open(source: &Source<'_>, bind: &Bind, at: &Range<usize>, is_opened_by_root: bool) {
    let unless = "the server does not start";
    match bind {
        Bind::Tcp(address) => {
            let mut any_port = *address;
            any_port.set_port(0);
            if UdpSocket::bind(any_port).is_err_and(|error| is_of_no_interface(&error)) {
                let ip = address.ip();
                let interface = match address {
                    SocketAddr::V6(address) if address.scope_id() != 0 => format!("%{}", address.scope_id()),
                    _ => String::new(),
                };
                let text = format!("this machine does not have the address {ip}{interface}; {unless} while it has not");
                source.warning(at, text);
            }
        }
        // The files of running listeners, which a reload leaves alone, may be out of sight in another root folder.
        Bind::Unix(path) if !source.is_inside() => {
            let folder = path.parent().unwrap_or(path);
            if path
                .symlink_metadata()
                .is_ok_and(|found| !found.file_type().is_socket())
            {
                let shown = source.shown(path);
                source.warning(at, format!("'{shown}' is no socket; {unless} while it is there"));
            } else if !is_opened_by_root && is_refused(folder, Access::WRITE_OK | Access::EXEC_OK) {
                let shown = source.shown(folder);
                source.warning(
                    at,
                    format!("this user may not write to '{shown}'; {unless} unless it may"),
                );
            }
        }
        Bind::Unix(_) | Bind::Systemd(_) => {}
    }
}

/// Whether the system refuses an address because no interface has it: also an IPv6 address without IPv6, and a
/// link-local address with another interface or without one.
fn is_of_no_interface(error: &std::io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::INVAL | Errno::NODEV)
    )
}

/// Whether the system, or this server, would refuse the second of two addresses. Port 0 is a different port each time.
pub fn collide(a: &Bind, b: &Bind) -> bool {
    let any = |address: &SocketAddr| match address.ip() {
        IpAddr::V4(ip) => ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_unspecified(),
    };
    // Whether a socket on `a` listens on the address `b` too.
    let covers = |a: &SocketAddr, b: &SocketAddr| {
        any(a) && (a.is_ipv4() == b.is_ipv4() || (a.is_ipv6() && is_ipv4_taken_with_ipv6()))
    };
    match (a, b) {
        (Bind::Tcp(a), Bind::Tcp(b)) => {
            // An IPv4 address may be written as one of IPv6.
            let [a, b] = [a, b].map(|address| match address.ip().to_canonical() {
                // With its interface.
                IpAddr::V6(ip) if ip.is_unicast_link_local() => *address,
                ip => SocketAddr::new(ip, address.port()),
            });
            a.port() != 0 && a.port() == b.port() && (a == b || covers(&a, &b) || covers(&b, &a))
        }
        (Bind::Unix(a), Bind::Unix(b)) => is_one_file(a, b),
        (a, b) => a == b,
    }
}

/// Whether two paths name one file, also through links and dots in their folders.
fn is_one_file(a: &Path, b: &Path) -> bool {
    let folder = |path: &Path| path.parent().and_then(|folder| folder.canonicalize().ok());
    a == b || a.file_name() == b.file_name() && folder(a).is_some_and(|of_a| folder(b) == Some(of_a))
}

/// Finds the listeners of each site, and checks the sites against each other and against their listeners.
///
/// `is_implied`: the file names no listener, so the listeners are the default ones. `is_shared`: other machines answer
/// for the same certificates. `acme`: the settings of certificates on demand.
pub fn sites(
    source: &Source<'_>,
    listeners: &[ListenAt],
    is_implied: bool,
    is_shared: bool,
    acme: &acme::Settings,
    sites: Vec<SiteAt>,
) -> Vec<Site> {
    let mut claims = Claims::default();
    let mut is_used = vec![false; listeners.len()];
    let mut folders = Folders::new();
    let mut checked = Vec::new();
    // A misspelled name of a listener is one mistake. The listener that nobody uses then is not another.
    let mut is_misnamed = false;
    for SiteAt {
        mut site,
        at,
        hosts: names,
        listen,
        tls: places,
        routes,
    } in sites
    {
        find_listeners(source, listeners, is_implied, &listen, &mut site);
        for &listener in &site.listeners {
            is_used[listener] = true;
        }
        is_misnamed |= site.listeners.len() < listen.len();
        let on = |listener: usize| match listen.is_empty() {
            true => String::new(),
            false => format!(" on '{}'", listeners[listener].listener.name),
        };
        claims.add(source, &site, &names, &at, on);
        // A listener whose name is misspelled may be the one with TLS.
        if site.listeners.len() >= listen.len() {
            let own = site.listeners.iter().map(|&listener| &listeners[listener].listener);
            let own: Vec<&Listener> = own.collect();
            tls::check_site(source, &own, &site, (&places, &at), !listen.is_empty());
        }
        if !is_shared && listeners.iter().all(|listener| listener.listener.tls.is_some()) {
            tls::challenges(source, &site, acme, (&places, &at));
        }
        folders_of_caches(source, &mut folders, &site.policies, &at);
        check_routes(source, &mut folders, &routes);
        bodies(source, &site.policies, &routes);
        site.routes = routes.into_iter().map(|read| read.route).collect();
        checked.push(site);
    }
    if !checked.is_empty() && !is_misnamed {
        unused(source, listeners, &is_used);
    }
    checked
}

/// Sets the listeners of a site: those that it names, or all.
fn find_listeners(
    source: &Source<'_>,
    listeners: &[ListenAt],
    is_implied: bool,
    named: &[At<String>],
    site: &mut Site,
) {
    site.listeners = match named {
        [] => (0..listeners.len()).collect(),
        named => named.iter().filter_map(|name| find(source, listeners, name)).collect(),
    };
    if is_implied {
        tls::use_default_listeners(site, |listener| listeners[listener].listener.tls.is_some());
    }
}

/// Checks the routes of a site against each other, and the folders of their caches against those of earlier ones.
fn check_routes(source: &Source<'_>, folders: &mut Folders, routes: &[RouteAt]) {
    for read in routes {
        folders_of_caches(source, folders, &read.route.policies, &read.at);
    }
    duplicates(source, routes);
    if routes.iter().all(|read| read.sound) {
        let routes: Vec<_> = routes.iter().map(|read| (&read.route, &read.at)).collect();
        loops::check(source, &routes);
    }
}

/// Warns of routes that accept longer request bodies than their handler can store.
fn bodies(source: &Source<'_>, site: &Policies, routes: &[RouteAt]) {
    for RouteAt { route, at, .. } in routes {
        let most = route.policies.limits.body.or(site.limits.body);
        let most = most.unwrap_or(BODY_BYTES);
        let Some(Spools { memory, files }) = route.handler.spools() else {
            continue;
        };
        if files.max(memory) < most {
            let in_memory = match files < memory {
                true => format!(" in files, and memory for {memory}"),
                false => String::new(),
            };
            let text = format!(
                "'limits.body' allows {most} bytes here, but 'buffer_total' has room for {files}{in_memory}: a longer body that has to be \
                 stored gets 413; raise 'buffer_total', lower 'limits.body', or set 'buffer = false'"
            );
            source.warning(at, text);
        }
    }
}

/// Finds the listeners that no site uses.
fn unused(source: &Source<'_>, listeners: &[ListenAt], is_used: &[bool]) {
    for (listener, is_used) in listeners.iter().zip(is_used) {
        if !is_used && listener.sound {
            let text = format!(
                "no site uses the listener '{}': name it in the 'listen' of a site",
                listener.listener.name
            );
            source.problem(&listener.at, text);
        }
    }
}

/// The hosts and default sites so far, by listener, with their places in the file.
#[derive(Default)]
struct Claims {
    hosts: HashMap<(usize, Host), usize>,
    defaults: HashMap<usize, usize>,
}

impl Claims {
    /// Adds those of a site. Notes each one that another site has already. `on` names a listener in messages.
    fn add(
        &mut self,
        source: &Source<'_>,
        site: &Site,
        hosts: &[At<Host>],
        at: &Range<usize>,
        on: impl Fn(usize) -> String,
    ) {
        for host in hosts {
            for &listener in &site.listeners {
                let earlier = self.hosts.insert((listener, host.value.clone()), host.span.start);
                if let Some(earlier) = earlier {
                    let line = source.line(earlier, host.span.start);
                    let text = format!("host '{}' has a site already ({line}){}", host.value, on(listener));
                    source.problem(&host.span, text);
                    break;
                }
            }
        }
        for &listener in site.listeners.iter().filter(|_| site.default) {
            if let Some(earlier) = self.defaults.insert(listener, at.start) {
                let line = source.line(earlier, at.start);
                source.problem(at, format!("there is a default site already ({line}){}", on(listener)));
                break;
            }
        }
    }
}

/// The settings of the cache in each folder, and the place of the first table with it.
type Folders = HashMap<PathBuf, (StoreOptions, usize)>;

/// Checks that no two caches use one folder. Equal settings mean one cache.
fn folders_of_caches(source: &Source<'_>, folders: &mut Folders, policies: &Policies, at: &Range<usize>) {
    let Setting::On(cache) = &policies.cache else { return };
    let Some(folder) = &cache.store.disk else { return };
    let (known, first) = folders
        .entry(folder.clone())
        .or_insert_with(|| (cache.store.clone(), at.start));
    if *known != cache.store {
        let text = format!(
            "two caches use the folder '{}' with different sizes (the other: {}): give both the same, or each its own folder",
            source.shown(folder),
            source.line(*first, at.start)
        );
        source.problem(at, text);
    }
}

/// The listener that a site names.
fn find(source: &Source<'_>, listeners: &[ListenAt], name: &At<String>) -> Option<usize> {
    let found = listeners.iter().position(|read| read.listener.name == name.value);
    if found.is_none() {
        let hint = match nearest(&name.value, listeners.iter().map(|read| read.listener.name.as_str())) {
            Some(guess) => format!("; did you mean '{guess}'?"),
            None => "; give one that name: [[listen]] name = \"…\"".into(),
        };
        let text = format!("no [[listen]] is called '{}'{hint}", name.value.escape_debug());
        source.problem(&name.span, text);
    }
    found
}

/// Finds routes that no request can reach: the first matching route answers. A rewrite passes on the requests that none
/// of its rules match, so it hides no route.
fn duplicates(source: &Source<'_>, routes: &[RouteAt]) {
    let answers = |read: &&RouteAt| read.sound && !matches!(read.route.handler, HandlerSettings::Rewrite(_));
    let routes: Vec<&RouteAt> = routes.iter().filter(answers).collect();
    let mut earlier = Prefixes::default();
    for one in &routes {
        let path = one.route.matches.path.as_deref();
        let hiding = earlier
            .of(path.unwrap_or_default().as_bytes())
            .map(|number| routes[number])
            .find(|earlier| takes_all_of(&earlier.route.matches, &one.route.matches));
        earlier.add(path);
        let Some(earlier) = hiding else { continue };
        let line = source.line(earlier.at.start, one.at.start);
        let text = if earlier.route.matches == one.route.matches {
            format!("duplicate route: the one in {line} takes the same requests, and the first wins")
        } else {
            format!("this route is never reached: the one in {line} takes all of its requests; put this one first")
        };
        source.problem(&one.at, text);
    }
}

/// Whether every request that `later` matches matches `earlier` too.
fn takes_all_of(earlier: &Match, later: &Match) -> bool {
    let path = match (&earlier.path, &later.path) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(earlier), Some(later)) => later
            .strip_prefix(earlier.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
    };
    let globs = earlier.globs.is_empty()
        || (!later.globs.is_empty() && later.globs.iter().all(|glob| earlier.globs.contains(glob)));
    let methods = earlier.methods.is_empty()
        || (!later.methods.is_empty() && later.methods.iter().all(|method| earlier.methods.contains(method)));
    path && globs && methods
}
