//! State that several machines share in a Redis server. They have one certificate for a name, resume each other's TLS
//! sessions and answer each other's challenges.
//!
//! ```text
//!   osier:account:ISSUER       key of the account                  osier:lock:NAME     owner of the order; expires
//!   osier:certificate:NAME     private key and chain               osier:challenges    responses to challenges, a hash
//!   osier:order:NAME           an order on its way                 osier:changes       names with a new certificate, newest first
//!   osier:advice:NAME          the issuer's answer about renewal   osier:changed       number of changes so far
//!   osier:lock:proof/NAME      owner of the proof; expires         osier:tickets       keys of session tickets
//! ```
//!
//! One fiber polls Redis every [`POLL`]. It copies the responses to challenges into memory, where handshakes and
//! requests find them, and reports changed certificates. So no handshake and no request waits for Redis, and made-up
//! requests cause no commands. A machine that publishes a response waits for [`PROPAGATION`] before it notifies the
//! issuer, so that all others have the response.
//!
//! While Redis is away, only the polling fiber tries to reach it, at growing intervals. It reports the beginning of the
//! outage and its end, and every other call fails at once.
//!
//! A key from a file may seal the values. A sealed value is bound to its name, so an attacker who can write to Redis
//! cannot swap values.

mod rotation;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use osier_tls::{Identity, Tickets};
use osier_web::pubsub::{Client, Reply};
use osier_web::wrap::session::CookieKeys;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

use super::challenges::{Challenges, Key, Response};
use crate::log::operator::Say;

pub use self::rotation::random_keys;

/// The time between two polls of Redis, and the longest one during an outage.
const POLL: Duration = Duration::from_secs(1);
const POLL_MAX: Duration = Duration::from_secs(30);

/// The time after which every machine has polled once more.
const PROPAGATION: Duration = Duration::from_millis(2500);

/// How long responses to challenges are kept, in milliseconds after the last one was given, and in seconds for each. A
/// process that dies leaves its own behind. The time is that of Redis: the clocks of the machines may differ.
const CHALLENGES_LAST: &[u8] = b"900000";
const CHALLENGE_SECONDS: i64 = 900;

/// The time between two polls of the keys of tickets.
const TICKETS_LOOK: Duration = Duration::from_secs(10);

/// The script that returns the number of changes, the names that have changed since change `ARGV[1]`, the responses to
/// challenges, and the time in seconds since 1970.
const LOOK: &[u8] = b"local n = tonumber(redis.call('GET', KEYS[1]) or '0') local names = {} \
    local since = n - tonumber(ARGV[1]) \
    if since > 0 then names = redis.call('LRANGE', KEYS[2], 0, since - 1) end \
    return {n, table.concat(names, '\\n'), table.concat(redis.call('HGETALL', KEYS[3]), '\\n'), \
    tonumber(redis.call('TIME')[1])}";

/// The script that replaces the value `ARGV[1]` by `ARGV[2]`, unless another machine has changed it. It returns the
/// value that is there then.
const REPLACE: &[u8] = b"local v = redis.call('GET', KEYS[1]) or '' \
    if v == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) v = ARGV[2] end return v";

/// The shared state of a process.
pub struct Shared {
    client: Client,
    /// The beginning of every key.
    prefix: String,
    seal: Option<CookieKeys>,
    /// The name of this process in locks. Every process has another one.
    owner: String,
    say: Say,
    /// Whether the last attempt to reach Redis failed.
    is_away: AtomicBool,
    /// Numbers the responses to challenges that this process gives.
    next_response: AtomicU64,
    tickets: Option<Tickets>,
}

/// The state of the polling fiber.
struct Polled {
    /// The number of changes. None before the first look.
    changes: Option<i64>,
    challenges: Vec<u8>,
    away_since: Option<Instant>,
    tickets: rotation::Rotation,
    /// The keys that are in use.
    sealing: Vec<u8>,
    tickets_looked: Option<Instant>,
    /// When the process last took a key of its own, in seconds since 1970.
    tickets_own: i64,
}

/// Gets the certificates that other machines have changed.
pub trait Listener: Send + Sync {
    /// Called when these names have new certificates. The lock of any other name may be free again.
    fn changed(&self, names: &HashSet<String>);
}

impl Shared {
    /// State in a Redis server. `tickets` get the shared keys.
    pub fn new(client: Client, prefix: String, seal: Option<CookieKeys>, tickets: Option<Tickets>, say: Say) -> Shared {
        let mut random = [0; 16];
        SystemRandom::new()
            .fill(&mut random)
            .expect("the system has random numbers");
        Shared {
            client,
            prefix,
            seal,
            owner: data_encoding::HEXLOWER.encode(&random),
            say,
            is_away: AtomicBool::new(false),
            next_response: AtomicU64::new(0),
            tickets,
        }
    }

