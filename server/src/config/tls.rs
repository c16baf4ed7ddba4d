//! Reads TLS: `tls` of `[[listen]]`, and `tls`, `redirect_https` and `hsts` of `[[site]]`. Compares a site with its
//! listeners.

use std::ops::Range;
use std::path::PathBuf;

use osier_tls::{Acceptor, ClientCertificates, Hello, Identity, Resolver, Tickets};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use toml::de::DeValue;

use crate::certificates::acme::order::Kind;
use crate::certificates::acme::settings as acme;
use crate::certificates::inspect::{Part, inspect, permissions};
use crate::certificates::settings::{CertificateFiles, CertificateFrom};
use crate::certificates::x509::{Time, issuer_of_list, next_update};
use crate::reader::{Section, Source};

use super::address::{Address, DEFAULT_ADDRESS, is_ipv4_taken_with_ipv6};
use super::settings::*;

/// The default address for TLS where the internal authority signs every certificate.
pub const DEFAULT_TLS_ADDRESS: &str = "127.0.0.1:8443";

/// Seconds of a day, the least `max_age`: browsers keep the field from visit to visit.
const DAY: u64 = 86_400;

/// Values for the key `tls` of a site, for messages.
const FORMS: &str = "\"auto\", \"on-demand\", \"internal\" or { cert = \"FILE\", key = \"FILE\" }";

/// Places of the TLS keys of a site.
#[derive(Default)]
pub struct Places {
    tls: Option<Range<usize>>,
    redirect: Option<Range<usize>>,
    hsts: Option<Range<usize>>,
    /// The values of `cert` and `key`.
    files: Option<(Range<usize>, Range<usize>)>,
}

/// Reads `tls` of a listener: `true`, `false` or a table.
pub fn listen(section: &Section<'_>) -> Option<ListenTls> {
    let value = section.any("tls")?;
    if let DeValue::Boolean(is_on) = value.get_ref() {
        return is_on.then(ListenTls::default);
    }
    let Some(table) = section.as_section("tls", value, "true, false or a table") else {
        return Some(ListenTls::default());
    };
    let versions = [("1.2", TlsVersion::Tls12), ("1.3", TlsVersion::Tls13)];
    let min_version = table.choice("min_version", &versions).unwrap_or_default();
    let authorities = authorities(&table);
    let lists = revoked(&table, authorities.as_deref());
    let is_required = table.choice("client", &[("optional", false), ("required", true)]);
    if table.key("client_ca").is_none() {
        for key in ["client", "client_crl"] {
            let Some(at) = table.key(key) else { continue };
            let text =
                format!("'{key}' needs 'client_ca': the file with the authorities that sign the clients' certificates");
            section.source().problem(&at, text);
        }
    }
    if let Some(at) = table.key("cert").or(table.key("key")) {
        let text = "a certificate belongs to its site: [[site]] tls = { cert = \"FILE\", key = \"FILE\" }";
        section.source().problem(&at, text);
    }
    table.finish();
    let client = authorities.map(|authorities| ClientTls {
        authorities: [authorities, lists.unwrap_or_default()].join(&b'\n'),
        is_required: is_required.unwrap_or(true),
    });
    Some(ListenTls { min_version, client })
}

/// Tries authorities, or lists of revoked certificates beside them, as a listener uses them.
///
/// # Errors
/// The part that TLS refuses, and why.
fn try_clients(authorities: &[u8], lists: &[u8]) -> Result<(), osier_tls::Error> {
    struct Nobody;
    impl Resolver for Nobody {
        fn find(&self, _: &Hello<'_>) -> Option<Identity> {
            None
        }
    }
    let clients = ClientCertificates::Required([authorities, lists].join(&b'\n'));
    Acceptor::builder(Nobody).client_certificates(clients).build().map(drop)
}

/// Reads the authorities of clients. A file that is not there is a mistake: without it the listener would admit nobody,
/// or everybody.
fn authorities(table: &Section<'_>) -> Option<Vec<u8>> {
    let (path, bytes) = table.content("client_ca")?;
    let source = table.source();
    let shown = source.shown(&path.value);
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let text = match found {
        Ok(found) if !found.is_empty() => match try_clients(&bytes, b"") {
            Ok(()) => return Some(bytes),
            Err(error) => format!("'client_ca': '{shown}' cannot be used: {error}"),
        },
        _ => format!("'client_ca': '{shown}' holds no certificates in PEM form"),
    };
    source.problem(&path.span, text);
    None
}

