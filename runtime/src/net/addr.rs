//! Addresses: the arguments of `bind` and `connect`, and the lookup of names.
//!
//! An address, or text that spells one, needs no lookup. A name goes to the system's resolver, which blocks, on the
//! pool for blocking work. At most [`LOOKUPS`] lookups run at a time in the process, so that a resolver that hangs
//! does not occupy every thread of the pool. The permit belongs to the lookup, not to its caller, because a lookup
//! cannot be interrupted.

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::{error, fmt, io, option, slice, vec};

use osier_queue::WaitList;

use crate::wait::block_on::pooled;
use crate::wait::simulated;
use crate::wait::sleep::Sleep;
use crate::wait::{self, Stop};
use crate::worker::context::{self, Caller};

/// The number of names that may be looked up at a time.
const LOOKUPS: usize = 64;

/// An address to bind or connect to, several addresses, or a name and a port. It is std's trait of the same name,
/// except that a lookup suspends.
///
/// ```
/// use osier::net::ToSocketAddrs;
/// osier::run(|| {
///     assert_eq!("127.0.0.1:80".to_socket_addrs()?.next(), Some(([127, 0, 0, 1], 80).into()));
///     assert!(("localhost", 80).to_socket_addrs()?.all(|addr| addr.ip().is_loopback()));
///     assert!("no port".to_socket_addrs().is_err());
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
pub trait ToSocketAddrs {
    /// An iterator over the addresses, in the order to try them.
    type Iter: Iterator<Item = SocketAddr> + Send;

    /// Gives the addresses.
    ///
    /// # Suspends
    ///
    /// While a name is looked up. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call. The lookup itself goes on, and its result is dropped.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for text that is neither an address nor `name:port`. For a name that cannot be looked up, an error that names it:
    /// `NotFound` if there is no such name or it has no address, `HostUnreachable` if no name server can tell for now, else the kind that
    /// std gives. The two kinds are found by the words of the system's resolver, as glibc, musl, FreeBSD and macOS have them.
    fn to_socket_addrs(&self) -> io::Result<Self::Iter>;

    /// [`to_socket_addrs`](ToSocketAddrs::to_socket_addrs) as a future.
    ///
    /// An implementation of the trait that waits must implement this method too. The provided one calls the blocking
    /// method.
    ///
    /// # Cancellation
    ///
    /// A lookup that has begun goes on, and its result is dropped.
    fn to_socket_addrs_async(&self) -> impl Future<Output = io::Result<Self::Iter>> + Send + use<Self> {
        std::future::ready(self.to_socket_addrs())
    }
}

macro_rules! one_address {
    ($($type:ty),*) => {$(
        impl ToSocketAddrs for $type {
            type Iter = option::IntoIter<SocketAddr>;
            fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
                Ok(Some(SocketAddr::from(*self)).into_iter())
            }
        }
    )*};
}

one_address!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16)
);

impl<'a> ToSocketAddrs for &'a [SocketAddr] {
    type Iter = std::iter::Copied<slice::Iter<'a, SocketAddr>>;
    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        Ok(self.iter().copied())
    }
}

impl<'a, T: ToSocketAddrs + ?Sized> ToSocketAddrs for &'a T {
    type Iter = T::Iter;
    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        (**self).to_socket_addrs()
    }
    fn to_socket_addrs_async(&self) -> impl Future<Output = io::Result<Self::Iter>> + Send + use<'a, T> {
        (**self).to_socket_addrs_async()
    }
}

/// An address, or a name to look up.
enum Host {
    Addr(SocketAddr),
    Name(String, u16),
}

impl Host {
    fn new(host: &str, port: u16) -> Host {
        match host.parse::<IpAddr>() {
            Ok(ip) => Host::Addr(SocketAddr::new(ip, port)),
            Err(_) => Host::Name(host.to_owned(), port),
        }
    }

    fn parse(text: &str) -> io::Result<Host> {
        if let Ok(addr) = text.parse() {
            return Ok(Host::Addr(addr));
        }
        let host_and_port = text
            .rsplit_once(':')
            .and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let Some((host, port)) = host_and_port else {
            let error = format!("\"{text}\" is no socket address: write HOST:PORT");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        };
        Ok(Host::new(host, port))
    }

