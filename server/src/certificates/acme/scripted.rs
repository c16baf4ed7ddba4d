//! An issuer and a storage in memory, for tests. The issuer checks every signature and nonce, validates proofs as a
//! real one would, and fails on demand.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD as BASE64;
use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer as Signer, KeyPair};
use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::challenge::Board;
use super::jose::AccountKey;
use super::order::Presented;
use super::protocol::{Received, Transport};
use super::storage::{Advice, Held, Locking, Pending, Storage, Stored};

pub const DIRECTORY: &str = "https://issuer.test/dir";

/// The proofs that listeners show: texts by token, certificates by name.
#[derive(Clone, Default)]
pub struct Shown(Arc<Mutex<HashMap<String, Vec<u8>>>>);

impl Shown {
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }

    fn give(&self, key: &str, value: &[u8]) -> Box<dyn Presented> {
        self.0.lock().unwrap().insert(key.to_owned(), value.to_owned());
        Box::new(Given(self.clone(), key.to_owned()))
    }
}

impl Board for Shown {
    fn give_text(&self, token: &str, text: &str) -> Box<dyn Presented> {
        self.give(token, text.as_bytes())
    }

    fn give_certificate(&self, name: &str, certificate: &[u8], _: &[u8]) -> Result<Box<dyn Presented>, String> {
        Ok(self.give(name, certificate))
    }
}

struct Given(Shown, String);

impl Presented for Given {}

impl Drop for Given {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

/// The ways in which the issuer misbehaves, and what it offers.
#[derive(Default)]
pub struct Script {
    /// Every request but each n-th has its nonce refused.
    pub accepts_each: usize,
    /// Offers `renewalInfo` with this window.
    pub window: Option<(String, String)>,
    /// Where it explains that window.
    pub explains: Option<&'static str>,
    /// The status that answers a question for that window, instead of it.
    pub refuses_questions: Option<u16>,
    /// Knows none of the certificates that are to be replaced.
    pub knows_no_predecessor: bool,
    /// The status that answers for every account, which is closed.
    pub closes_accounts: Option<u16>,
    pub profiles: Vec<String>,
    pub needs_binding: bool,
    /// The name whose proof fails.
    pub fails: Option<String>,
    /// The name that it asks to prove instead of each name of the order.
    pub asks_for: Option<String>,
    /// The certificate of its first order is for another key.
    pub mixes_up_keys: bool,
    /// The kinds of proofs that it offers.
    pub kinds: Vec<&'static str>,
    /// No connection gets through.
    pub is_down: bool,
    /// Connections break after the order was finalized.
    pub breaks_after_finalize: bool,
    /// The status that answers every question for an order, and every request for a nonce.
    pub refuses_looks: Option<u16>,
    pub refuses_nonces: Option<u16>,
    /// The certificate of its first order cannot be fetched.
    pub loses_certificate: bool,
    /// The next new order makes the client panic.
    pub makes_panic: bool,
    /// The answer to a new order, instead of an order.
    pub refuses_orders: Option<(u16, Value, Option<String>)>,
    /// The lifetime of its certificates, from the time of day of the runtime on.
    pub lifetime: Option<Duration>,
    /// It believes every signature.
    pub believes: bool,
}

impl Script {
    /// Sets the validity of a certificate that it signs now.
    fn limit(&self, params: &mut CertificateParams) {
        if let Some(lifetime) = self.lifetime {
            let now = OffsetDateTime::from(osier::time::system_now());
            (params.not_before, params.not_after) = (now, now + lifetime);
        }
    }
}

pub struct Issuer {
    pub script: Mutex<Script>,
    pub shown: Shown,
    state: Mutex<State>,
    signer: Signer<'static, KeyPair>,
}

/// The profile that an order asks for, and the certificate that it replaces.
type Asked = (Option<String>, Option<String>);

#[derive(Default)]
struct State {
    requests: usize,
    directories: usize,
    questions: usize,
    nonces: HashSet<String>,
    /// Public keys by the URL of their accounts.
    accounts: HashMap<String, Value>,
    /// Names and status of orders, and the chain.
    orders: Vec<Order>,
    /// The profile and the replaced certificate of each order.
    asked: Vec<Asked>,
    finalized: bool,
}

struct Order {
    names: Vec<String>,
    proved: HashSet<String>,
    looks: usize,
    chain: Option<String>,
}

/// A storage in memory, which may have no room.
#[derive(Default)]
pub struct Memory {
    pub is_full: AtomicBool,
    texts: Mutex<HashMap<String, String>>,
    account: OnceLock<Vec<u8>>,
}

impl Memory {
    fn put(&self, name: &str, kind: &str, text: String) -> io::Result<()> {
        match self.is_full.load(Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => {
                self.texts.lock().unwrap().insert(format!("{name} {kind}"), text);
                Ok(())
            }
        }
    }

