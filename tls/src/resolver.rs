//! [`Resolver`]: finds the certificate for the name that a client asks for.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::Identity;

/// Finds the identity that a server shows to a client. An [`Identity`] is one, for every client.
///
/// ```
/// use osier_tls::{Acceptor, Hello, Identity, Resolver};
/// use std::collections::HashMap;
///
/// /// A certificate for each name.
/// struct Names(HashMap<String, Identity>);
///
/// impl Resolver for Names {
///     fn find(&self, hello: &Hello<'_>) -> Option<Identity> {
///         self.0.get(hello.server_name()?).cloned()
///     }
/// }
///
/// # let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
/// # let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
/// // `chain` and `key` are the texts of PEM files.
/// let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes())?;
/// let names = Names(HashMap::from([("localhost".to_owned(), identity)]));
/// let acceptor = Acceptor::builder(names).build()?;
/// # Ok::<(), osier_tls::Error>(())
/// ```
///
/// # Suspends
///
/// A resolver that has to wait [defers](Hello::defer) the handshake. It may suspend on a fiber, for a short file at most, where no other
/// call uses the stream before the end of its handshake. The stream is locked meanwhile: a call by another fiber of the same worker would
/// block that worker for ever. [`Stream::try_handshake`](crate::Stream::try_handshake) and its like suspend then, too. A resolver must not
/// suspend in the handshake of a future or a callback. Several workers call it at the same time.
///
/// # Cancellation
///
/// One that unwinds out of the resolver breaks the handshake: further calls on the stream fail.
pub trait Resolver: Send + Sync {
    /// The identity for this client. With `None` the handshake fails, unless the resolver has [deferred](Hello::defer) it.
    fn find(&self, hello: &Hello<'_>) -> Option<Identity>;
}

/// The same identity for every client.
impl Resolver for Identity {
    fn find(&self, _: &Hello<'_>) -> Option<Identity> {
        Some(self.clone())
    }
}

impl<R: Resolver + ?Sized> Resolver for Box<R> {
    fn find(&self, hello: &Hello<'_>) -> Option<Identity> {
        (**self).find(hello)
    }
}

impl<R: Resolver + ?Sized> Resolver for Arc<R> {
    fn find(&self, hello: &Hello<'_>) -> Option<Identity> {
        (**self).find(hello)
    }
}

/// The first message of a client.
pub struct Hello<'a> {
    hello: &'a ClientHello<'a>,
    name: Option<&'a str>,
    is_deferred: Cell<bool>,
}

impl Hello<'_> {
    /// The name of the server that the client wants (SNI), in lower case and without a dot at its end.
    pub fn server_name(&self) -> Option<&str> {
        self.name
    }

    /// The protocols that the client offers (ALPN), in its order.
    pub fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        self.hello.alpn().into_iter().flatten()
    }

    /// Says that there is no identity yet, but may soon be one. If the resolver then finds none, the call that does the handshake fails
    /// with an error whose [`is_deferred`](crate::Error::is_deferred) is true, and the client hears nothing. The next call on the stream
    /// asks the resolver again. The caller bounds the time and the number of such handshakes. A first message of more than 16 KiB cannot be
    /// deferred: its client is refused.
    pub fn defer(&self) {
        self.is_deferred.set(true);
    }

    /// Whether the client offers this protocol and no other, as a validation of ACME does with `acme-tls/1`.
    pub fn offers_only(&self, protocol: &[u8]) -> bool {
        let mut offered = self.alpn();
        offered.next() == Some(protocol) && offered.next().is_none()
    }
}

impl fmt::Debug for Hello<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alpn: Vec<_> = self.alpn().map(String::from_utf8_lossy).collect();
        f.debug_struct("Hello")
            .field("server_name", &self.name)
            .field("alpn", &alpn)
            .finish()
    }
}

thread_local! {
    /// The name in the last first message that this thread has seen. rustls does not give it away later.
    static LAST_NAME: RefCell<Option<Option<Box<str>>>> = const { RefCell::new(None) };
    /// Whether there was an identity for that name.
    static ANSWER: Cell<Answer> = const { Cell::new(Answer::Found) };
}

/// Takes the name that the call of rustls just made has met. `None` if it has met no first message.
pub(crate) fn take_name() -> Option<Option<Box<str>>> {
    LAST_NAME.take()
}

/// The answer of a resolver.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Answer {
    #[default]
    Found,
    /// There is no identity for the name.
    None,
    /// There may be one later.
    Deferred,
}

/// Takes the answer that the call of rustls just made has met.
pub(crate) fn take_answer() -> Answer {
    ANSWER.take()
}

/// The answer that the call of rustls just made has met.
pub(crate) fn answer() -> Answer {
    ANSWER.get()
}

/// A [`Resolver`] as rustls wants it.
pub(crate) struct Adapter<R>(pub(crate) R);

impl<R: Resolver> ResolvesServerCert for Adapter<R> {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(normal);
        let asked = Hello {
            hello: &hello,
            name: name.as_deref(),
            is_deferred: Cell::new(false),
        };
        let found = self.0.find(&asked);
        ANSWER.set(match &found {
            Some(_) => Answer::Found,
            None if asked.is_deferred.get() => Answer::Deferred,
            None => Answer::None,
        });
        LAST_NAME.set(Some(name));
        found.map(|identity| identity.key().clone())
    }
}

fn normal(name: &str) -> Box<str> {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase().into()
}

impl<R> fmt::Debug for Adapter<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}
