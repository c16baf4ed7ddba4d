//! Encoded forms of files that have no encoded sibling. Each form is made once, at the first
//! request that wants it, and kept.
//!
//! All workers share one bounded [`Store`] per [`Files`](super::Files), because making a form costs
//! much more than a lock. A resource belongs to the cache of one worker. It points at its known
//! forms, so that a hit does not touch the store.
//!
//! The first fiber that finds a form missing makes it. A file of more than [`INLINE`] bytes is
//! encoded on the blocking pool. Other fibers that want the form wait for its lock. If the first
//! fiber is cancelled, the next one takes over.
//!
//! A form carries a strong tag: a hash of its encoded bytes. The same file encoded by another
//! release of this server, or at another level, has another tag, so ranges of two encodings are
//! never combined.
//!
//! Lock order: the lock of a form first, which may be held across a suspension; then the lock of
//! the store or of a resource, which is never held across one.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use super::Site;
use super::resource::Resource;
use super::root::Identity;
use super::variant::{Content, ENTRY, Form, Variant};
use crate::compress::INLINE;
use crate::compress::accept_encoding::Coding;
use crate::compress::encoder::{Effort, Encoder};
use crate::lock;

/// Least bytes of a store. A smaller one would drop each form as soon as it is made, and the next request would make it again.
pub const LEAST: usize = 2 * ENTRY;

/// The identity of a form. The content type is part of it, because one file may have two names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    identity: Identity,
    /// As [`Resource::reading`], so that a form is not that of another state of a young file.
    reading: Option<u64>,
    mime: Arc<str>,
    coding: Coding,
}

/// The encoded forms of one site.
#[derive(Debug)]
pub struct Store {
    forms: Mutex<Forms>,
    /// Most bytes that are held.
    limit: usize,
    /// Number of encodings made.
    #[cfg(test)]
    encodings: AtomicUsize,
}

#[derive(Debug, Default)]
struct Forms {
    by_key: HashMap<Key, Arc<Form>>,
    /// Every key of the map once, in the order of eviction. When the store is full, the first key
    /// is looked at: a form that was used since the last look moves to the end, any other is
    /// dropped.
    order: VecDeque<Key>,
    bytes: usize,
}

/// Returns the form of `resource` in `coding`, and makes it if it is missing. `None` means that the file
/// itself is to be sent: it does not become smaller, it is changing, or too many other files are
/// being encoded.
///
/// # Suspends
///
/// Suspends while this or another fiber makes the form.
///
/// # Cancellation
///
/// Work that the blocking pool has begun is finished first.
pub fn form(site: &Site, resource: &Arc<Resource>, coding: Coding) -> Option<Arc<Form>> {
    let slot = &resource.made.0[coding as usize];
    let known = lock(slot).upgrade();
    let form = match known {
        Some(form) if form.made.get().is_some() => form,
        _ => {
            let key = Key {
                identity: resource.plain.identity,
                reading: resource.reading,
                mime: Arc::clone(&resource.mime),
                coding,
            };
            let form = site.encoded.get(&key);
            *lock(slot) = Arc::downgrade(&form);
            if form.made.get().is_none() {
                make(site, resource, &key, &form)?;
            }
            form
        }
    };
    if !form.used.load(Ordering::Relaxed) {
        form.used.store(true, Ordering::Relaxed);
    }
    form.variant().is_some().then_some(form)
}

/// Makes the form unless another fiber just did. `None` if the form cannot be made now.
#[cold]
fn make(site: &Site, resource: &Arc<Resource>, key: &Key, form: &Arc<Form>) -> Option<()> {
    let _making = form.making.lock();
    if form.made.get().is_some() {
        return Some(());
    }
    let _permit = EncodePermit::take()?;
    #[cfg(test)]
    site.encoded.encodings.fetch_add(1, Ordering::Relaxed);
    let (theirs, coding) = (Arc::clone(resource), key.coding);
    let work = move || encode(&theirs, coding);
    let made = if resource.plain.length() <= INLINE as u64 {
        work()
    } else {
        // The pool cannot stop work that it has begun, and another request may want the form.
        osier::shield(|| osier::unblock(work))
    };
    match made {
        Ok(made) => {
            site.encoded.put(key, form, made);
            Some(())
        }
        // If the error lasts, it is reported when the file itself is sent. Otherwise the file has
        // just changed.
        Err(_) => {
            site.encoded.remove(key);
            None
        }
    }
}