    fn addrs(self) -> io::Result<vec::IntoIter<SocketAddr>> {
        match self {
            Host::Addr(addr) => Ok(vec![addr].into_iter()),
            Host::Name(host, port) => look_up(host, port),
        }
    }

    async fn addrs_async(self) -> io::Result<vec::IntoIter<SocketAddr>> {
        match self {
            Host::Addr(addr) => Ok(vec![addr].into_iter()),
            Host::Name(host, port) => look_up_async(host, port).await,
        }
    }
}

macro_rules! names {
    ($($type:ty: |$self:ident| $host:expr;)*) => {$(
        impl ToSocketAddrs for $type {
            type Iter = vec::IntoIter<SocketAddr>;
            fn to_socket_addrs(&$self) -> io::Result<Self::Iter> {
                $host.and_then(Host::addrs)
            }
            fn to_socket_addrs_async(&$self) -> impl Future<Output = io::Result<Self::Iter>> + Send + use<> {
                let host = $host;
                async move { host?.addrs_async().await }
            }
        }
    )*};
}

names! {
    (String, u16): |self| io::Result::Ok(Host::new(&self.0, self.1));
    str: |self| Host::parse(self);
    String: |self| Host::parse(self);
}

impl<'a> ToSocketAddrs for (&'a str, u16) {
    type Iter = vec::IntoIter<SocketAddr>;
    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        Host::new(self.0, self.1).addrs()
    }
    fn to_socket_addrs_async(&self) -> impl Future<Output = io::Result<Self::Iter>> + Send + use<'a> {
        Host::new(self.0, self.1).addrs_async()
    }
}

/// Tries `attempt` on one address after the other until one works. Returns the last error if none does.
pub(crate) fn each_addr<T>(
    addrs: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for addr in addrs.to_socket_addrs()? {
        match attempt(addr) {
            // A cancelled fiber must not go on trying.
            Err(error) if !crate::Cancelled::is(&error) => last = Some(error),
            done => return done,
        }
    }
    Err(last.unwrap_or_else(no_address))
}

/// The future face of [`each_addr`].
pub(crate) fn each_addr_async<A: ToSocketAddrs, T, F: Future<Output = io::Result<T>> + Send>(
    addrs: A,
    mut attempt: impl FnMut(SocketAddr) -> F + Send,
) -> impl Future<Output = io::Result<T>> + Send {
    // The lookup borrows nothing, so the future need not keep `addrs`.
    let addrs = addrs.to_socket_addrs_async();
    async move {
        let mut last = None;
        for addr in addrs.await? {
            match attempt(addr).await {
                Err(error) => last = Some(error),
                done => return done,
            }
        }
        Err(last.unwrap_or_else(no_address))
    }
}

pub(super) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no address to bind or connect to")
}

#[cold]
fn look_up(host: String, port: u16) -> io::Result<vec::IntoIter<SocketAddr>> {
    if context::caller(|caller| matches!(caller, Caller::Worker)) {
        // Fails before it begins. Otherwise it would depend on the pool's speed whether the call works.
        return Err(Stop::NotHere.into());
    }
    let mut lookup = pin!(look_up_async(host, port));
    wait::wait(None, None, |cx| lookup.as_mut().poll(cx))?
}

async fn look_up_async(host: String, port: u16) -> io::Result<vec::IntoIter<SocketAddr>> {
    if let Some((time, found)) = simulated::look_up(&host) {
        Sleep::new(time).await;
        let addrs: Vec<_> = found?.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        return Ok(addrs.into_iter());
    }
    let permit = PERMITS.acquire().await;
    let found = pooled(move || {
        let _permit = permit;
        std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), port)).map_err(|error| not_found(host, error))
    })?;
    found.await
}

/// The beginning of std's errors of a lookup.
const OF_STD: &str = "failed to lookup address information: ";

/// The words of resolvers for a failure with a kind. std passes on the words only, and not their number.
const KINDS: [(&str, io::ErrorKind); 9] = [
    ("Name or service not known", io::ErrorKind::NotFound),
    ("No address associated with hostname", io::ErrorKind::NotFound),
    ("Name does not resolve", io::ErrorKind::NotFound),
    ("Name has no usable address", io::ErrorKind::NotFound),
    ("nodename nor servname provided, or not known", io::ErrorKind::NotFound),
    ("hostname nor servname provided, or not known", io::ErrorKind::NotFound),
    ("No address associated with name", io::ErrorKind::NotFound),
    ("Temporary failure in name resolution", io::ErrorKind::HostUnreachable),
    ("Try again", io::ErrorKind::HostUnreachable),
];