    fn text(&self, name: &str, kind: &str) -> Option<String> {
        self.texts.lock().unwrap().get(&format!("{name} {kind}")).cloned()
    }
}

impl Held for () {}

impl Storage for Memory {
    fn description(&self) -> &'static str {
        "the memory"
    }

    fn lock(&self, _: &str) -> io::Result<Locking> {
        Ok(Locking::Taken(Box::new(())))
    }

    fn certificate(&self, name: &str) -> io::Result<Option<Stored>> {
        self.text(name, "pem").map(|text| Stored::from_text(&text)).transpose()
    }

    fn put_certificate(&self, name: &str, stored: &Stored) -> io::Result<()> {
        self.put(name, "pem", stored.to_text())?;
        self.texts.lock().unwrap().remove(&format!("{name} order"));
        Ok(())
    }

    fn pending(&self, name: &str) -> io::Result<Option<Pending>> {
        self.text(name, "order")
            .map(|text| Pending::from_text(&text))
            .transpose()
    }

    fn put_pending(&self, name: &str, pending: &Pending) -> io::Result<()> {
        self.put(name, "order", pending.to_text())
    }

    fn advice(&self, name: &str) -> io::Result<Option<Advice>> {
        self.text(name, "advice")
            .map(|text| Advice::from_text(&text))
            .transpose()
    }

    fn put_advice(&self, name: &str, advice: &Advice) -> io::Result<()> {
        self.put(name, "advice", advice.to_text())
    }

    fn account(&self, _: &str) -> io::Result<AccountKey> {
        let pkcs8 = self.account.get_or_init(|| AccountKey::generate().pkcs8().to_vec());
        Ok(AccountKey::from_pkcs8(pkcs8).unwrap())
    }
}

thread_local! {
    static NONCE: RefCell<u64> = const { RefCell::new(0) };
}