/// Reads the lists of revoked certificates. A file that is not there is a mistake: without it the listener would admit
/// everybody. A list that is out of date counts on, with a warning.
fn revoked(table: &Section<'_>, authorities: Option<&[u8]>) -> Option<Vec<u8>> {
    let (path, bytes) = table.content("client_crl")?;
    let source = table.source();
    let shown = source.shown(&path.value);
    let ders: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    let ders = ders.unwrap_or_default();
    let ends: Result<Vec<_>, _> = ders.iter().map(|der| next_update(der)).collect();
    let Some(ends) = ends.ok().filter(|ends| !ends.is_empty()) else {
        let text = format!("'client_crl': '{shown}' holds no list of revoked certificates in PEM form (X509 CRL)");
        source.problem(&path.span, text);
        return None;
    };
    // The lists are passed on beside the authorities.
    if CertificateDer::pem_slice_iter(&bytes).next().is_some() {
        let text = format!("'client_crl': '{shown}' holds certificates, too: keep lists alone in it");
        source.problem(&path.span, text);
        return None;
    }
    let mut issuers: Vec<_> = ders.iter().filter_map(|der| issuer_of_list(der)).collect();
    let count = issuers.len();
    issuers.sort_unstable();
    issuers.dedup();
    if issuers.len() < count {
        let text = format!(
            "'client_crl': '{shown}' holds two lists of one authority, and only one can count: keep the newest"
        );
        source.problem(&path.span, text);
        return None;
    }
    // TLS takes no list of version 1, and none of changes or of some reasons alone.
    if let Some(Err(error)) = authorities.map(|authorities| try_clients(authorities, &bytes)) {
        let text = format!(
            "'client_crl': '{shown}' cannot be used: {error}; it must hold whole lists of version 2 (RFC 5280)"
        );
        source.problem(&path.span, text);
        return None;
    }
    if let Some(end) = ends.into_iter().flatten().min().filter(|end| *end < Time::now()) {
        source.warning(
            &path.span,
            format!("'{shown}': a newer list was due on {end}; until it is there, this one counts"),
        );
    }
    Some(bytes)
}

/// Reads `ticket_keys`. A file that is not there yet, that holds something else, or that everybody may read, is a
/// warning.
pub fn ticket_keys(top: &Section<'_>) -> Option<PathBuf> {
    let text = top.string("ticket_keys")?;
    let path = top.as_file(
        &text,
        "sessions are sealed by keys of this process alone until the next start",
    )?;
    let source = top.source();
    let held = std::fs::read(&path).ok().map(|bytes| Tickets::from_keys(&bytes));
    if let Some(Err(error)) = held {
        source.warning(
            &text.span,
            format!(
                "'{}': {error}; a running server keeps the keys that it has, and a start makes its own",
                source.shown(&path)
            ),
        );
    }
    if let Some(why) = permissions(&path) {
        source.warning(&text.span, format!("'{}' {why}", source.shown(&path)));
    }
    Some(path)
}

/// Reads the TLS keys of a site.
pub fn site(section: &Section<'_>, acme: &acme::Settings) -> (SiteTls, Places) {
    let mut places = Places {
        tls: section.key("tls"),
        redirect: section.key("redirect_https"),
        hsts: section.key("hsts"),
        files: None,
    };
    let tls = SiteTls {
        certificate: certificate(section, acme, &mut places),
        redirect: redirect(section),
        hsts: hsts(section),
    };
    (tls, places)
}

