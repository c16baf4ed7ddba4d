//! One certificate from an issuer (RFC 8555 section 7.4): an order, the proofs that the names are ours, and the
//! certificate.
//!
//! ```text
//!   newOrder ─▶ for each name: challenge presented ─▶ "look now" ─▶ valid ─▶ removed
//!                                                                     │ all valid
//!   certificate ◀── valid ◀── finalize with the signing request ◀─────┘
//! ```
//!
//! The caller stores the key and the URL of the order before the order is finalized. If the process dies after that,
//! [`resume`] takes up the order again and no certificate is lost.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::jose::sha256;
use super::protocol::{Client, Error, described, one_line};

/// Longest time for the proof of one name, and for the making of the certificate.
const PATIENCE: Duration = Duration::from_secs(300);

/// The pause between two looks at the issuer's progress: the first one if the issuer names none, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// How a name is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A text at a path of the name's site, on port 80.
    Http01,
    /// A special certificate, on port 443 (RFC 8737).
    TlsAlpn01,
    /// A record in the domain name system. The only proof for a wildcard.
    Dns01,
}

/// The certificate that is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'w> {
    /// The names: of hosts, wildcards or addresses.
    pub names: &'w [String],
    /// A kind of certificate that the issuer offers.
    pub profile: Option<&'w str>,
    /// The certificate that this one replaces, by its identifier of RFC 9773.
    pub replaces: Option<&'w str>,
    /// The proofs that can be given, the best one first.
    pub kinds: &'w [Kind],
}

/// A proof to be shown.
#[derive(Debug, Clone, Copy)]
pub struct Challenge<'c> {
    pub kind: Kind,
    /// The name to be proved, without the `*.` of a wildcard.
    pub name: &'c str,
    pub token: &'c str,
    /// The text that proves it.
    pub authorization: &'c str,
}

impl Challenge<'_> {
    /// Value of the DNS record (RFC 8555 section 8.4).
    pub fn record(&self) -> String {
        data_encoding::BASE64URL_NOPAD.encode(&self.digest())
    }

    /// Value within the special certificate (RFC 8737 section 3).
    pub fn digest(&self) -> [u8; 32] {
        sha256(self.authorization.as_bytes())
    }
}

/// Shows proofs to issuers.
pub trait Solver {
    /// Shows a proof until the result is dropped.
    ///
    /// # Suspends
    /// Until the proof can be seen.
    ///
    /// # Errors
    /// One line: the proof cannot be shown.
    fn present(&self, challenge: &Challenge<'_>) -> Result<Box<dyn Presented>, String>;
}

/// A proof that is shown until its drop.
pub trait Presented {}

/// The URLs of an order. The caller stores the first one before [`finalize`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub url: String,
    finalize: String,
}

