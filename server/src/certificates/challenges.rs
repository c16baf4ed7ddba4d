//! Responses to the challenges by which an authority checks that this server answers for a name (RFC 8555, RFC 8737).
//!
//! Nearly always there is none, and then requests and handshakes take no lock. `shared/mod.rs` replaces the responses
//! of other machines as a whole.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use osier_tls::Identity;

use super::locked;

/// The beginning of the paths of HTTP-01. Every listener answers them, for every host.
const PATH: &str = "/.well-known/acme-challenge/";

/// The token of a challenge (RFC 8555 section 8.3) in a path, as the client has sent it. None for any other path.
pub fn token(path: &str) -> Option<&str> {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let token = path.strip_prefix(PATH)?;
    (!token.is_empty() && token.bytes().all(is_of_token)).then_some(token)
}

/// The protocol of TLS-ALPN-01.
pub const PROTOCOL: &[u8] = b"acme-tls/1";

/// The pause between two looks whether another order has proved a name.
const BUSY: Duration = Duration::from_millis(250);

/// The responses that authorities may ask for now.
#[derive(Default)]
pub struct Challenges(Arc<Pending>);

type Responses = HashMap<Key, Vec<(u64, Response)>>;

#[derive(Default)]
struct Pending {
    /// The number of entries of both maps. It is raised before an entry is added, and lowered after one is removed.
    count: AtomicUsize,
    /// The responses of this machine, with their numbers. Two orders may get one token to show: they share a name, and the
    /// authority goes on with an authorization. None of these lists is empty.
    responses: Mutex<Responses>,
    next_number: AtomicU64,
    /// The responses that this machine serves for the orders of other machines.
    others: Mutex<HashMap<Key, Response>>,
}

/// The name under which an issuer asks for a response.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// The token of HTTP-01.
    Token(String),
    /// The name of TLS-ALPN-01.
    Name(String),
}

impl Key {
    /// The key as one word.
    pub fn to_field(&self) -> String {
        match self {
            Key::Token(token) => format!("token/{token}"),
            Key::Name(name) => format!("name/{name}"),
        }
    }

    /// Reads what [`to_field`](Key::to_field) has written. Behind it may be a slash, and who gives the response.
    pub fn of_field(field: &str) -> Option<Key> {
        let mut parts = field.split('/');
        match (parts.next()?, parts.next()?) {
            ("token", token) => Some(Key::Token(token.to_owned())),
            ("name", name) => Some(Key::Name(name.to_owned())),
            _ => None,
        }
    }
}

/// The response to a challenge.
#[derive(Clone)]
pub enum Response {
    Text(String),
    Identity(Identity),
}

/// A response that is given until this is dropped.
#[must_use = "the response is withdrawn when this is dropped"]
pub struct Given {
    pending: Arc<Pending>,
    key: Key,
    number: u64,
}

impl Challenges {
    /// The response of HTTP-01 for a path, as the client has sent it.
    #[inline]
    pub fn text(&self, path: &str) -> Option<String> {
        let token = token(path)?;
        match self.0.find(Key::Token(token.to_owned()))? {
            Response::Text(text) => Some(text),
            Response::Identity(_) => None,
        }
    }

    /// The certificate of TLS-ALPN-01 for a name.
    pub fn identity(&self, name: &str) -> Option<Identity> {
        match self.0.find(Key::Name(name.to_owned()))? {
            Response::Identity(identity) => Some(identity),
            Response::Text(_) => None,
        }
    }

    /// Answers HTTP-01 for a token.
    pub fn give_text(&self, token: &str, text: String) -> Given {
        let key = Key::Token(token.to_owned());
        let mut responses = locked(&self.0.responses);
        self.0.add(&mut responses, key, Response::Text(text))
    }

    /// Answers TLS-ALPN-01 for a name in lower case.
    ///
    /// # Suspends
    /// While another order proves the name: a handshake can show one certificate.
    pub fn give_identity(&self, name: &str, identity: Identity) -> Given {
        let key = Key::Name(name.to_owned());
        loop {
            let mut responses = locked(&self.0.responses);
            if !responses.contains_key(&key) {
                return self.0.add(&mut responses, key, Response::Identity(identity));
            }
            drop(responses);
            osier::sleep(BUSY);
        }
    }