/// Encodes a file. `None` if that is not worth it. An error if the file cannot be read or is changing.
fn encode(resource: &Resource, coding: Coding) -> io::Result<Option<Variant>> {
    let identity = resource.plain.identity;
    let read;
    let bytes = match &resource.plain.content {
        Content::Memory(bytes) => &**bytes,
        Content::Disk(file) => {
            let mut bytes = vec![0; identity.size as usize];
            file.read_exact_at(&mut bytes, 0)?;
            if Identity::of(&file.metadata()?) != identity {
                return Err(io::Error::other("the file changes while it is read"));
            }
            read = bytes;
            &read
        }
    };
    let encoded = Encoder::whole(coding, Effort::Kept, bytes)?;
    // Decoding costs the client more than it saves, unless the form is smaller by a sixteenth.
    if encoded.len() > bytes.len() - bytes.len() / 16 {
        return Ok(None);
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(&encoded);
    let etag = format!("\"{:016x}-{}\"", hasher.finish(), coding.token());
    Ok(Some(resource.encoded_as(coding, etag, encoded)))
}

impl Store {
    /// Makes an empty store for at most `limit` bytes.
    pub fn new(limit: usize) -> Store {
        Store {
            forms: Mutex::default(),
            limit,
            #[cfg(test)]
            encodings: AtomicUsize::new(0),
        }
    }

    /// The form with this key, or an empty place for it.
    fn get(&self, key: &Key) -> Arc<Form> {
        let mut forms = lock(&self.forms);
        if let Some(form) = forms.by_key.get(key) {
            return Arc::clone(form);
        }
        let form = Arc::new(Form::new());
        forms.by_key.insert(key.clone(), Arc::clone(&form));
        forms.order.push_back(key.clone());
        forms.bytes += form.bytes();
        forms.shrink(self.limit);
        form
    }

    /// Stores the result for `form`. A form that would fill more than half of the store counts as not worth
    /// making.
    fn put(&self, key: &Key, form: &Arc<Form>, made: Option<Variant>) {
        let made = made.filter(|made| made.length() as usize <= self.limit / 2);
        let mut forms = lock(&self.forms);
        // The store may have dropped the form meanwhile. Then only the fibers that wait for it use
        // it.
        let is_kept = forms.by_key.get(key).is_some_and(|kept| Arc::ptr_eq(kept, form));
        let before = form.bytes();
        if form.made.set(made).is_ok() && is_kept {
            forms.bytes = forms.bytes - before + form.bytes();
            forms.shrink(self.limit);
        }
    }

    fn remove(&self, key: &Key) {
        let mut forms = lock(&self.forms);
        if let Some(form) = forms.by_key.remove(key) {
            forms.bytes -= form.bytes();
            forms.order.retain(|known| known != key);
        }
    }
}

impl Forms {
    /// Drops forms until at most `limit` bytes are held.
    fn shrink(&mut self, limit: usize) {
        while self.bytes > limit {
            let Some(key) = self.order.pop_front() else { return };
            let Some(form) = self.by_key.get(&key) else { continue };
            // A form is spared once per round, so the loop ends.
            if form.used.swap(false, Ordering::Relaxed) {
                self.order.push_back(key);
                continue;
            }
            self.bytes -= form.bytes();
            self.by_key.remove(&key);
        }
    }
}

/// A permit to encode one file now. The process has few of them. A request that gets none sends
/// the file as it is, which costs less than waiting.
struct EncodePermit;

static ENCODING: AtomicUsize = AtomicUsize::new(0);

/// Number of permits: two per core, because half of the time may be spent reading.
static MOST_ENCODING: LazyLock<usize> =
    LazyLock::new(|| osier::available_parallelism().map_or(1, usize::from).max(2) * 2);

impl EncodePermit {
    fn take() -> Option<EncodePermit> {
        let more = |taken: usize| (taken < *MOST_ENCODING).then_some(taken + 1);
        ENCODING
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()
            .map(|_| EncodePermit)
    }
}

impl Drop for EncodePermit {
    fn drop(&mut self) {
        ENCODING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::encoder::decode;

    fn key(inode: u64) -> Key {
        let identity = Identity {
            device: 1,
            inode,
            size: 0,
            modified: 0,
            modified_nanos: 0,
            changed: (0, 0),
        };
        Key {
            identity,
            reading: None,
            mime: "text/plain".into(),
            coding: Coding::Gzip,
        }
    }

    /// Makes a form of that many bytes.
    fn variant(bytes: usize) -> Option<Variant> {
        let resource = Resource::embedded(b"plain", "text/plain", Some(1));
        Some(resource.encoded_as(Coding::Gzip, "\"x\"".into(), vec![0; bytes]))
    }

    fn counted(store: &Store) -> usize {
        let forms = lock(&store.forms);
        assert_eq!(forms.by_key.len(), forms.order.len());
        let bytes: usize = forms.by_key.values().map(|form| form.bytes()).sum();
        assert_eq!(bytes, forms.bytes);
        bytes
    }

    #[test]
    fn the_store_keeps_its_bound_and_what_is_used() {
        const LIMIT: usize = 100_000;
        let store = Store::new(LIMIT);
        let hot = store.get(&key(0));
        store.put(&key(0), &hot, variant(1000));
        for n in 1..500u64 {
            let form = store.get(&key(n));
            store.put(&key(n), &form, variant((n * 7919 % 9000) as usize));
            form.used.store(false, Ordering::Relaxed);
            hot.used.store(true, Ordering::Relaxed);
            assert!(counted(&store) <= LIMIT);
            assert!(Arc::ptr_eq(&store.get(&key(0)), &hot), "forgotten after {n}");
        }
        assert!(counted(&store) > LIMIT / 2, "it keeps too little");
        // A form that would push out everything else is not kept, and says so.
        let form = store.get(&key(1000));
        store.put(&key(1000), &form, variant(LIMIT / 2 + 1));
        assert!(form.made.get().is_some() && form.variant().is_none());
        store.remove(&key(1000));
        counted(&store);
        // A form that is made after the store dropped it: the fiber that waits for it has it, the
        // store does not.
        let late = store.get(&key(2000));
        store.remove(&key(2000));
        let before = counted(&store);
        store.put(&key(2000), &late, variant(10));
        assert_eq!(counted(&store), before);
        assert!(late.variant().is_some());
    }

    #[test]
    fn many_who_want_one_make_it_once_and_a_cancelled_one_leaves_it_to_the_next() {
        let files = crate::files::Files::embedded([]);
        let text: Vec<u8> = (0..100_000u32).flat_map(|n| n.to_string().into_bytes()).collect();
        let resource = Arc::new(Resource::embedded(&text, "text/plain", Some(1)));
        let runtime = osier::Runtime::builder().workers(2).build().unwrap();
        runtime.run(|| {
            let ask = |coding| {
                let (site, resource) = (Arc::clone(&files.site), Arc::clone(&resource));
                osier::spawn(move || form(&site, &resource, coding))
            };
            let waiting: Vec<_> = (0..20).map(|_| ask(Coding::Gzip)).collect();
            let forms: Vec<_> = waiting
                .into_iter()
                .map(|fiber| fiber.join().unwrap().unwrap())
                .collect();
            assert!(forms.iter().all(|form| Arc::ptr_eq(form, &forms[0])));
            assert_eq!(files.site.encoded.encodings.load(Ordering::Relaxed), 1);
            // The fiber that makes the form is cancelled. The form is made all the same.
            let (first, second) = (ask(Coding::Brotli), ask(Coding::Brotli));
            first.cancel();
            assert!(second.join().unwrap().is_some());
            let _ = first.join();
            assert!(files.site.encoded.encodings.load(Ordering::Relaxed) <= 3);
        });
    }

    #[test]
    fn a_form_decodes_has_its_own_tag_and_is_worth_it() {
        let text = "words and words, ".repeat(200);
        let resource = Resource::embedded(text.as_bytes(), "text/plain", Some(1));
        let mut tags = vec![resource.plain.etag.clone()];
        for coding in Coding::EACH {
            let form = encode(&resource, coding).unwrap().expect("smaller");
            let Content::Memory(bytes) = &form.content else {
                panic!("{form:?}")
            };
            assert_eq!(decode(coding, bytes).unwrap(), text.as_bytes());
            assert_eq!(form.length(), bytes.len() as u64);
            assert!(!tags.contains(&form.etag));
            tags.push(form.etag);
        }
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..4000).map(|_| random()).collect();
        let resource = Resource::embedded(&noise, "text/plain", Some(1));
        assert!(encode(&resource, Coding::Gzip).unwrap().is_none());
    }
}
