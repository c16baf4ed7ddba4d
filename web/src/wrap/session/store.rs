//! The contract of a store of sessions, and the store in memory.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock;

/// A place for sessions. `id` is a hash of the id in the cookie, so that nobody who reads the store can use its
/// sessions.
///
/// # Suspends
///
/// Each method may suspend.
///
/// # Errors
///
/// After a failure the client gets a 503 with `Retry-After`, and the log a line.
pub trait Store: Send + Sync + 'static {
    /// The data of a session, and how long it will still be kept. `None` if there is none, or it has expired.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    fn load(&self, id: &str) -> io::Result<Option<(Vec<u8>, Duration)>>;

    /// Keeps the data of a session for a time. It replaces the data of the same session.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or does not take it.
    fn save(&self, id: &str, data: &[u8], time: Duration) -> io::Result<()>;

    /// Replaces the data of a session that is there, and keeps it for a time from now. Returns false and keeps nothing
    /// if the session has expired or was removed: a slow request must not bring back a session that another one has
    /// ended.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or does not take it.
    fn replace(&self, id: &str, data: &[u8], time: Duration) -> io::Result<bool>;

    /// Keeps a session that is there for a time from now, with the data that it has. Returns false if it has expired or was removed.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    fn touch(&self, id: &str, time: Duration) -> io::Result<bool>;

    /// Removes a session. Returns whether it was there. If several requests remove one, only the first gets `true`.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    fn remove(&self, id: &str) -> io::Result<bool>;

    /// Moves a session that is there from the id `old` to `new`, with new data, and keeps it for a time from now. Returns
    /// false and keeps nothing if it has expired or was removed. If several requests move one, only the first gets `true`.
    ///
    /// Unless a store has its own, this saves the new one before it removes the old one, so that a failure between them
    /// ends no session. A store that drops sessions to make room must do both in one step: the old one could be dropped.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or does not take it.
    fn rename(&self, old: &str, new: &str, data: &[u8], time: Duration) -> io::Result<bool> {
        self.save(new, data, time)?;
        let is_there = self.remove(old)?;
        if !is_there {
            self.remove(new)?;
        }
        Ok(is_there)
    }
}

/// Sessions in this process. They end with it.
///
/// When there is no room, the sessions that would expire first go.
#[derive(Debug)]
pub struct Memory {
    table: Mutex<Table>,
    most: usize,
}

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<String, (Vec<u8>, Instant)>,
    /// The same sessions by the time of their end.
    ends: BTreeSet<(Instant, String)>,
}

impl Memory {
    /// Makes an empty store for at most `most` sessions.
    pub fn new(most: usize) -> Memory {
        Memory {
            table: Mutex::default(),
            most: most.max(1),
        }
    }

    /// How many sessions it keeps, also those that have expired and were not removed yet.
    pub fn len(&self) -> usize {
        self.with(|table| table.sessions.len())
    }

    /// Whether it keeps no session.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs `change` under the lock. It must neither panic nor suspend.
    fn with<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        change(&mut lock(&self.table))
    }
}

impl Table {
    /// Keeps a session. Expired ones go, and when there are still `most`, the one that would expire first.
    fn save(&mut self, id: &str, data: &[u8], time: Duration, most: usize) {
        let now = osier::time::now();
        self.remove(id);
        while let Some((end, _)) = self.ends.first()
            && (*end <= now || self.sessions.len() >= most)
            && let Some((_, id)) = self.ends.pop_first()
        {
            self.sessions.remove(&id);
        }
        let end = now + time;
        self.sessions.insert(id.to_owned(), (data.to_vec(), end));
        self.ends.insert((end, id.to_owned()));
    }

    /// Removes a session. Returns its data and its end.
    fn remove(&mut self, id: &str) -> Option<(Vec<u8>, Instant)> {
        let (id, (data, end)) = self.sessions.remove_entry(id)?;
        self.ends.remove(&(end, id));
        Some((data, end))
    }

    fn has(&self, id: &str) -> bool {
        let end = self.sessions.get(id).map(|(_, end)| *end);
        end.is_some_and(|end| osier::time::now() < end)
    }
}

