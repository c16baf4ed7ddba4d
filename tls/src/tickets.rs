//! [`Tickets`]: the keys that seal session tickets.
//!
//! A ticket holds the whole session, sealed for the server that issued it, so the server stores nothing. Any server with the same
//! keys can resume the session.
//!
//! ```text
//!   ticket:  name of the key, 16 │ nonce, 12 │ sealed: time of the full handshake, 8; session │ tag, 16       AES-256-GCM, the nonce random
//! ```
//!
//! A resumed connection gets a new ticket, with the time of the first full handshake. So sessions end a lifetime of tickets after that
//! handshake, however often they are resumed, and a client has to show its certificate again.
//!
//! # Protocol
//!
//! The keys stand behind a lock that only a change of keys takes, and a version that counts the changes. Each thread caches the keys with
//! their version. A handshake compares two numbers and takes no lock unless the keys have changed since the thread's last one.
//! `Release` at the change and `Acquire` at the comparison order the version after the keys.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::server::ProducesTickets;

use crate::Error;
use crate::export::{Reader, Writer};
use crate::provider::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use crate::provider::provider;

/// The length of a key in a file: its name and its secret.
const KEY_BYTES: usize = NAME_BYTES + 32;
const NAME_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;

/// The most keys of a file.
const KEYS_MAX: usize = 16;

/// How often the file of keys is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The time that tickets of a file are valid for clients. A key that leaves the file ends them.
const FILE_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The keys that seal the session tickets of servers. Cheap to clone: clones share the keys.
///
/// Acceptors that share keys resume each other's sessions, if both want the same of client certificates.
///
/// ```
/// use osier_tls::Tickets;
/// use std::time::Duration;
///
/// let own = Tickets::rotating(Duration::from_secs(12 * 60 * 60))?;
/// let shared = Tickets::from_keys(&[7; 48])?;
/// shared.replace(&[[8; 48], [7; 48]].concat())?;
/// # Ok::<(), osier_tls::Error>(())
/// ```
#[derive(Clone)]
pub struct Tickets(Arc<Shared>);

struct Shared {
    /// Differs from that of every other value in this process.
    id: u64,
    source: Source,
    version: AtomicU64,
    keys: Mutex<Arc<[Key]>>,
    /// Where the file stood when it was last read. Taken before `keys`.
    seen: Mutex<Option<Version>>,
    start: Instant,
    /// The milliseconds after `start` at which the source is looked at again. The thread that moves it does so.
    next_look: AtomicU64,
}

enum Source {
    Rotating { every: Duration },
    File(PathBuf),
    Given,
}

#[derive(Clone)]
struct Key {
    name: [u8; NAME_BYTES],
    secret: [u8; 32],
    /// The secret, expanded.
    cipher: Arc<LessSafeKey>,
}

impl Tickets {
    /// Random keys. A new one replaces the old one each time that `every` has passed, and tickets of the old one stay valid until
    /// the next change. So a ticket is valid for twice that time at most.
    ///
    /// # Errors
    ///
    /// A system without random numbers.
    pub fn rotating(every: Duration) -> Result<Tickets, Error> {
        let keys = [random_key()?].into();
        Ok(Tickets::new(Source::Rotating { every }, keys, every))
    }