/// Reads `tls` of a site, and `acme`.
fn certificate(section: &Section<'_>, acme: &acme::Settings, places: &mut Places) -> Option<CertificateFrom> {
    let own_at = section.key("acme");
    let own = section.section("acme").map(|section| super::acme::read(section, acme));
    let mistakes = section.source().mistake_count();
    let found = certificate_from(section, own.as_ref().unwrap_or(acme), acme, places);
    let Some(at) = own_at else { return found };
    let text = match found {
        Some(CertificateFrom::Auto(_)) => return found,
        Some(CertificateFrom::OnDemand) => {
            "a site with tls = \"on-demand\" has no 'acme' of its own: set the keys of [acme]"
        }
        // The mistake in 'tls' comes first.
        _ if section.source().mistake_count() > mistakes => return found,
        _ => "'acme' of a site is for tls = \"auto\", which this one does not have: write it, or remove 'acme'",
    };
    section.source().problem(&at, text);
    found
}

/// Reads `tls` of a site. `own` are the settings for its certificate, `acme` those of certificates on demand.
fn certificate_from(
    section: &Section<'_>,
    own: &acme::Settings,
    acme: &acme::Settings,
    places: &mut Places,
) -> Option<CertificateFrom> {
    let value = section.any("tls")?;
    match value.get_ref() {
        DeValue::String(_) => {
            let text = section.as_string("tls", value, FORMS)?;
            match text.value.as_str() {
                "auto" => return Some(CertificateFrom::Auto(Box::new(own.clone()))),
                "on-demand" => {
                    if acme.ask.is_none() {
                        let text = "tls = \"on-demand\" needs 'ask' in [acme]: a URL that says which names may have a certificate";
                        section.source().problem(&value.span(), text);
                    }
                    return Some(CertificateFrom::OnDemand);
                }
                "internal" => return Some(CertificateFrom::Internal),
                other => section.source().problem(
                    &text.span,
                    format!("'tls' cannot be \"{}\": write {FORMS}", other.escape_debug()),
                ),
            }
            None
        }
        DeValue::Table(_) => {
            let table = section.as_section("tls", value, FORMS)?;
            table.require(
                "cert",
                "the file with the certificate and those that lead to its authority, in PEM form",
            );
            table.require("key", "the file with the private key, in PEM form");
            let (cert, key) = (named(&table, "cert"), named(&table, "key"));
            table.finish();
            let ((cert, cert_at), (key, key_at)) = cert.zip(key)?;
            places.files = Some((cert_at, key_at));
            Some(CertificateFrom::Files(CertificateFiles { cert, key }))
        }
        _ => {
            section.mistyped("tls", value, FORMS);
            None
        }
    }
}

/// The path that a key names, as seen from outside of a changed root folder.
fn named(table: &Section<'_>, key: &'static str) -> Option<(PathBuf, Range<usize>)> {
    let text = table.string(key).filter(|text| !table.is_content(text))?;
    if text.value.is_empty() {
        table
            .source()
            .problem(&text.span, format!("'{key}' is empty; name the file"));
        return None;
    }
    Some((table.source().named(&text.value), text.span))
}

/// Reads `redirect_https`: `true`, `false`, or the port that clients use.
fn redirect(section: &Section<'_>) -> Setting<Redirect> {
    let Some(value) = section.any("redirect_https") else {
        return Setting::Inherited;
    };
    match value.get_ref() {
        DeValue::Boolean(true) => Setting::On(Redirect { port: None }),
        DeValue::Boolean(false) => Setting::Off,
        DeValue::Integer(_) => match section.integer("redirect_https", 1..=65_535) {
            Some(port) => Setting::On(Redirect {
                port: u16::try_from(port).ok(),
            }),
            None => Setting::Off,
        },
        _ => {
            section.mistyped("redirect_https", value, "true, false, or the port of https");
            Setting::Off
        }
    }
}

/// Reads `hsts`: a duration, or a table.
fn hsts(section: &Section<'_>) -> Option<String> {
    let value = section.any("hsts")?;
    let (age, flags) = match value.get_ref() {
        DeValue::Table(_) => {
            let table = section.as_section("hsts", value, "a table")?;
            table.require("max_age", "how long browsers remember it, \"180d\" for example");
            let age = table.duration("max_age");
            let subdomains = table.boolean("subdomains").unwrap_or(false);
            let preload = table.boolean("preload").unwrap_or(false);
            table.finish();
            let flags = [(subdomains, "; includeSubDomains"), (preload, "; preload")];
            let flags = flags.into_iter().filter(|(is_on, _)| *is_on).map(|(_, flag)| flag);
            (age, flags.collect::<String>())
        }
        DeValue::Boolean(_) => {
            section.as_section("hsts", value, "a duration of at least \"1d\", or a table")?;
            return None;
        }
        _ => (section.duration("hsts"), String::new()),
    };
    let seconds = age?.as_secs();
    if seconds < DAY {
        let text = "browsers keep 'hsts' from visit to visit: give it at least \"1d\", or leave it out";
        section.source().problem(&value.span(), text);
    }
    Some(format!("max-age={seconds}{flags}"))
}