    /// Replaces the responses for the orders of other machines.
    pub fn replace_others(&self, responses: HashMap<Key, Response>) {
        self.0.count.fetch_add(responses.len(), Ordering::Release);
        let before = std::mem::replace(&mut *locked(&self.0.others), responses);
        self.0.count.fetch_sub(before.len(), Ordering::Release);
    }
}

impl Pending {
    /// Shows a response until the result is dropped.
    fn add(self: &Arc<Pending>, responses: &mut Responses, key: Key, response: Response) -> Given {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
        responses.entry(key.clone()).or_default().push((number, response));
        Given {
            pending: Arc::clone(self),
            key,
            number,
        }
    }

    /// The response for a key.
    fn find(&self, key: Key) -> Option<Response> {
        match self.count.load(Ordering::Acquire) {
            0 => None,
            _ => {
                let own = locked(&self.responses).get(&key).and_then(|own| own.last().cloned());
                own.map(|(_, response)| response)
                    .or_else(|| locked(&self.others).get(&key).cloned())
            }
        }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let mut responses = locked(&self.pending.responses);
        if let Some(own) = responses.get_mut(&self.key) {
            own.retain(|(number, _)| *number != self.number);
            if own.is_empty() {
                responses.remove(&self.key);
            }
        }
        drop(responses);
        self.pending.count.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::make::self_signed;
    use crate::certificates::x509::Time;

    #[test]
    fn a_response_is_given_until_it_is_withdrawn() {
        let challenges = Challenges::default();
        assert_eq!(challenges.text("/.well-known/acme-challenge/a"), None);
        let given = challenges.give_text("a", "a.thumbprint".into());
        let identity = self_signed(&["example.org".to_owned()], Time::now()).unwrap();
        let shown = challenges.give_identity("example.org", identity);
        assert_eq!(
            challenges.text("/.well-known/acme-challenge/a").as_deref(),
            Some("a.thumbprint")
        );
        assert_eq!(challenges.text("/.well-known/acme-challenge/example.org"), None);
        assert_eq!(challenges.text("/a"), None);
        assert!(challenges.identity("example.org").is_some() && challenges.identity("a").is_none());
        drop(given);
        assert_eq!(challenges.text("/.well-known/acme-challenge/a"), None);
        let other = HashMap::from([(Key::Token("b".into()), Response::Text("b.thumbprint".into()))]);
        challenges.replace_others(other);
        let text = |token: &str| challenges.text(&format!("{PATH}{token}"));
        assert_eq!(text("b").as_deref(), Some("b.thumbprint"));
        challenges.replace_others(HashMap::new());
        assert_eq!(text("b"), None);
        drop(shown);
        assert_eq!(challenges.0.count.load(Ordering::Relaxed), 0);
        assert!(challenges.identity("example.org").is_none());
    }

    /// Each of two orders that shared a name took the other's proof away.
    #[test]
    fn two_orders_with_one_name_do_not_take_each_others_responses_away() {
        let identity = || self_signed(&["a.example".to_owned()], Time::now()).unwrap();
        let leaf = |identity: &Identity| identity.chain().next().unwrap().to_vec();
        let clock = osier::time::VirtualClock::new();
        let runtime = osier::Runtime::builder().workers(1).clock(clock).build().unwrap();
        runtime.run(move || {
            let challenges = Arc::new(Challenges::default());
            let text = || challenges.text("/.well-known/acme-challenge/a");
            let [one, two] = [0, 1].map(|_| challenges.give_text("a", "a.thumbprint".into()));
            drop(one);
            assert_eq!(text().as_deref(), Some("a.thumbprint"));
            drop(two);
            assert_eq!(text(), None);

            let (first, second) = (identity(), identity());
            let expected = [leaf(&first), leaf(&second)];
            let shown = || leaf(&challenges.identity("a.example").unwrap());
            let given = challenges.give_identity("a.example", first);
            let other = osier::spawn({
                let challenges = challenges.clone();
                move || challenges.give_identity("a.example", second)
            });
            osier::sleep(Duration::from_secs(60));
            assert_eq!(shown(), expected[0]);
            drop(given);
            let given = other.join().unwrap();
            assert_eq!(shown(), expected[1]);
            drop(given);
            assert!(challenges.identity("a.example").is_none());
            assert_eq!(challenges.0.count.load(Ordering::Relaxed), 0);
        });
    }
}