    /// The name of this process in locks.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The key of a value in Redis.
    pub fn key(&self, kind: &str, name: &str) -> String {
        match name {
            "" => format!("{}{kind}", self.prefix),
            name => format!("{}{kind}:{name}", self.prefix),
        }
    }

    /// Whether the last attempt to reach Redis failed.
    pub fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Acquire)
    }

    /// Sends a command. During an outage it fails at once.
    ///
    /// # Suspends
    /// Until Redis has replied.
    ///
    /// # Errors
    /// When Redis cannot be reached, or refuses.
    pub fn call(&self, command: &[&[u8]]) -> io::Result<Reply> {
        if self.is_away() {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "Redis cannot be reached"));
        }
        let reply = self.send(command);
        if let Err(error) = &reply
            && !osier::Cancelled::is(error)
        {
            self.went_away(error);
        }
        reply?.accepted().map_err(io::Error::other)
    }

    /// Runs a script.
    pub fn eval(&self, script: &[u8], keys: &[&str], args: &[&str]) -> io::Result<Reply> {
        let count = keys.len().to_string();
        let mut command = vec![b"EVAL".as_slice(), script, count.as_bytes()];
        command.extend(keys.iter().chain(args).map(|word| word.as_bytes()));
        self.call(&command)
    }

    /// Reads a value. `None` if there is none.
    pub fn get(&self, key: &str) -> io::Result<Option<String>> {
        match self.call(&[b"GET", key.as_bytes()])? {
            Reply::Nil => Ok(None),
            Reply::Text(bytes) => self.open(key, &bytes).map(Some),
            _ => Err(malformed("a value that is not a string")),
        }
    }

    /// Writes a value.
    pub fn set(&self, key: &str, text: &str) -> io::Result<()> {
        self.call(&[b"SET", key.as_bytes(), self.sealed(key, text).as_bytes()])
            .map(drop)
    }

    /// A text as it is stored under a key.
    pub fn sealed(&self, key: &str, text: &str) -> String {
        match &self.seal {
            Some(seal) => seal.encrypt(key, text),
            None => text.to_owned(),
        }
    }

    /// The text that is stored under a key.
    ///
    /// # Errors
    /// `PermissionDenied` for a text that this process cannot open.
    fn open(&self, key: &str, bytes: &[u8]) -> io::Result<String> {
        let text = str::from_utf8(bytes).map_err(|_| malformed("a value that is not UTF-8"))?;
        let opened = match &self.seal {
            Some(seal) => seal.decrypt(key, text),
            None => Some(text.to_owned()),
        };
        let why = "it is not sealed with the 'key' of [shared] of this machine";
        opened.ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// The clock of Redis, in seconds since 1970.
    fn time(&self) -> io::Result<i64> {
        let seconds = match self.call(&[b"TIME"])? {
            Reply::Array(parts) => match parts.first() {
                Some(Reply::Text(seconds)) => str::from_utf8(seconds).ok().and_then(|seconds| seconds.parse().ok()),
                _ => None,
            },
            _ => None,
        };
        seconds.ok_or_else(|| malformed("a time that is not a number"))
    }

    /// Shows a response to a challenge on all machines, until the result is dropped. `None` if Redis cannot be reached. Another
    /// machine may give one for the same key: each has a field of its own.
    ///
    /// # Suspends
    /// Until the other machines have the response.
    pub fn give(self: &Arc<Shared>, key: &Key, response: &Value) -> Option<Given> {
        let hash = self.key("challenges", "");
        let number = self.next_response.fetch_add(1, Ordering::Relaxed);
        let field = format!("{}/{}:{number}", key.to_field(), self.owner);
        let mut response = response.clone();
        response["ends"] = (self.time().ok()? + CHALLENGE_SECONDS).into();
        let value = self.sealed(&field, &response.to_string());
        self.call(&[b"HSET", hash.as_bytes(), field.as_bytes(), value.as_bytes()])
            .ok()?;
        let _ = self.call(&[b"PEXPIRE", hash.as_bytes(), CHALLENGES_LAST]);
        osier::sleep(PROPAGATION);
        Some(Given {
            shared: Arc::clone(self),
            field,
        })
    }

    /// Polls until the process ends.
    ///
    /// # Suspends
    /// Always.
    pub fn run(self: &Arc<Shared>, challenges: &Challenges, listener: &dyn Listener) {
        let mut seen = Polled {
            changes: None,
            challenges: Vec::new(),
            away_since: None,
            tickets: rotation::Rotation::default(),
            sealing: Vec::new(),
            tickets_looked: None,
            tickets_own: wall(),
        };
        let mut pause = POLL;
        loop {
            match self.poll(&mut seen, challenges, listener) {
                Ok(()) => pause = POLL,
                Err(error) => {
                    self.went_away(&error);
                    seen.away_since.get_or_insert_with(osier::time::now);
                    pause = (pause * 2).min(POLL_MAX);
                }
            }
            if let Some(tickets) = &self.tickets
                && let now = wall()
                && seen.tickets.newest().max(Some(seen.tickets_own)) < Some(now - rotation::STALE)
            {
                // No machine has changed the keys for long, or this one cannot open them. An old key must not seal for
                // ever.
                seen.tickets = rotation::Rotation::default();
                seen.sealing.clear();
                seen.tickets_own = now;
                let _ = tickets.replace(&random_keys());
            }
            osier::sleep(pause);
        }
    }

    /// Reads the changes since the last poll.
    fn poll(&self, seen: &mut Polled, challenges: &Challenges, listener: &dyn Listener) -> io::Result<()> {
        let keys = ["changed", "changes", "challenges"].map(|kind| self.key(kind, ""));
        let since = seen.changes.unwrap_or(i64::MAX >> 1).to_string();
        let reply = self.send(&[
            b"EVAL",
            LOOK,
            b"3",
            keys[0].as_bytes(),
            keys[1].as_bytes(),
            keys[2].as_bytes(),
            since.as_bytes(),
        ])?;
        let Reply::Array(parts) = reply.accepted().map_err(io::Error::other)? else {
            return Err(malformed("another reply than a script makes"));
        };
        let [
            Reply::Number(changes),
            Reply::Text(names),
            Reply::Text(shown),
            Reply::Number(now),
        ] = &parts[..]
        else {
            return Err(malformed("another reply than a script makes"));
        };
        self.came_back(seen);
        if *shown != seen.challenges {
            challenges.replace_others(self.read_challenges(shown, *now));
            seen.challenges.clone_from(shown);
        }
        let names = String::from_utf8_lossy(names);
        let names: HashSet<String> = names.lines().map(str::to_owned).collect();
        if seen.changes.replace(*changes) != Some(*changes) {
            listener.changed(&names);
        }
        self.look_at_tickets(seen)
    }

    /// The responses that other machines show, `now` by the clock of Redis. Entries that cannot be read are left out. The latest one
    /// counts: a process that was killed leaves its own behind.
    fn read_challenges(&self, shown: &[u8], now: i64) -> HashMap<Key, Response> {
        let text = String::from_utf8_lossy(shown);
        let lines: Vec<&str> = text.lines().collect();
        let (pairs, _) = lines.as_chunks::<2>();
        let read = |[field, value]: &[&str; 2]| {
            let value: Value = serde_json::from_str(&self.open(field, value.as_bytes()).ok()?).ok()?;
            let ends = value["ends"].as_i64().filter(|ends| *ends >= now)?;
            let key = Key::of_field(field)?;
            let bytes = |name: &str| data_encoding::BASE64.decode(value[name].as_str()?.as_bytes()).ok();
            let response = match &key {
                Key::Token(_) => Response::Text(value["text"].as_str()?.to_owned()),
                Key::Name(_) => Response::Identity(Identity::of_challenge(bytes("certificate")?, &bytes("key")?).ok()?),
            };
            Some((ends, key, response))
        };
        let mut read: Vec<_> = pairs.iter().filter_map(read).collect();
        read.sort_by_key(|(ends, ..)| *ends);
        read.into_iter().map(|(_, key, response)| (key, response)).collect()
    }

    /// Takes over the keys of tickets from Redis, and publishes a new key when it is time.
    fn look_at_tickets(&self, seen: &mut Polled) -> io::Result<()> {
        let Some(tickets) = &self.tickets else {
            return Ok(());
        };
        let now = osier::time::now();
        if seen
            .tickets_looked
            .is_some_and(|looked| now.saturating_duration_since(looked) < TICKETS_LOOK)
        {
            return Ok(());
        }
        seen.tickets_looked = Some(now);
        let key = self.key("tickets", "");
        let stored = match self.send(&[b"GET", key.as_bytes()])? {
            Reply::Text(bytes) => bytes,
            _ => Vec::new(),
        };
        let mut rotation = match stored.is_empty() {
            true => rotation::Rotation::default(),
            false => match self.open(&key, &stored) {
                Ok(text) => rotation::Rotation::from_text(&text),
                // This process keeps its own keys. The storage of certificates reports the wrong seal.
                Err(_) => return Ok(()),
            },
        };
        if rotation.change(wall()) {
            let next = self.sealed(&key, &rotation.to_text());
            let reply = self.send(&[b"EVAL", REPLACE, b"1", key.as_bytes(), &stored, next.as_bytes()])?;
            if let Reply::Text(bytes) = reply
                && let Ok(text) = self.open(&key, &bytes)
            {
                rotation = rotation::Rotation::from_text(&text);
            }
        }
        // The key that seals may change without a change in Redis, as time passes.
        let keys = rotation.keys(wall());
        if seen.sealing != keys && tickets.replace(&keys).is_ok() {
            seen.sealing = keys;
        }
        seen.tickets = rotation;
        Ok(())
    }

    /// Sends a command, also during an outage.
    fn send(&self, command: &[&[u8]]) -> io::Result<Reply> {
        let reply = self.client.call(&[command])?.pop();
        reply.ok_or_else(|| malformed("no reply"))
    }

    /// Notes that Redis cannot be reached, and logs the beginning of the outage.
    fn went_away(&self, error: &io::Error) {
        if !self.is_away.swap(true, Ordering::AcqRel) {
            self.say.error(format_args!(
                "[shared]: Redis at {} is away: {error}; certificates in memory are served, and none is ordered until it is back",
                self.client.address()
            ));
        }
    }

    /// Notes that Redis can be reached, and logs the end of an outage.
    fn came_back(&self, seen: &mut Polled) {
        if !self.is_away.swap(false, Ordering::AcqRel) {
            return;
        }
        let since = seen.away_since.take();
        let length = since.map_or(Duration::ZERO, |since| {
            osier::time::now().saturating_duration_since(since)
        });
        self.say
            .info(format_args!("[shared]: Redis is back after {} s", length.as_secs()));
        // Keepers may wait for Redis, and changes have been missed.
        seen.changes = None;
    }
}