impl Store for Memory {
    fn load(&self, id: &str) -> io::Result<Option<(Vec<u8>, Duration)>> {
        let now = osier::time::now();
        Ok(self.with(|table| {
            let (data, end) = table.sessions.get(id)?;
            let left = end.checked_duration_since(now).filter(|left| !left.is_zero())?;
            Some((data.clone(), left))
        }))
    }

    fn save(&self, id: &str, data: &[u8], time: Duration) -> io::Result<()> {
        self.with(|table| table.save(id, data, time, self.most));
        Ok(())
    }

    fn replace(&self, id: &str, data: &[u8], time: Duration) -> io::Result<bool> {
        Ok(self.with(|table| {
            let is_there = table.has(id);
            if is_there {
                table.save(id, data, time, self.most);
            }
            is_there
        }))
    }

    fn touch(&self, id: &str, time: Duration) -> io::Result<bool> {
        Ok(self.with(|table| {
            let is_there = table.has(id);
            if is_there && let Some((data, _)) = table.remove(id) {
                table.save(id, &data, time, self.most);
            }
            is_there
        }))
    }

    fn remove(&self, id: &str) -> io::Result<bool> {
        let now = osier::time::now();
        Ok(self.with(|table| table.remove(id).is_some_and(|(_, end)| now < end)))
    }

    /// The place of the old one is that of the new one, so no other session has to go.
    fn rename(&self, old: &str, new: &str, data: &[u8], time: Duration) -> io::Result<bool> {
        Ok(self.with(|table| {
            let is_there = table.has(old);
            table.remove(old);
            if is_there {
                table.save(new, data, time, self.most);
            }
            is_there
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier::time::VirtualClock;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn sessions_end_in_time_and_the_oldest_make_room() {
        let runtime = osier::Runtime::builder().workers(1).clock(VirtualClock::new());
        runtime.build().unwrap().run(|| {
            let store = Memory::new(3);
            let has = |id: &str| store.load(id).unwrap().map(|(data, _)| data);
            store.save("a", b"1", 10 * SECOND).unwrap();
            store.save("b", b"2", 20 * SECOND).unwrap();
            osier::sleep(5 * SECOND);
            assert_eq!(store.load("a").unwrap(), Some((b"1".to_vec(), 5 * SECOND)));
            store.save("a", b"3", 30 * SECOND).unwrap();
            store.save("c", b"4", 40 * SECOND).unwrap();
            assert_eq!(store.len(), 3);
            // The next one takes the place of the one that ends first.
            store.save("d", b"5", 40 * SECOND).unwrap();
            assert_eq!((has("a"), has("b"), store.len()), (Some(b"3".to_vec()), None, 3));
            osier::sleep(30 * SECOND);
            assert_eq!((has("a"), has("c")), (None, Some(b"4".to_vec())));
            assert!(store.remove("c").unwrap());
            assert!(!store.remove("c").unwrap());
            assert!(
                !store.replace("c", b"7", SECOND).unwrap() && !store.touch("c", SECOND).unwrap() && has("c").is_none()
            );
            assert!(!store.replace("a", b"7", SECOND).unwrap(), "it has expired");
            assert!(!store.touch("a", SECOND).unwrap(), "it has expired");
            assert!(
                !store.rename("a", "f", b"7", SECOND).unwrap() && has("f").is_none(),
                "it has expired"
            );
            assert!(store.touch("d", 50 * SECOND).unwrap());
            assert_eq!(store.load("d").unwrap(), Some((b"5".to_vec(), 50 * SECOND)));
            store.save("e", b"6", SECOND).unwrap();
            assert_eq!((store.len(), store.with(|table| table.ends.len())), (2, 2), "d and e");
            // A session that moves keeps its place, and takes no other.
            store.save("g", b"8", SECOND).unwrap();
            assert!(store.rename("d", "h", b"9", SECOND).unwrap());
            assert!(!store.rename("d", "i", b"9", SECOND).unwrap(), "it has moved");
            assert_eq!(
                ["d", "e", "g", "h", "i"].map(|id| has(id).is_some()),
                [false, true, true, true, false]
            );
        });
    }
}