/// The listeners of a file that names none. They include https if a site has a certificate.
pub fn default_listeners<'s>(sites: impl Iterator<Item = &'s Site>) -> Vec<Listener> {
    let is_public = |certificate: &CertificateFrom| *certificate != CertificateFrom::Internal;
    let certificates: Vec<_> = sites.filter_map(|site| site.tls.certificate.as_ref()).collect();
    let address = |text: &str| Bind::Tcp(text.parse::<Address>().expect("a literal that a test parses").0);
    let (plain, https) = match (certificates.first(), certificates.iter().any(|one| is_public(one))) {
        (None, _) => return vec![Listener::new(address(DEFAULT_ADDRESS))],
        (Some(_), false) => (vec![DEFAULT_ADDRESS], vec![DEFAULT_TLS_ADDRESS]),
        (Some(_), true) => match is_ipv4_taken_with_ipv6() {
            _ if !has_ipv6() => (vec!["0.0.0.0:80"], vec!["0.0.0.0:443"]),
            true => (vec!["[::]:80"], vec!["[::]:443"]),
            false => (vec!["[::]:80", "0.0.0.0:80"], vec!["[::]:443", "0.0.0.0:443"]),
        },
    };
    let plain = plain.into_iter().map(|text| Listener::new(address(text)));
    let https = https.into_iter().map(|text| Listener {
        tls: Some(ListenTls::default()),
        ..Listener::new(address(text))
    });
    plain.chain(https).collect()
}

/// Gives a site its part of the default listeners: a site without a certificate gets those without TLS. A site with a
/// public certificate redirects requests in the clear to https, unless it says otherwise.
pub fn use_default_listeners(site: &mut Site, has_tls: impl Fn(usize) -> bool) {
    match &site.tls.certificate {
        None => site.listeners.retain(|&listener| !has_tls(listener)),
        Some(CertificateFrom::Internal) => {}
        Some(_) if site.tls.redirect == Setting::Inherited => site.tls.redirect = Setting::On(Redirect { port: None }),
        Some(_) => {}
    }
}

/// Whether the system has IPv6 at all.
fn has_ipv6() -> bool {
    std::fs::metadata("/proc/net/if_inet6").is_ok_and(|file| file.is_file())
        && std::fs::read("/proc/sys/net/ipv6/conf/all/disable_ipv6").is_ok_and(|value| value.trim_ascii() != b"1")
}

/// Compares a site with its listeners. `is_named`: the site names them.
pub fn check_site(
    source: &Source<'_>,
    listeners: &[&Listener],
    site: &Site,
    (places, at): (&Places, &Range<usize>),
    is_named: bool,
) {
    let https = listeners.iter().find(|listener| listener.tls.is_some());
    let has_plain = listeners.iter().any(|listener| listener.tls.is_none());
    match (&site.tls.certificate, https) {
        (None, Some(listener)) if places.tls.is_none() => {
            let name = site
                .hosts
                .first()
                .map_or("the default site".into(), |host| format!("the site '{host}'"));
            let remedy = match (is_named, has_plain) {
                (true, _) => "take that name out of 'listen'",
                (false, true) => "name other listeners in its 'listen'",
                (false, false) => "add a listener without 'tls' for it",
            };
            let text = format!(
                "{name} has no 'tls', and the listener '{}' has: write tls = {FORMS}, or {remedy}",
                listener.name
            );
            source.problem(at, text);
        }
        (Some(_), None) => {
            let text = "'tls' has no effect: no listener of this site has 'tls'; add [[listen]] with address = \":443\" and tls = true";
            source.problem(places.tls.as_ref().unwrap_or(at), text);
        }
        _ => {}
    }
    if let (Some(place), Setting::On(redirect)) = (&places.redirect, &site.tls.redirect) {
        if !has_plain {
            source.problem(
                place,
                "'redirect_https' has no effect: every listener of this site has 'tls'",
            );
        } else if https.is_none() && redirect.port.is_none() {
            let text = "'redirect_https' has nowhere to lead: no listener of this site has 'tls'; where a proxy in front has it, \
                        write the port: redirect_https = 443";
            source.problem(place, text);
        }
    }
    if let (Some(place), None, Some(_)) = (&places.hsts, https, &site.tls.hsts)
        && !listeners.iter().any(|listener| listener.real_ip.is_some())
        && site.real_ip.is_none()
    {
        let text =
            "'hsts' has no effect: no listener of this site has 'tls', and no 'real_ip' names a proxy that has it";
        source.problem(place, text);
    }
    if let Some(CertificateFrom::Auto(settings)) = &site.tls.certificate {
        auto_hosts(source, site, settings, places.tls.as_ref().unwrap_or(at));
    }
    if let (Some(CertificateFrom::Files(files)), Some((cert_at, key_at))) = (&site.tls.certificate, &places.files) {
        let hosts: Vec<String> = site.hosts.iter().map(Host::to_string).collect();
        certificate_files(source, files, &hosts, (cert_at, key_at));
    }
}