impl Kind {
    /// The name in the protocol and in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Http01 => "http-01",
            Kind::TlsAlpn01 => "tls-alpn-01",
            Kind::Dns01 => "dns-01",
        }
    }

    /// The kind with that name.
    pub fn of(name: &str) -> Option<Kind> {
        [Kind::Http01, Kind::TlsAlpn01, Kind::Dns01]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// Opens an order and proves its names.
///
/// # Suspends
/// Until the issuer has looked at every proof, or refuses.
///
/// # Errors
/// The issuer's errors, and a name that cannot be proved.
pub fn prove(client: &mut Client<'_>, wanted: &Wanted<'_>, solver: &dyn Solver) -> Result<Order, Error> {
    let identifiers: Vec<Value> = wanted.names.iter().map(|name| identifier(name)).collect();
    let mut payload = json!({ "identifiers": identifiers });
    if let Some(profile) = wanted.profile {
        let offered = &client.directory.profiles;
        if !offered.iter().any(|known| known == profile) {
            let offered = if offered.is_empty() {
                "none".to_owned()
            } else {
                offered.join(", ")
            };
            return Err(Error::Failed(format!(
                "the issuer has no profile '{profile}'; it offers {offered}"
            )));
        }
        payload["profile"] = profile.into();
    }
    if let (Some(replaces), Some(_)) = (wanted.replaces, &client.directory.renewal_info) {
        payload["replaces"] = replaces.into();
    }
    let url = client.directory.new_order.clone();
    let opened = match client.post(&url, &payload.to_string()) {
        // Another order may have replaced that certificate already, and another account or issuer may have ordered or signed it
        // (RFC 9773 section 5). The order is what matters.
        Err(Error::Problem(problem)) if payload.get("replaces").is_some() && problem.is_final() => {
            payload.as_object_mut().map(|payload| payload.remove("replaces"));
            client.post(&url, &payload.to_string())?
        }
        opened => opened?,
    };
    let body = opened.json()?;
    let order = Order {
        url: opened
            .location
            .ok_or_else(|| Error::Malformed("an order without its URL".into()))?,
        finalize: text(&body, "finalize")?.to_owned(),
    };
    for authorization in body["authorizations"].as_array().into_iter().flatten() {
        let url = authorization
            .as_str()
            .ok_or_else(|| Error::Malformed("an authorization without its URL".into()))?;
        prove_name(client, url, wanted, solver)?;
    }
    Ok(order)
}

/// Sends the signing request of an order whose names are proved, and fetches the certificate: a chain in PEM.
///
/// # Suspends
/// Until the issuer has made the certificate.
///
/// # Errors
/// The issuer's errors.
pub fn finalize(client: &mut Client<'_>, order: &Order, request: &[u8]) -> Result<String, Error> {
    // The order is ready a moment after its last name is proved.
    let ready = wait(client, &order.url, &["pending"], "the order")?;
    if ready["status"] == "ready" {
        let payload = json!({ "csr": data_encoding::BASE64URL_NOPAD.encode(request) });
        client.post(&order.finalize, &payload.to_string())?;
    }
    fetch(client, &order.url)
}

/// Takes up an order that was finalized before: the certificate, or `None` if there will be none.
///
/// # Suspends
/// Until the issuer has made the certificate.
///
/// # Errors
/// The connection's errors, and a refusal that is not for ever: the issuer still has the certificate.
pub fn resume(client: &mut Client<'_>, url: &str) -> Result<Option<String>, Error> {
    match client.get(url).and_then(|received| received.json()) {
        Ok(order) if order["status"] == "processing" || order["status"] == "valid" => match fetch(client, url) {
            // The order would answer the same each time.
            Err(Error::Problem(problem)) if problem.is_final() => Ok(None),
            Err(Error::Malformed(_)) => Ok(None),
            fetched => fetched.map(Some),
        },
        // Any other failure may last for ever.
        Err(Error::Problem(problem)) if problem.is_busy() => Err(Error::Problem(problem)),
        Ok(_) | Err(Error::Problem(_) | Error::Malformed(_) | Error::Failed(_)) => Ok(None),
        Err(error @ (Error::Io(_) | Error::NoNonce(_))) => Err(error),
    }
}

/// Waits for the certificate of an order, and fetches it.
fn fetch(client: &mut Client<'_>, url: &str) -> Result<String, Error> {
    let done = wait(client, url, &["ready", "processing"], "the order")?;
    let certificate = text(&done, "certificate")?;
    let chain = client.get(certificate)?.body;
    String::from_utf8(chain).map_err(|_| Error::Malformed("a certificate that is no text".into()))
}

/// Proves one name of an order, by the authorization at `url`.
fn prove_name(client: &mut Client<'_>, url: &str, wanted: &Wanted<'_>, solver: &dyn Solver) -> Result<(), Error> {
    let kinds = wanted.kinds;
    let authorization = client.get(url)?.json()?;
    // The issuer may remember a proof of an earlier order.
    if authorization["status"] == "valid" {
        return Ok(());
    }
    let name = text(&authorization["identifier"], "value")?;
    // The name becomes an argument of a program. An issuer may ask for the names of the order alone.
    if !wanted.names.iter().any(|wanted| is_same(wanted, name)) {
        return Err(Error::Malformed(format!(
            "an authorization of {name:?}, which is not in the order"
        )));
    }
    let challenges = authorization["challenges"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let offered = |kind: Kind| challenges.iter().find(|challenge| challenge["type"] == kind.name());
    let Some((kind, challenge)) = kinds.iter().find_map(|&kind| Some((kind, offered(kind)?))) else {
        let offered: Vec<&str> = challenges
            .iter()
            .filter_map(|challenge| challenge["type"].as_str())
            .collect();
        let wild = if authorization["wildcard"] == true { "*." } else { "" };
        let (offered, ours) = (
            offered.join(", "),
            kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", "),
        );
        let remedy = if wild.is_empty() {
            ""
        } else {
            "; a wildcard needs dns-01, so set 'dns' to a program that sets records"
        };
        return Err(Error::Failed(format!(
            "{wild}{name} cannot be proved: the issuer offers {offered}, and this site has {ours}{remedy}"
        )));
    };
    let token = text(challenge, "token")?;
    // The token becomes part of a path and of a file (RFC 8555 section 8.1).
    if token.is_empty()
        || !token
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    {
        return Err(Error::Malformed("a token that is not base64url".into()));
    }
    let proof = client.authorization(token);
    let presented = solver.present(&Challenge {
        kind,
        name,
        token,
        authorization: &proof,
    });
    let _presented = presented.map_err(|why| Error::Failed(format!("{}: {why}", kind.name())))?;
    client.post(text(challenge, "url")?, "{}")?;
    wait(client, url, &["pending"], name).map(drop)
}

/// Whether the issuer's `name` stands for a name of an order. The issuer leaves out the `*` of a wildcard, and may
/// write an address in another form.
fn is_same(wanted: &str, name: &str) -> bool {
    match address(wanted) {
        Some(ip) => name.parse() == Ok(ip),
        None => wanted.strip_prefix("*.").unwrap_or(wanted).eq_ignore_ascii_case(name),
    }
}

/// Waits until the status of a resource is none of `before`. Returns the resource. `what` names it in messages.
fn wait(client: &mut Client<'_>, url: &str, before: &[&str], what: &str) -> Result<Value, Error> {
    let (began, mut pause): (Instant, Duration) = (osier::time::now(), FIRST_PAUSE);
    loop {
        let received = client.get(url)?;
        let body = received.json()?;
        let status = text(&body, "status")?;
        if matches!(status, "invalid" | "expired" | "revoked" | "deactivated") {
            return Err(Error::Failed(format!("{what} is {status}: {}", reason(&body))));
        }
        if !before.contains(&status) {
            return Ok(body);
        }
        if osier::time::now().saturating_duration_since(began) > PATIENCE {
            return Err(Error::Failed(format!("{what} is still {status} after {PATIENCE:?}")));
        }
        let asked = received.pause().map(|asked| asked.max(FIRST_PAUSE));
        osier::sleep(asked.unwrap_or(pause).min(LONGEST_PAUSE));
        pause = pause * 3 / 2;
    }
}

/// The reason of a failed order or authorization.
fn reason(body: &Value) -> String {
    let of_challenge = body["challenges"].as_array().into_iter().flatten();
    let problems = std::iter::once(&body["error"]).chain(of_challenge.map(|challenge| &challenge["error"]));
    let problems: Vec<String> = problems.filter(|problem| problem.is_object()).map(described).collect();
    match problems.is_empty() {
        true => "no reason is given".to_owned(),
        false => one_line(&problems.join("; ")),
    }
}

/// A name as the protocol identifies it.
fn identifier(name: &str) -> Value {
    match address(name) {
        Some(ip) => json!({ "type": "ip", "value": ip.to_string() }),
        None => json!({ "type": "dns", "value": name }),
    }
}

/// The address that is the name of a certificate. That of IPv6 is in brackets, as it is in the configuration.
pub fn address(name: &str) -> Option<IpAddr> {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    bare.unwrap_or(name).parse().ok()
}

/// The text of a member of an object.
fn text<'v>(value: &'v Value, name: &str) -> Result<&'v str, Error> {
    let missing = || Error::Malformed(format!("an object without '{name}'"));
    value[name].as_str().ok_or_else(missing)
}