    /// Keys from a file that several machines share: 48 random bytes a key, at most 16 keys (`openssl rand 48`). The first key
    /// seals new tickets, and all of them open tickets.
    ///
    /// The file is read again when it changes; handshakes look at it every ten seconds. A file that cannot be used changes
    /// nothing: [`reload`](Tickets::reload) says why.
    ///
    /// # Blocks the thread
    ///
    /// While it reads.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or whose length is not that of keys.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Tickets, Error> {
        let path = path.as_ref().to_path_buf();
        let (bytes, seen) = read(&path)?;
        let keys = parse(&bytes).map_err(|error| Error::unusable(format_args!("{}: {error}", path.display())))?;
        let tickets = Tickets::new(Source::File(path), keys, LOOK_EVERY);
        *lock(&tickets.0.seen) = Some(seen);
        Ok(tickets)
    }

    /// Keys that the caller provides, in the form of [`from_file`](Tickets::from_file), and replaces.
    ///
    /// # Errors
    ///
    /// A length that is not that of keys.
    pub fn from_keys(keys: &[u8]) -> Result<Tickets, Error> {
        Ok(Tickets::new(Source::Given, parse(keys)?, Duration::MAX))
    }

    fn new(source: Source, keys: Arc<[Key]>, first_look: Duration) -> Tickets {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Tickets(Arc::new(Shared {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            source,
            version: AtomicU64::new(0),
            keys: Mutex::new(keys),
            seen: Mutex::new(None),
            start: osier::time::now(),
            next_look: AtomicU64::new(millis(first_look)),
        }))
    }

    /// Replaces the keys.
    ///
    /// # Errors
    ///
    /// A length that is not that of keys. Nothing changes then.
    pub fn replace(&self, keys: &[u8]) -> Result<(), Error> {
        self.0.set(parse(keys)?);
        Ok(())
    }

    /// Reads the file again if it has changed. Returns whether it has. Without a file it does nothing.
    ///
    /// # Blocks the thread
    ///
    /// While it reads.
    ///
    /// # Errors
    ///
    /// The errors of [`from_file`](Tickets::from_file). The keys stay as they are then.
    pub fn reload(&self) -> Result<bool, Error> {
        self.0.reload()
    }

    /// Exports rotating keys as bytes, for another process that is to resume the sessions of this one. Empty for other keys, such as a file's, which the
    /// other process reads itself.
    ///
    /// Keep the bytes secret: they open all tickets.
    pub fn export(&self) -> Vec<u8> {
        let Source::Rotating { every } = &self.0.source else {
            return Vec::new();
        };
        let now = millis(osier::time::now().saturating_duration_since(self.0.start));
        let rest = self.0.next_look.load(Ordering::Relaxed).saturating_sub(now);
        let mut to = Writer::default();
        to.number(millis(*every));
        to.number(rest);
        for key in lock(&self.0.keys).iter() {
            to.0.extend_from_slice(&key.name);
            to.0.extend_from_slice(&key.secret);
        }
        to.0
    }

    /// Restores rotating keys that another process has [exported](Tickets::export). They change when they would have changed there. `None`
    /// for other bytes.
    pub fn import(exported: &[u8]) -> Option<Tickets> {
        let mut from = Reader(exported);
        let every = Duration::from_millis(from.number()?);
        let rest = Duration::from_millis(from.number()?);
        let keys = parse(from.0).ok()?;
        Some(Tickets::new(Source::Rotating { every }, keys, rest.min(every)))
    }

    /// The keys for sessions of this kind: a ticket of one kind does not open as one of another.
    pub(crate) fn producer(&self, kind: Vec<u8>) -> Arc<dyn ProducesTickets> {
        Arc::new(Producer {
            keys: self.0.clone(),
            kind,
        })
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

impl Shared {
    /// The keys as this thread's next handshake uses them.
    fn keys(&self) -> Arc<[Key]> {
        struct Cached {
            id: u64,
            version: u64,
            keys: Arc<[Key]>,
        }
        thread_local! {
            static CACHED: RefCell<Option<Cached>> = const { RefCell::new(None) };
        }
        let now = millis(osier::time::now().saturating_duration_since(self.start));
        let due = self.next_look.load(Ordering::Relaxed);
        if now >= due {
            self.look(now, due);
        }
        let version = self.version.load(Ordering::Acquire);
        CACHED.with_borrow_mut(|cached| match cached {
            Some(cached) if (cached.id, cached.version) == (self.id, version) => cached.keys.clone(),
            _ => {
                let keys = lock(&self.keys).clone();
                let id = self.id;
                *cached = Some(Cached {
                    id,
                    version,
                    keys: keys.clone(),
                });
                keys
            }
        })
    }

    /// Looks at the source, on one of the threads that find it due.
    #[cold]
    fn look(&self, now: u64, due: u64) {
        let pause = match &self.source {
            Source::Rotating { every } => *every,
            Source::File(_) => LOOK_EVERY,
            Source::Given => Duration::MAX,
        };
        let next = now.saturating_add(millis(pause).max(1));
        let claimed = self
            .next_look
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed);
        match &self.source {
            _ if claimed.is_err() => {}
            Source::Rotating { every } => self.rotate(now - due < millis(*every)),
            // The keys stay as they are. `reload` reports why.
            Source::File(_) => drop(self.reload()),
            Source::Given => {}
        }
    }

    /// Puts a new key first. The last one stays unless its time was over long ago.
    fn rotate(&self, keeps_last: bool) {
        if let Ok(new) = random_key() {
            let last = lock(&self.keys).first().filter(|_| keeps_last).cloned();
            self.set([new].into_iter().chain(last).collect());
        }
    }

    fn reload(&self) -> Result<bool, Error> {
        let Source::File(path) = &self.source else {
            return Ok(false);
        };
        let mut seen = lock(&self.seen);
        if fs::metadata(path).is_ok_and(|now| *seen == Some(version(&now))) {
            return Ok(false);
        }
        let (bytes, now) = read(path)?;
        let keys = parse(&bytes).map_err(|error| Error::unusable(format_args!("{}: {error}", path.display())))?;
        *seen = Some(now);
        self.set(keys);
        Ok(true)
    }

    fn set(&self, keys: Arc<[Key]>) {
        *lock(&self.keys) = keys;
        self.version.fetch_add(1, Ordering::Release);
    }
}