impl Issuer {
    pub fn new(script: Script) -> Arc<Issuer> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Arc::new(Issuer {
            script: Mutex::new(script),
            shown: Shown::default(),
            state: Mutex::default(),
            signer: Signer::new(params, KeyPair::generate().unwrap()),
        })
    }

    /// The number of accounts, and of orders with their profile and the certificate that they replace.
    pub fn counts(&self) -> (usize, Vec<Asked>) {
        let state = self.state.lock().unwrap();
        (state.accounts.len(), state.asked.clone())
    }

    /// How often the directory was fetched, and how often a renewal window was asked for.
    pub fn looks(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        (state.directories, state.questions)
    }

    /// A certificate for these names, without an order.
    pub fn issue(&self, names: &[String]) -> Stored {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        params.use_authority_key_identifier_extension = true;
        self.script.lock().unwrap().limit(&mut params);
        Stored {
            chain: params.signed_by(&key, &self.signer).unwrap().pem(),
            key: key.serialize_pem(),
            origin: None,
        }
    }

    fn post(&self, url: &str, body: &str) -> Received {
        let script = self.script.lock().unwrap();
        let mut state = self.state.lock().unwrap();
        state.requests += 1;
        let body: Value = serde_json::from_str(body).expect("the body is JSON");
        let part = |name: &str| BASE64.decode(body[name].as_str().unwrap().as_bytes()).unwrap();
        let protected: Value = serde_json::from_slice(&part("protected")).unwrap();
        assert_eq!((&protected["alg"], &protected["url"]), (&json!("ES256"), &json!(url)));
        let is_known = state.nonces.remove(protected["nonce"].as_str().unwrap());
        if !is_known || (script.accepts_each > 1 && !state.requests.is_multiple_of(script.accepts_each)) {
            return problem(400, "badNonce", "try again");
        }
        let key = match protected["kid"].as_str() {
            Some(account) => state.accounts.get(account).expect("the account is known").clone(),
            None => protected["jwk"].clone(),
        };
        let mut point = vec![4];
        for axis in ["x", "y"] {
            point.extend(BASE64.decode(key[axis].as_str().unwrap().as_bytes()).unwrap());
        }
        let signed = format!(
            "{}.{}",
            body["protected"].as_str().unwrap(),
            body["payload"].as_str().unwrap()
        );
        if !script.believes {
            let verifier = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
            verifier
                .verify(signed.as_bytes(), &part("signature"))
                .expect("the signature is that of the key");
        }
        let payload = part("payload");
        let payload: Value = if payload.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&payload).unwrap()
        };
        let path = url.strip_prefix("https://issuer.test/").unwrap();
        match path.split('/').collect::<Vec<_>>()[..] {
            ["new-account"] if script.closes_accounts.is_some() => {
                let status = script.closes_accounts.unwrap_or_default();
                problem(
                    status,
                    "unauthorized",
                    "Account is not valid, has status \"deactivated\"",
                )
            }
            ["new-account"] => {
                assert_eq!(payload["termsOfServiceAgreed"], true);
                if script.needs_binding {
                    assert!(payload["externalAccountBinding"]["signature"].is_string());
                }
                let known = state
                    .accounts
                    .iter()
                    .find(|(_, known)| **known == key)
                    .map(|(url, _)| url.clone());
                let location = known.unwrap_or_else(|| format!("https://issuer.test/account/{}", state.accounts.len()));
                state.accounts.insert(location.clone(), key);
                Received {
                    location: Some(location),
                    ..json_reply(201, &json!({ "status": "valid" }))
                }
            }
            ["new-order"] => {
                if let Some((status, body, retry_after)) = &script.refuses_orders {
                    return Received {
                        retry_after: retry_after.clone(),
                        ..json_reply(*status, body)
                    };
                }
                if script.knows_no_predecessor && payload["replaces"].is_string() {
                    return problem(403, "unauthorized", "this account has not ordered that certificate");
                }
                let names = payload["identifiers"].as_array().unwrap().iter();
                for name in names.clone() {
                    let is_address = name["value"].as_str().unwrap().parse::<IpAddr>().is_ok();
                    assert_eq!(name["type"], if is_address { "ip" } else { "dns" });
                }
                let names: Vec<String> = names.map(|name| name["value"].as_str().unwrap().to_owned()).collect();
                let text = |name: &str| payload[name].as_str().map(str::to_owned);
                state.asked.push((text("profile"), text("replaces")));
                state.orders.push(Order {
                    names,
                    proved: HashSet::new(),
                    looks: 0,
                    chain: None,
                });
                let number = state.orders.len() - 1;
                let body = order_body(&state.orders[number], number);
                Received {
                    location: Some(format!("https://issuer.test/order/{number}")),
                    ..json_reply(201, &body)
                }
            }
            ["authorization", number, name] => {
                let order = &state.orders[number.parse::<usize>().unwrap()];
                let (bare, is_wild) = (name.trim_start_matches("*."), name.starts_with("*."));
                let bare = script.asks_for.as_deref().unwrap_or(bare);
                let kinds = script.kinds.iter().filter(|kind| !is_wild || **kind == "dns-01");
                let failed = script.fails.as_deref() == Some(name) && order.looks > 0;
                let challenges: Vec<Value> = kinds
                    .map(|kind| json!({ "type": kind, "token": format!("t-{number}"), "url": format!("https://issuer.test/challenge/{number}/{name}/{kind}"),
                        "error": failed.then(|| json!({ "detail": "nobody answers\nthere" })) }))
                    .collect();
                let status = if failed {
                    "invalid"
                } else if order.proved.contains(name) {
                    "valid"
                } else {
                    "pending"
                };
                json_reply(
                    200,
                    &json!({ "status": status, "identifier": { "type": "dns", "value": bare }, "wildcard": is_wild, "challenges": challenges }),
                )
            }
            ["challenge", number, name, kind] => {
                let proof = self.proof(kind, &format!("t-{number}"), name, &key);
                let order = &mut state.orders[number.parse::<usize>().unwrap()];
                order.looks += 1;
                if proof {
                    order.proved.insert(name.to_owned());
                }
                json_reply(200, &json!({ "status": "processing" }))
            }
            ["finalize", number] => {
                let request = BASE64.decode(payload["csr"].as_str().unwrap().as_bytes()).unwrap();
                let request = CertificateSigningRequestParams::from_der(&request.into()).unwrap();
                let mut request = request;
                request.params.use_authority_key_identifier_extension = true;
                script.limit(&mut request.params);
                let number: usize = number.parse().unwrap();
                let chain = match script.mixes_up_keys && number == 0 {
                    true => request.params.signed_by(&KeyPair::generate().unwrap(), &self.signer),
                    false => request.signed_by(&self.signer),
                };
                let chain = chain.unwrap().pem();
                state.orders[number].chain = Some(chain);
                state.finalized = true;
                json_reply(200, &order_body(&state.orders[number], number))
            }
            ["order", _] if script.refuses_looks.is_some() => problem(
                script.refuses_looks.unwrap_or_default(),
                "rateLimited",
                "come back later",
            ),
            ["order", number] => {
                let number: usize = number.parse().unwrap();
                json_reply(200, &order_body(&state.orders[number], number))
            }
            ["certificate", "0"] if script.loses_certificate => problem(404, "malformed", "it is gone"),
            ["certificate", number] => {
                let chain = state.orders[number.parse::<usize>().unwrap()].chain.clone().unwrap();
                Received {
                    status: 200,
                    body: chain.into_bytes(),
                    ..Received::default()
                }
            }
            _ => problem(404, "malformed", "there is nothing"),
        }
    }

    /// Whether the proof of a name is shown.
    fn proof(&self, kind: &str, token: &str, name: &str, key: &Value) -> bool {
        let sorted = format!(r#"{{"crv":"P-256","kty":"EC","x":{},"y":{}}}"#, key["x"], key["y"]);
        let authorization = format!("{token}.{}", BASE64.encode(&super::jose::sha256(sorted.as_bytes())));
        match kind {
            "http-01" => self
                .shown
                .0
                .lock()
                .unwrap()
                .get(token)
                .is_some_and(|shown| *shown == authorization.as_bytes()),
            "tls-alpn-01" => {
                let certificates = self.shown.0.lock().unwrap();
                let Some(der) = certificates.get(name) else {
                    return false;
                };
                let digest = super::jose::sha256(authorization.as_bytes());
                der.windows(digest.len()).any(|window| window == digest)
            }
            _ => false,
        }
    }
}

