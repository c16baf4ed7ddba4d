//! Caches the addresses of one host name.
//!
//! [`Names::addrs`] returns the cached addresses, or runs the lookup that the caller passes. A
//! caller that could not connect to any address calls [`Names::doubt`]. Any worker may call both at
//! any time. The lock is held to read or replace the entry, never across a lookup.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::limit::within;
use crate::lock;

/// Time for which addresses are still used after a failed connection. Connecting fails often while
/// a backend is down, and not every failure is worth a lookup.
const DOUBTED: Duration = Duration::from_secs(1);

/// The cache of one backend's name.
pub(super) struct Names {
    every: Duration,
    known: Mutex<Known>,
    /// The one lookup of [`Names::addrs_joined`].
    #[cfg(all(feature = "proxy", feature = "upgrade"))]
    joined: osier::sync::OnceCell<()>,
}

#[derive(Default)]
struct Known {
    addrs: Arc<[SocketAddr]>,
    /// Time of the next lookup.
    until: Option<Instant>,
    /// None of the addresses could be connected to since the last lookup began.
    is_doubted: bool,
    /// Why a lookup has left the old addresses in use, if nobody was told of it.
    failure: Option<io::Error>,
}

impl Names {
    /// Makes a cache whose addresses are used for `every`.
    pub(super) fn new(every: Duration) -> Names {
        Names {
            every,
            known: Mutex::default(),
            #[cfg(all(feature = "proxy", feature = "upgrade"))]
            joined: osier::sync::OnceCell::new(),
        }
    }

    /// The addresses that may be used now without another lookup.
    pub(super) fn known_at(&self, now: Instant) -> Option<Arc<[SocketAddr]>> {
        let known = self.lock();
        let is_fresh = known.until.is_some_and(|until| now < until);
        is_fresh.then(|| known.addrs.clone())
    }

    /// Returns the cached addresses, or the result of `look_up`. If the lookup fails, or takes longer
    /// than `limit`, the old addresses stay in use. If there are any that are not doubted, the lookup
    /// has half of `limit`: the other half is left for a connection to them.
    ///
    /// # Suspends
    ///
    /// Where `look_up` suspends. Concurrent callers use the old addresses meanwhile, if there are
    /// any.
    ///
    /// # Cancellation
    ///
    /// A caller one second later looks the name up. The cancelled lookup still has its thread, so clients that leave at once
    /// must not begin one after another.
    pub(super) fn addrs(
        &self,
        now: Instant,
        limit: Duration,
        look_up: impl FnOnce() -> io::Result<Arc<[SocketAddr]>>,
    ) -> io::Result<Arc<[SocketAddr]>> {
        if let Some(addrs) = self.known_at(now) {
            return Ok(addrs);
        }
        let (old, is_doubted) = {
            let mut known = self.lock();
            if !known.addrs.is_empty() {
                known.until = now.checked_add(self.every);
            }
            (known.addrs.clone(), std::mem::take(&mut known.is_doubted))
        };
        let limit = match old.is_empty() || is_doubted {
            true => limit,
            false => limit / 2,
        };
        let unlooked = Unlooked {
            names: self,
            now,
            is_doubted,
        };
        let found = within(limit, look_up);
        if !matches!(&found, Err(error) if osier::Cancelled::is(error)) {
            std::mem::forget(unlooked);
        }
        match found {
            Ok(addrs) => {
                let mut known = self.lock();
                known.addrs = addrs.clone();
                known.until = now.checked_add(self.every);
                // These are about the old addresses, also if another request has doubted them meanwhile.
                (known.is_doubted, known.failure) = (false, None);
                Ok(addrs)
            }
            Err(error) if osier::Cancelled::is(&error) || old.is_empty() => Err(error),
            Err(error) => {
                self.lock().failure = Some(error);
                Ok(old)
            }
        }
    }

    /// Why the last lookup has left the old addresses in use. Told once.
    pub(super) fn take_failure(&self) -> Option<io::Error> {
        self.lock().failure.take()
    }

    /// The known addresses, however old. While there are none, the first caller calls `find`, which calls [`Names::addrs`], and all
    /// others wait for that. If it finds nothing, nobody calls it again: an upgrade asks for thousands of sockets at once.
    ///
    /// # Suspends
    ///
    /// Where `find` suspends.
    #[cfg(all(feature = "proxy", feature = "upgrade"))]
    pub(super) fn addrs_joined(&self, find: impl FnOnce() -> io::Result<Arc<[SocketAddr]>>) -> Arc<[SocketAddr]> {
        if self.lock().addrs.is_empty() {
            let _ = self.joined.get_or_try_init(|| match find() {
                Err(error) if osier::Cancelled::is(&error) => Err(error),
                _ => Ok(()),
            });
        }
        self.lock().addrs.clone()
    }