thread_local! {
    /// The beginning of the session that the running call resumes, in seconds of the system's clock. The opened ticket names it.
    static BEGAN: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs a step of a handshake whose session began at that time, if an earlier step has found one. The step may find it.
pub(crate) fn with_session_of<T>(began: &mut Option<u64>, step: impl FnOnce() -> T) -> T {
    BEGAN.set(*began);
    let done = step();
    *began = BEGAN.take();
    done
}

/// Tickets as rustls wants them.
struct Producer {
    keys: Arc<Shared>,
    /// Sealed in: both ends of a resumption agree on it.
    kind: Vec<u8>,
}

impl Producer {
    /// The bytes that a ticket of this key vouches for besides its own.
    fn vouched(&self, key: &Key) -> Aad<Vec<u8>> {
        Aad::from([&key.name[..], &self.kind].concat())
    }
}

impl ProducesTickets for Producer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        let lifetime = match self.keys.source {
            Source::Rotating { every } => every.saturating_mul(2),
            Source::File(_) | Source::Given => FILE_LIFETIME,
        };
        // The protocol allows seven days.
        lifetime.as_secs().min(7 * 24 * 60 * 60) as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let keys = self.keys.keys();
        let key = keys.first()?;
        let mut nonce = [0; NONCE_BYTES];
        provider().secure_random.fill(&mut nonce).ok()?;
        let began = BEGAN.get().unwrap_or_else(clock::seconds);
        let mut ticket = [&key.name[..], &nonce, &began.to_be_bytes(), plain].concat();
        let (nonce, sealed) = (
            Nonce::assume_unique_for_key(nonce),
            &mut ticket[NAME_BYTES + NONCE_BYTES..],
        );
        let tag = key.cipher.seal_in_place_separate_tag(nonce, self.vouched(key), sealed);
        let tag = tag.ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>()?;
        let keys = self.keys.keys();
        // Names are public: they stand in the ticket.
        let key = keys.iter().find(|key| key.name == *name)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = key.cipher.open_in_place(nonce, self.vouched(key), &mut sealed).ok()?;
        let (began, session) = opened.split_first_chunk()?;
        let began = u64::from_be_bytes(*began);
        if clock::seconds().saturating_sub(began) >= u64::from(self.lifetime()) {
            return None;
        }
        BEGAN.set(Some(began));
        Some(session.to_vec())
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Producer")
    }
}