/// Checks the names of a site with `tls = "auto"`: a public authority needs names that the public can look up.
fn auto_hosts(source: &Source<'_>, site: &Site, settings: &acme::Settings, at: &Range<usize>) {
    if site.hosts.is_empty() {
        source.problem(
            at,
            "tls = \"auto\" needs to know for which names: give the site its 'host'",
        );
    }
    let is_public = settings.issuers.iter().any(acme::Issuer::is_public);
    for host in &site.hosts {
        let name = host.to_string();
        let can_use_dns = settings.kinds.is_empty() || settings.kinds.contains(&Kind::Dns01);
        if name.starts_with("*.") && (settings.dns.is_none() || !can_use_dns) {
            let remedy = match settings.dns {
                None => "set 'dns' in [acme] to a program that sets records",
                Some(_) => "add \"dns-01\" to 'challenges'",
            };
            source.problem(at, format!("only a DNS record proves '{name}': {remedy}"));
        }
        if !is_public {
            continue;
        }
        let is_local = ["localhost", "local", "internal", "test"]
            .iter()
            .any(|end| name.rsplit('.').next() == Some(end));
        if is_local || !name.contains('.') || name.starts_with('[') || name.parse::<std::net::Ipv4Addr>().is_ok() {
            source.problem(
                at,
                format!("no public authority signs '{name}': write tls = \"internal\", or name the site's files"),
            );
        }
    }
}

/// Warns of a challenge that needs requests in the clear where no listener takes them. Any listener can answer it for
/// any site. `acme` has the settings of certificates on demand.
pub fn challenges(source: &Source<'_>, site: &Site, acme: &acme::Settings, (places, at): (&Places, &Range<usize>)) {
    let settings = match &site.tls.certificate {
        Some(CertificateFrom::Auto(settings)) => settings,
        Some(CertificateFrom::OnDemand) => acme,
        _ => return,
    };
    if settings.kinds != [Kind::Http01] {
        return;
    }
    let text = "the challenge \"http-01\" comes to port 80 in the clear, and every listener has 'tls': add [[listen]] with address = \":80\", \
                or allow \"tls-alpn-01\"";
    source.warning(places.tls.as_ref().unwrap_or(at), text);
}

/// Warns of everything that is wrong with a certificate. The site serves another one meanwhile, so nothing here is a
/// mistake.
fn certificate_files(
    source: &Source<'_>,
    files: &CertificateFiles,
    hosts: &[String],
    (cert_at, key_at): (&Range<usize>, &Range<usize>),
) {
    let (Some(cert), Some(key)) = (source.inside(&files.cert), source.inside(&files.key)) else {
        // The files were read before the root folder changed.
        return;
    };
    for (part, text) in inspect(&cert, &key, hosts, Time::now(), |path| source.shown(path)) {
        let at = match part {
            Part::Cert => cert_at,
            Part::Key => key_at,
        };
        source.warning(at, text);
    }
}