    /// Notes that no address could be connected to: the name may have moved. The next lookup is
    /// within [`DOUBTED`] and not at once; otherwise every request to a backend that is down would
    /// look the name up.
    pub(super) fn doubt(&self, now: Instant) {
        let mut known = self.lock();
        let soon = now.checked_add(DOUBTED);
        known.until = known.until.min(soon);
        known.is_doubted = true;
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

/// A lookup that began at `now`. Dropped, it has ended without an answer, because the client that waited for it has left.
struct Unlooked<'n> {
    names: &'n Names,
    now: Instant,
    is_doubted: bool,
}

impl Drop for Unlooked<'_> {
    fn drop(&mut self) {
        let mut known = self.names.lock();
        known.until = known.until.min(self.now.checked_add(DOUBTED));
        known.is_doubted |= self.is_doubted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const EVERY: Duration = Duration::from_secs(30);
    const LIMIT: Duration = Duration::from_secs(4);

    /// A cache with a scripted resolver that counts its calls.
    struct Scene {
        names: Names,
        start: Instant,
        lookups: Cell<usize>,
    }

    impl Scene {
        fn new() -> Scene {
            Scene {
                names: Names::new(EVERY),
                start: Instant::now(),
                lookups: Cell::new(0),
            }
        }

        fn at(&self, milliseconds: u64) -> Instant {
            self.start + Duration::from_millis(milliseconds)
        }

        /// The address that is used at that time if a lookup finds `found`. Port numbers stand for
        /// addresses.
        fn used(&self, milliseconds: u64, found: Result<u16, io::ErrorKind>) -> Result<u16, io::ErrorKind> {
            let look_up = || {
                self.lookups.set(self.lookups.get() + 1);
                Ok(Arc::from([SocketAddr::from(([127, 0, 0, 1], found?))]))
            };
            let addrs = self.names.addrs(self.at(milliseconds), LIMIT, look_up);
            addrs.map(|addrs| addrs[0].port()).map_err(|error| error.kind())
        }
    }

    #[test]
    fn addresses_are_used_for_their_time_and_no_longer() {
        let scene = Scene::new();
        assert_eq!((scene.used(0, Ok(1)), scene.lookups.get()), (Ok(1), 1));
        assert_eq!((scene.used(29_999, Ok(2)), scene.lookups.get()), (Ok(1), 1));
        assert_eq!((scene.used(30_000, Ok(2)), scene.lookups.get()), (Ok(2), 2));
    }

    #[test]
    fn after_a_failed_dial_they_are_used_for_a_second_and_then_looked_up() {
        let scene = Scene::new();
        assert_eq!(scene.used(0, Ok(1)), Ok(1));
        scene.names.doubt(scene.at(1_000));
        // Failures within that second share the cached addresses and do not prolong their use.
        for now in [1_000, 1_500, 1_999] {
            assert_eq!((scene.used(now, Ok(2)), scene.lookups.get()), (Ok(1), 1));
            scene.names.doubt(scene.at(now));
        }
        assert_eq!((scene.used(2_000, Ok(2)), scene.lookups.get()), (Ok(2), 2));
        assert_eq!(
            (scene.used(31_999, Ok(3)), scene.lookups.get()),
            (Ok(2), 2),
            "trusted anew"
        );
    }

    #[test]
    fn doubt_at_the_end_of_their_time_gives_them_no_more_of_it() {
        let scene = Scene::new();
        assert_eq!(scene.used(0, Ok(1)), Ok(1));
        scene.names.doubt(scene.at(29_900));
        assert_eq!(scene.used(30_000, Ok(2)), Ok(2));
    }

    #[test]
    fn when_the_name_is_not_found_the_old_addresses_stay() {
        let scene = Scene::new();
        let gone = Err(io::ErrorKind::NotFound);
        assert_eq!(scene.used(0, gone), gone, "there are none");
        assert_eq!(scene.used(1, Ok(1)), Ok(1), "and that is not remembered");
        assert_eq!((scene.used(40_000, gone), scene.lookups.get()), (Ok(1), 3));
        assert_eq!(
            (scene.used(69_999, Ok(2)), scene.lookups.get()),
            (Ok(1), 3),
            "nor asked for again at once"
        );
        assert_eq!(scene.used(70_000, Ok(2)), Ok(2));
    }

    #[test]
    fn one_looks_up_while_others_use_what_was_known() {
        let scene = Scene::new();
        assert_eq!(scene.used(0, Ok(1)), Ok(1));
        let slow = scene.names.addrs(scene.at(40_000), LIMIT, || {
            assert_eq!(scene.used(40_000, Ok(2)), Ok(1), "another request");
            Ok(Arc::from([SocketAddr::from(([127, 0, 0, 1], 3))]))
        });
        assert_eq!((slow.unwrap()[0].port(), scene.lookups.get()), (3, 1));
        assert_eq!(scene.used(40_001, Ok(2)), Ok(3));
    }

    fn on_clock(test: impl FnOnce() + Send) {
        let runtime = osier::Runtime::builder().workers(1);
        let runtime = runtime.clock(osier::time::VirtualClock::new());
        runtime.build().unwrap().run(test);
    }

    fn never_answers() -> io::Result<Arc<[SocketAddr]>> {
        osier::sleep(Duration::from_secs(1000));
        Err(io::ErrorKind::NotFound.into())
    }

    #[test]
    fn a_resolver_that_does_not_answer_leaves_time_for_the_old_addresses() {
        on_clock(|| {
            let scene = Scene::new();
            let ask = |milliseconds| {
                let began = osier::time::now();
                let addrs = scene.names.addrs(scene.at(milliseconds), LIMIT, never_answers);
                let port = addrs.map(|addrs| addrs[0].port()).map_err(|error| error.kind());
                (port, (osier::time::now() - began).as_secs())
            };
            assert_eq!(ask(0), (Err(io::ErrorKind::TimedOut), 4), "there are none");
            assert_eq!(scene.used(1, Ok(1)), Ok(1));
            assert!(scene.names.take_failure().is_none());
            assert_eq!(ask(40_000), (Ok(1), 2));
            assert!(scene.names.take_failure().is_some() && scene.names.take_failure().is_none());
            assert_eq!(ask(69_999), (Ok(1), 0), "not asked for again at once");
            assert_eq!(scene.used(70_000, Ok(2)), Ok(2));
            // What nobody could connect to gets no part of the time.
            scene.names.doubt(scene.at(70_000));
            assert_eq!(ask(71_000), (Ok(2), 4));
            assert_eq!(ask(101_000), (Ok(2), 2), "not doubted since");
        });
    }

    /// The port of the known address after a lookup without an answer, and the time that was left for the lookup.
    fn unanswered(scene: &Scene, milliseconds: u64) -> (u16, Duration) {
        let began = osier::time::now();
        let known = scene.names.addrs(scene.at(milliseconds), LIMIT, never_answers);
        (known.unwrap()[0].port(), osier::time::now() - began)
    }

    #[test]
    fn new_addresses_end_the_doubt_in_the_old_ones() {
        on_clock(|| {
            let scene = Scene::new();
            assert_eq!(scene.used(0, Ok(1)), Ok(1));
            let moved = scene.names.addrs(scene.at(40_000), LIMIT, || {
                // Another request fails at the old address meanwhile.
                scene.names.doubt(scene.at(40_000));
                Ok(Arc::from([SocketAddr::from(([127, 0, 0, 1], 2))]))
            });
            assert_eq!(moved.unwrap()[0].port(), 2);
            assert_eq!(unanswered(&scene, 80_000), (2, LIMIT / 2));
        });
    }

    #[test]
    fn a_client_that_leaves_takes_no_doubt_with_it() {
        on_clock(|| {
            let scene = Scene::new();
            assert_eq!(scene.used(0, Ok(1)), Ok(1));
            scene.names.doubt(scene.at(10_000));
            let now = scene.at(40_000);
            let left = osier::timeout(Duration::from_secs(1), || scene.names.addrs(now, LIMIT, never_answers));
            assert!(left.is_err(), "it has left");
            assert_eq!(unanswered(&scene, 80_000), (1, LIMIT));
        });
    }

    #[test]
    fn a_client_that_leaves_during_a_lookup_postpones_the_next_by_a_second() {
        on_clock(|| {
            let scene = Scene::new();
            assert_eq!(scene.used(0, Ok(1)), Ok(1));
            let now = scene.at(40_000);
            let left = osier::timeout(Duration::from_secs(1), || scene.names.addrs(now, LIMIT, never_answers));
            assert!(left.is_err(), "it has left");
            assert_eq!(scene.used(40_999, Ok(2)), Ok(1), "not at once: its lookup goes on");
            assert_eq!(scene.used(41_000, Ok(2)), Ok(2));
        });
    }

    #[cfg(all(feature = "proxy", feature = "upgrade"))]
    #[test]
    fn many_sockets_of_an_upgrade_share_one_lookup_whether_it_finds_an_address_or_not() {
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        for found in [Some(addr), None] {
            let shared = Arc::new((Names::new(EVERY), AtomicUsize::new(0)));
            let runtime = osier::Runtime::builder().workers(1).build().unwrap();
            let all = runtime.run(|| {
                let ask = || {
                    let shared = shared.clone();
                    osier::spawn_local(move || {
                        let (names, lookups) = &*shared;
                        let look_up = || {
                            lookups.fetch_add(1, Relaxed);
                            // The others ask meanwhile.
                            (0..10).for_each(|_| osier::yield_now());
                            Ok(Arc::from([found.ok_or(io::ErrorKind::NotFound)?]))
                        };
                        let find = || names.addrs(Instant::now(), LIMIT, look_up);
                        names.addrs_joined(find).to_vec()
                    })
                };
                let asking: Vec<_> = (0..20).map(|_| ask()).collect();
                asking
                    .into_iter()
                    .map(|fiber| fiber.join().unwrap())
                    .collect::<Vec<_>>()
            });
            assert!(all.iter().all(|addrs| addrs.first() == found.as_ref()), "{all:?}");
            assert_eq!(shared.1.load(Relaxed), 1);
        }
    }
}