/// A response that all machines show until this is dropped.
pub struct Given {
    shared: Arc<Shared>,
    field: String,
}

impl Drop for Given {
    fn drop(&mut self) {
        let (shared, field) = (Arc::clone(&self.shared), std::mem::take(&mut self.field));
        // The order must not wait for Redis. A response that is not removed expires.
        drop(osier::spawn(move || {
            let hash = shared.key("challenges", "");
            shared.call(&[b"HDEL", hash.as_bytes(), field.as_bytes()])
        }));
    }
}

/// The response to HTTP-01, as [`Shared::give`] takes it.
pub fn text_response(text: &str) -> Value {
    json!({ "text": text })
}

/// The response to TLS-ALPN-01, as [`Shared::give`] takes it: the certificate and its key, in DER.
pub fn certificate_response(certificate: &[u8], key: &[u8]) -> Value {
    let encoded = |bytes: &[u8]| data_encoding::BASE64.encode(bytes);
    json!({ "certificate": encoded(certificate), "key": encoded(key) })
}

/// Seconds since 1970.
fn wall() -> i64 {
    super::x509::Time::now().0
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("Redis has {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_web::Address;

    fn machine(address: Address) -> Arc<Shared> {
        let (client, say) = (Client::new(address), Say::new(|_| {}));
        Arc::new(Shared::new(client, "osier:".into(), None, None, say))
    }

    /// A machine whose clock was ahead showed what a process that had been killed had left, and one whose clock was behind was
    /// not believed.
    #[test]
    fn the_latest_response_is_that_of_the_clock_of_redis() {
        let now = 1_000_000_000;
        let line = |by: &str, text: &str, ends: i64| {
            let value = json!({ "text": text, "ends": ends });
            format!("token/a/{by}:0\n{value}\n")
        };
        let shared = machine(Address::Unix("/nobody".into()));
        let read = |lines: &[String]| shared.read_challenges(lines.concat().trim_end().as_bytes(), now);
        let is = |read: HashMap<Key, Response>, expected: &str| {
            assert!(matches!(&read[&Key::Token("a".into())], Response::Text(text) if text == expected));
        };
        let (old, new) = (line("b", "old", now + 100), line("c", "new", now + CHALLENGE_SECONDS));
        is(read(&[old.clone(), new.clone()]), "new");
        is(read(&[new, old]), "new");
        assert!(read(&[line("b", "over", now - 1)]).is_empty());
    }

    #[test]
    fn a_response_ends_by_the_clock_of_redis() {
        let Some(redis) = testkit::Redis::start(&[]) else {
            return;
        };
        osier::run(move || {
            let shared = machine(Address::Unix(redis.socket()));
            let given = shared.give(&Key::Token("a".into()), &text_response("x")).unwrap();
            let Reply::Text(value) = shared
                .call(&[b"HGET", b"osier:challenges", given.field.as_bytes()])
                .unwrap()
            else {
                panic!("there is no response");
            };
            let value: Value = serde_json::from_slice(&value).unwrap();
            let left = value["ends"].as_i64().unwrap() - shared.time().unwrap();
            assert!((CHALLENGE_SECONDS - 300..=CHALLENGE_SECONDS).contains(&left), "{left}");
        });
    }
}