impl Transport for Arc<Issuer> {
    fn send(&self, method: &str, url: &str, body: Option<&str>) -> io::Result<Received> {
        let (is_down, breaks) = {
            let script = self.script.lock().unwrap();
            (script.is_down, script.breaks_after_finalize)
        };
        if is_down || (breaks && self.state.lock().unwrap().finalized) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if url.ends_with("/new-order") && std::mem::take(&mut self.script.lock().unwrap().makes_panic) {
            panic!("the script says so");
        }
        let mut received = match (method, url) {
            ("GET", DIRECTORY) => {
                self.state.lock().unwrap().directories += 1;
                let script = self.script.lock().unwrap();
                let profiles: HashMap<_, _> = script.profiles.iter().map(|name| (name, "")).collect();
                let mut directory = json!({
                    "newNonce": "https://issuer.test/new-nonce",
                    "newAccount": "https://issuer.test/new-account",
                    "newOrder": "https://issuer.test/new-order",
                    "meta": { "externalAccountRequired": script.needs_binding, "profiles": profiles },
                });
                if script.window.is_some() {
                    directory["renewalInfo"] = "https://issuer.test/renewal".into();
                }
                json_reply(200, &directory)
            }
            ("HEAD", "https://issuer.test/new-nonce") => {
                let refused = self.script.lock().unwrap().refuses_nonces;
                Received {
                    status: refused.unwrap_or(200),
                    retry_after: refused.map(|_| "36000".into()),
                    ..Received::default()
                }
            }
            ("GET", url) if url.starts_with("https://issuer.test/renewal/") => {
                self.state.lock().unwrap().questions += 1;
                let script = self.script.lock().unwrap();
                let (start, end) = script.window.as_ref().unwrap();
                let window = json!({ "start": start, "end": end });
                match script.refuses_questions {
                    Some(status) => problem(status, "serverInternal", "come back later"),
                    None => json_reply(
                        200,
                        &json!({ "suggestedWindow": window, "explanationURL": script.explains }),
                    ),
                }
            }
            ("POST", url) => self.post(url, body.expect("a POST has a body")),
            _ => problem(405, "malformed", "no such request"),
        };
        let nonce = NONCE.with_borrow_mut(|nonce| {
            *nonce += 1;
            format!("nonce-{nonce}")
        });
        self.state.lock().unwrap().nonces.insert(nonce.clone());
        received.nonce = Some(nonce);
        Ok(received)
    }
}

fn order_body(order: &Order, number: usize) -> Value {
    let status = match (&order.chain, order.names.iter().all(|name| order.proved.contains(name))) {
        (Some(_), _) => "valid",
        (None, true) => "ready",
        (None, false) => "pending",
    };
    let authorizations = order
        .names
        .iter()
        .map(|name| format!("https://issuer.test/authorization/{number}/{name}"));
    json!({
        "status": status,
        "authorizations": authorizations.collect::<Vec<_>>(),
        "finalize": format!("https://issuer.test/finalize/{number}"),
        "certificate": order.chain.as_ref().map(|_| format!("https://issuer.test/certificate/{number}")),
    })
}

fn json_reply(status: u16, body: &Value) -> Received {
    Received {
        status,
        body: body.to_string().into_bytes(),
        ..Received::default()
    }
}

pub fn problem(status: u16, kind: &str, detail: &str) -> Received {
    json_reply(
        status,
        &json!({ "type": format!("urn:ietf:params:acme:error:{kind}"), "detail": detail }),
    )
}
