//! Accounts and certificates in Redis, for several machines. `shared/mod.rs` lists the keys.
//!
//! The lock of a name is a lease: a key that expires, and that its owner extends while the order runs. An owner that
//! dies, or that does not reach Redis for [`LEASE`], loses the lock. It can store nothing then, because every write of
//! an order compares the owner.
//!
//! The value of the lock is the owner and a number that counts the leases of a process: a lease that has run out is not
//! taken for the next one of the same process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use osier_web::pubsub::Reply;

use super::{Advice, Held, Locking, Pending, Storage, Stored, account_from_text, account_to_text, malformed};
use crate::certificates::acme::jose::AccountKey;
use crate::certificates::shared::Shared;

/// The time after which the lock of a silent owner is free, and the time between two extensions.
const LEASE: Duration = Duration::from_secs(30);
const EXTEND: Duration = Duration::from_secs(10);

/// The longest pause before another look at a lock that another machine has.
const BUSY_MAX: Duration = Duration::from_secs(30);

/// Numbers the leases of this process.
static LEASES: AtomicU64 = AtomicU64::new(0);

/// The scripts. The first two compare the whole value of the lock, the others only the owner, which the value begins
/// with.
const EXTEND_LOCK: &[u8] = b"if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
const RELEASE_LOCK: &[u8] = b"if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
    return redis.call('DEL', KEYS[1])";
const PUT_PENDING: &[u8] =
    b"local v = redis.call('GET', KEYS[1]) if not v or v:sub(1, #ARGV[1]) ~= ARGV[1] then return 0 end \
    redis.call('SET', KEYS[2], ARGV[2]) return 1";
const PUT_CERTIFICATE: &[u8] =
    b"local v = redis.call('GET', KEYS[1]) if not v or v:sub(1, #ARGV[1]) ~= ARGV[1] then return 0 end \
    redis.call('SET', KEYS[2], ARGV[2]) redis.call('DEL', KEYS[3]) \
    redis.call('LPUSH', KEYS[4], ARGV[3]) redis.call('LTRIM', KEYS[4], 0, 999) redis.call('INCR', KEYS[5]) return 1";

/// The storage in Redis.
pub struct InRedis(pub Arc<Shared>);

/// A lease that is extended until this is dropped.
struct Lease {
    shared: Arc<Shared>,
    key: String,
    /// The value of the key.
    value: String,
    is_over: Arc<AtomicBool>,
}

impl Held for Lease {}

impl Drop for Lease {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let shared = Arc::clone(&self.shared);
        let (key, value) = (std::mem::take(&mut self.key), std::mem::take(&mut self.value));
        // A lease that cannot be released runs out.
        drop(osier::spawn(move || shared.eval(RELEASE_LOCK, &[&key], &[&value])));
    }
}

impl InRedis {
    /// The value of a name.
    fn text(&self, kind: &str, name: &str) -> io::Result<Option<String>> {
        self.0.get(&self.0.key(kind, name))
    }

    /// Runs a script that writes for the owner of a lock.
    fn put(&self, script: &[u8], keys: &[&str], args: &[&str]) -> io::Result<()> {
        match self.0.eval(script, keys, args)? {
            Reply::Number(1) => Ok(()),
            _ => Err(io::Error::other(
                "the lock was lost: another machine orders this certificate now",
            )),
        }
    }
}