/// The system's clock, because several machines share keys.
mod clock {
    use std::time::SystemTime;

    #[cfg(test)]
    thread_local! {
        /// Seconds that a test adds.
        pub(super) static AHEAD: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    pub(super) fn seconds() -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seconds = now.unwrap_or_default().as_secs();
        #[cfg(test)]
        let seconds = seconds + AHEAD.get();
        seconds
    }
}

fn random_key() -> Result<Key, Error> {
    let mut bytes = [0; KEY_BYTES];
    let random = provider().secure_random;
    random
        .fill(&mut bytes)
        .map_err(|_| Error::unusable("the system gives no random numbers"))?;
    Ok(key(&bytes))
}

fn key(bytes: &[u8; KEY_BYTES]) -> Key {
    let (name, secret) = bytes.split_at(NAME_BYTES);
    let cipher = UnboundKey::new(&AES_256_GCM, secret).expect("32 bytes");
    Key {
        name: name.try_into().expect("16 bytes"),
        secret: secret.try_into().expect("32 bytes"),
        cipher: Arc::new(LessSafeKey::new(cipher)),
    }
}

fn parse(bytes: &[u8]) -> Result<Arc<[Key]>, Error> {
    match bytes.as_chunks::<KEY_BYTES>() {
        (keys, []) if (1..=KEYS_MAX).contains(&keys.len()) => Ok(keys.iter().map(key).collect()),
        _ => Err(Error::unusable(format_args!(
            "{} bytes are not ticket keys: a key has {KEY_BYTES} bytes, and there are 1 to {KEYS_MAX}",
            bytes.len()
        ))),
    }
}

/// The bytes of the file, and its version before they were read.
fn read(path: &Path) -> Result<(Vec<u8>, Version), Error> {
    let read = || Ok((version(&fs::metadata(path)?), fs::read(path)?));
    let (seen, bytes) =
        read().map_err(|error: std::io::Error| Error::unusable(format_args!("{}: {error}", path.display())))?;
    Ok((bytes, seen))
}

/// The device and the number of a file, and the time of its last change. Its date and length may be those of the file before it: many programs
/// keep dates, and a key has one length.
type Version = (u64, u64, i64, i64);

fn version(metadata: &fs::Metadata) -> Version {
    (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use osier::net::UnixStream;

    use super::*;
    use crate::{Acceptor, Connector, Identity};

    const HOUR: u64 = 60 * 60;

    #[test]
    fn a_session_ends_a_day_after_its_full_handshake_however_often_it_is_resumed() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        let acceptor = Acceptor::builder(identity).build().unwrap();
        let connector = Connector::builder().ca_pem(chain.as_bytes()).build().unwrap();
        let found = [0, 10, 20, 23, 25, 35].map(|hours| {
            clock::AHEAD.set(hours * HOUR);
            is_resumed(&connector, &acceptor)
        });
        clock::AHEAD.set(0);
        assert_eq!(found, [false, true, true, true, false, true]);
    }

    /// Connects, and lets the client read its new ticket.
    fn is_resumed(connector: &Connector, acceptor: &Acceptor) -> bool {
        let (near, far) = UnixStream::pair().unwrap();
        let (client, server) = (connector.connect("localhost", near).unwrap(), acceptor.accept(far));
        while !(client.is_established() && server.is_established()) {
            let _ = (client.try_handshake(), server.try_handshake());
        }
        server.try_write(b"x").unwrap();
        assert_eq!(client.try_read(&mut [0]).unwrap(), 1);
        assert_eq!(client.is_resumed(), server.is_resumed());
        server.is_resumed()
    }
}