/// The error of the lookup of `host`.
#[cold]
fn not_found(host: String, error: io::Error) -> io::Error {
    let text = error.to_string();
    let found = KINDS.iter().find(|(words, _)| text.strip_prefix(OF_STD) == Some(words));
    io::Error::new(
        found.map_or(error.kind(), |(_, kind)| *kind),
        Unresolved { host, error },
    )
}

/// A name that could not be looked up.
#[derive(Debug)]
struct Unresolved {
    host: String,
    error: io::Error,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.error.to_string();
        write!(
            f,
            "cannot look up {:?}: {}",
            self.host,
            text.strip_prefix(OF_STD).unwrap_or(&text)
        )
    }
}

impl error::Error for Unresolved {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.error)
    }
}

static PERMITS: Permits = Permits {
    free: AtomicUsize::new(LOOKUPS),
    waiters: WaitList::new(),
};

/// A counted number of permits. A caller that finds none waits in line.
struct Permits {
    free: AtomicUsize,
    waiters: WaitList,
}

/// One permit. Dropping it returns it.
struct Permit(&'static Permits);

impl Permits {
    async fn acquire(&'static self) -> Permit {
        let mut waiter = pin!(self.waiters.waiter());
        poll_fn(|cx| {
            if !self.take() {
                if !waiter.as_mut().register(cx.waker()) {
                    // Woken for a permit that another caller took: wait in line again.
                    waiter.as_mut().remove();
                    let _ = waiter.as_mut().register(cx.waker());
                }
                if !self.take() {
                    return Poll::Pending;
                }
            }
            if waiter.as_mut().remove() && self.free.load(Ordering::SeqCst) > 0 {
                // The wake-up may have been for another permit: pass it on.
                self.waiters.wake_one();
            }
            Poll::Ready(Permit(self))
        })
        .await
    }

    fn take(&self) -> bool {
        self.free
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| free.checked_sub(1))
            .is_ok()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::SeqCst);
        self.0.waiters.wake_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn no_more_than_the_permits_are_out_and_all_come_back() {
        static PERMITS: Permits = Permits {
            free: AtomicUsize::new(3),
            waiters: WaitList::new(),
        };
        static OUT: AtomicUsize = AtomicUsize::new(0);
        let most = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let most = Arc::clone(&most);
                thread::spawn(move || {
                    for _ in 0..20 {
                        let permit = crate::block_on(PERMITS.acquire());
                        most.fetch_max(OUT.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::sleep(Duration::from_micros(50));
                        OUT.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(PERMITS.free.load(Ordering::SeqCst), 3);
        let most = most.load(Ordering::SeqCst);
        assert!((1..=3).contains(&most), "{most} permits were out");
    }

    #[test]
    fn a_failed_lookup_names_the_name_and_has_a_kind() {
        let failed = |words: &str| not_found("db.example".into(), io::Error::other(format!("{OF_STD}{words}")));
        let error = failed("Name or service not known");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(
            error.to_string(),
            "cannot look up \"db.example\": Name or service not known"
        );
        let kind = failed("Temporary failure in name resolution").kind();
        assert_eq!(kind, io::ErrorKind::HostUnreachable);
        assert_eq!(failed("Memory allocation failure").kind(), io::ErrorKind::Other);
        let no_descriptor = not_found("db.example".into(), rustix::io::Errno::MFILE.into());
        let source = error::Error::source(&no_descriptor).and_then(|source| source.downcast_ref::<io::Error>());
        assert!(
            source.is_some_and(|source| source.raw_os_error().is_some()),
            "{no_descriptor:?}"
        );
    }

    #[test]
    fn text_that_is_no_address_is_named_in_the_error() {
        for text in ["", "localhost", "127.0.0.1", "localhost:", "localhost:99999", "[::1]"] {
            let error = text.to_socket_addrs().map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{text}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