impl Storage for InRedis {
    fn description(&self) -> &'static str {
        "Redis"
    }

    fn is_away(&self) -> bool {
        self.0.is_away()
    }

    fn lock(&self, name: &str) -> io::Result<Locking> {
        let (shared, key) = (&self.0, self.0.key("lock", name));
        let lease = LEASE.as_millis().to_string();
        let value = format!("{}:{}", shared.owner(), LEASES.fetch_add(1, Ordering::Relaxed));
        let set: [&[u8]; 6] = [b"SET", key.as_bytes(), value.as_bytes(), b"NX", b"PX", lease.as_bytes()];
        if let Reply::Nil = shared.call(&set)? {
            let left = match shared.call(&[b"PTTL", key.as_bytes()])? {
                Reply::Number(left) => Duration::from_millis(u64::try_from(left).unwrap_or(0)),
                _ => BUSY_MAX,
            };
            // Pauses are whole seconds: round up.
            return Ok(Locking::Busy(left.min(BUSY_MAX) + Duration::from_secs(1)));
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (extended, over) = (Arc::clone(shared), Arc::clone(&is_over));
        let (at, own) = (key.clone(), value.clone());
        let extending = osier::fiber::Builder::new().name("lease of a certificate");
        let extending = extending.spawn(move || {
            loop {
                osier::sleep(EXTEND);
                if over.load(Ordering::Acquire) {
                    return;
                }
                if let Ok(Reply::Number(0)) = extended.eval(EXTEND_LOCK, &[&at], &[&own, &lease]) {
                    return;
                }
            }
        });
        drop(extending);
        Ok(Locking::Taken(Box::new(Lease {
            shared: Arc::clone(shared),
            key,
            value,
            is_over,
        })))
    }

    fn certificate(&self, name: &str) -> io::Result<Option<Stored>> {
        let text = self.text("certificate", name)?;
        text.map(|text| Stored::from_text(&text)).transpose()
    }

    fn put_certificate(&self, name: &str, stored: &Stored) -> io::Result<()> {
        let key = |kind| self.0.key(kind, name);
        let (lock, certificate, order) = (key("lock"), key("certificate"), key("order"));
        let (changes, changed) = (self.0.key("changes", ""), self.0.key("changed", ""));
        let text = self.0.sealed(&certificate, &stored.to_text());
        self.put(
            PUT_CERTIFICATE,
            &[&lock, &certificate, &order, &changes, &changed],
            &[self.0.owner(), &text, name],
        )
    }

    fn pending(&self, name: &str) -> io::Result<Option<Pending>> {
        let text = self.text("order", name)?;
        text.map(|text| Pending::from_text(&text)).transpose()
    }

    fn put_pending(&self, name: &str, pending: &Pending) -> io::Result<()> {
        let (lock, order) = (self.0.key("lock", name), self.0.key("order", name));
        let text = self.0.sealed(&order, &pending.to_text());
        self.put(PUT_PENDING, &[&lock, &order], &[self.0.owner(), &text])
    }

    fn advice(&self, name: &str) -> io::Result<Option<Advice>> {
        let text = self.text("advice", name)?;
        text.map(|text| Advice::from_text(&text)).transpose()
    }

    fn put_advice(&self, name: &str, advice: &Advice) -> io::Result<()> {
        self.0.set(&self.0.key("advice", name), &advice.to_text())
    }

    fn account(&self, issuer: &str) -> io::Result<AccountKey> {
        let key = self.0.key("account", issuer);
        if let Some(text) = self.0.get(&key)? {
            return account_from_text(&text);
        }
        let made = account_to_text(issuer, &AccountKey::generate());
        let made = self.0.sealed(&key, &made);
        self.0.call(&[b"SET", key.as_bytes(), made.as_bytes(), b"NX"])?;
        // Another machine may have been faster.
        let text = self.0.get(&key)?.ok_or_else(|| malformed("it is gone again"))?;
        account_from_text(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::operator::Say;
    use osier_web::{Address, pubsub};

    #[test]
    fn a_lease_that_has_run_out_does_not_release_the_next_one() {
        let Some(redis) = testkit::Redis::start(&[]) else {
            return;
        };
        osier::run(move || {
            let machine = || {
                let client = pubsub::Client::new(Address::Unix(redis.socket()));
                let shared = Shared::new(client, "osier:".into(), None, None, Say::new(|_| {}));
                InRedis(Arc::new(shared))
            };
            let (here, there) = (machine(), machine());
            let stored = Stored {
                key: "key".into(),
                chain: "-----BEGIN CERTIFICATE-----".into(),
                origin: None,
            };
            let taken = |machine: &InRedis| match machine.lock("a.example").unwrap() {
                Locking::Taken(lock) => Some(lock),
                Locking::Busy(_) => None,
            };
            let first = taken(&here).unwrap();
            assert!(taken(&here).is_none() && taken(&there).is_none());
            redis.ask("DEL osier:lock:a.example");
            let second = taken(&here).unwrap();
            here.put_certificate("a.example", &stored).unwrap();
            assert!(there.put_certificate("a.example", &stored).is_err());
            let until_scripts_are = |count: u32| {
                let wanted = format!("cmdstat_eval:calls={count},");
                let wait = || {
                    while !redis.ask("INFO commandstats").contains(&wanted) {
                        osier::sleep(Duration::from_millis(5));
                    }
                };
                osier::timeout(testkit::DEADLINE, wait).expect("Redis runs the script");
            };
            drop(first);
            until_scripts_are(3);
            assert!(taken(&there).is_none(), "the second lease was released");
            drop(second);
            until_scripts_are(4);
            assert!(here.put_certificate("a.example", &stored).is_err(), "there is no lock");
        });
    }
}
