//! A file as it is served: its bytes or an open descriptor, its validators, its response fields,
//! and the same for its encoded siblings.
//!
//! [`load`] makes a resource on a worker while all of the file is in the kernel's memory, otherwise
//! on the blocking pool. A resource is immutable. The cache and the responses in flight share it.
//! All facts about a form (size, date, tag, bytes) come from one descriptor. If a file is replaced
//! meanwhile, a client gets either the old file or the new one, but whole.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::cache::Weigh;
use super::mime::{Types, content_type};
use super::root::{Found, Identity, Root};
use super::variant::{Access, Content, Known, LAST_DATE, Variant};
use crate::compress::accept_encoding::Coding;
use crate::compress::is_compressible;

/// Largest file that is encoded. The file and its encoded form are in memory meanwhile.
const MOST_ENCODED: u64 = 8 << 20;

/// Age from which a file's dates are trusted. A younger file may change again without getting new
/// ones, so its entry is never taken as unchanged.
const SETTLED: Duration = Duration::from_secs(2);

/// The next number of [`Resource::reading`].
static READINGS: AtomicU64 = AtomicU64::new(0);

/// A file and its encoded siblings.
#[derive(Debug)]
pub struct Resource {
    /// The file itself.
    pub plain: Variant,
    /// Content type.
    pub mime: Arc<str>,
    /// Siblings that exist and are not older than the file, in the order of [`Coding::ALL`].
    pub encoded: [Option<Variant>; 3],
    /// Encoded forms that the server made, for codings without a sibling.
    pub made: Known,
    /// Whether encoded forms may be made.
    is_encodable: bool,
    /// The number of this reading, which no other has, while the dates of the file and of its siblings cannot be trusted. `None` if the
    /// identities tell the content.
    pub reading: Option<u64>,
}

/// The result of loading a name.
#[derive(Debug)]
pub enum Loaded {
    /// A file.
    Resource(Arc<Resource>),
    /// A folder.
    Folder,
    /// A FIFO, socket or device.
    Special,
}

/// The options for loading a file.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions<'a> {
    /// Whether siblings are looked for.
    pub siblings: bool,
    /// Smallest file, in bytes, for which the server makes encoded forms. `None` if it makes none.
    pub made: Option<u64>,
    /// Largest file, in bytes, that is read into memory.
    pub in_memory: u64,
    /// Types beside the built-in ones.
    pub types: &'a Types,
}

/// Opens `name` and, if `options` allow, its siblings. If nothing has changed since `previous`,
/// returns `previous` and reads no byte.
///
/// # Blocks the thread
///
/// As long as the disk takes, with [`Access::Blocking`].
///
/// # Errors
///
/// Errors of [`Root::find`] for `name` itself. A sibling that cannot be opened is ignored.
/// `WouldBlock` with [`Access::Cached`].
pub fn load(
    root: &Root,
    name: &[u8],
    access: Access,
    options: LoadOptions<'_>,
    previous: Option<&Arc<Resource>>,
) -> io::Result<Loaded> {
    load_at(osier::time::system_now(), root, name, access, options, previous)
}

/// Same as [`load`], at the time `now`.
fn load_at(
    now: SystemTime,
    root: &Root,
    name: &[u8],
    access: Access,
    options: LoadOptions<'_>,
    previous: Option<&Arc<Resource>>,
) -> io::Result<Loaded> {
    let (file, identity) = match find(root, name, access)? {
        Found::File(file, identity) => (file, identity),
        Found::Folder(_) => return Ok(Loaded::Folder),
        Found::Special => return Ok(Loaded::Special),
    };
    let siblings = match options.siblings {
        true => find_siblings(root, name, access, &identity)?,
        false => Siblings::default(),
    };
    if let Some(previous) = previous.filter(|previous| previous.is_of(&identity, &siblings)) {
        return Ok(Loaded::Resource(Arc::clone(previous)));
    }
    let access = (access, options.in_memory);
    let mime = content_type(Path::new(std::ffi::OsStr::from_bytes(name)), options.types);
    let shrinks = shrinks(options.made, identity.size, &mime);
    let varies = shrinks || siblings.iter().any(Option::is_some);
    let is_old = |at: i64| system_time(at) + SETTLED <= now;
    let identities = || siblings.iter().flatten().map(|sibling| sibling.1).chain([identity]);
    let is_dated_old = identities().all(|identity| is_old(identity.modified));
    // A program may set the date back. The system then still knows when that was.
    let is_settled = is_dated_old && identities().all(|identity| is_old(identity.changed.0));
    // A file that is being written is not worth an encoded form. One that was changed in the future, by a clock that has been set back since,
    // is read again each time until then, and would be encoded as often.
    let has_changed = identities().all(|identity| system_time(identity.changed.0) <= now + SETTLED);
    let is_encodable = shrinks && is_dated_old && has_changed;
    let mut encoded = [None, None, None];
    for ((variant, sibling), coding) in encoded.iter_mut().zip(siblings).zip(Coding::EACH) {
        if let Some((file, identity)) = sibling {
            *variant = Some(Variant::of(file, identity, access, &mime, Some(coding), varies, now)?);
        }
    }
    let plain = Variant::of(file, identity, access, &mime, None, varies, now)?;
    Ok(Loaded::Resource(Arc::new(Resource {
        plain,
        mime: mime.into(),
        encoded,
        made: Known::default(),
        is_encodable,
        reading: (!is_settled).then(|| READINGS.fetch_add(1, Ordering::Relaxed)),
    })))
}

/// The encoded forms of a file on disk, by their coding.
type Siblings = [Option<(File, Identity)>; 3];

/// Opens the siblings that are not older than the file.
fn find_siblings(root: &Root, name: &[u8], access: Access, identity: &Identity) -> io::Result<Siblings> {
    let mut siblings = Siblings::default();
    for (sibling, coding) in siblings.iter_mut().zip(Coding::EACH) {
        let name = [name, coding.suffix().as_bytes()].concat();
        *sibling = match find(root, &name, access) {
            Ok(Found::File(file, theirs)) if !theirs.older_than(identity) => Some((file, theirs)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            _ => None,
        };
    }
    Ok(siblings)
}

impl Resource {
    /// Whether the resource is certainly that of these files.
    fn is_of(&self, identity: &Identity, siblings: &Siblings) -> bool {
        let encoded = self
            .encoded
            .iter()
            .map(|variant| variant.as_ref().map(|variant| variant.identity));
        let found = siblings.iter().map(|sibling| sibling.as_ref().map(|sibling| sibling.1));
        self.reading.is_none() && self.plain.identity == *identity && encoded.eq(found)
    }

    /// Makes the resource of a page inside the binary.
    pub fn embedded(bytes: &[u8], mime: &str, encoded_from: Option<u64>) -> Resource {
        use std::hash::{Hash, Hasher};
        // The hash tells the page of one release from that of another. It is SipHash with the fixed
        // key of `DefaultHasher::new`.
        let mut hasher = std::hash::DefaultHasher::new();
        bytes.hash(&mut hasher);
        let hash = hasher.finish();
        let etag = format!("\"{hash:016x}\"");
        let identity = Identity {
            device: 0,
            inode: hash,
            size: bytes.len() as u64,
            modified: 0,
            modified_nanos: 0,
            changed: (0, 0),
        };
        let is_encodable = shrinks(encoded_from, identity.size, mime);
        let content = Content::Memory(Arc::new(bytes.to_vec()));
        Resource {
            plain: Variant::new(identity, content, etag, None, mime, None, is_encodable),
            mime: mime.into(),
            encoded: [None, None, None],
            made: Known::default(),
            is_encodable,
            reading: None,
        }
    }

    /// Makes the form of this file that `bytes` hold.
    pub fn encoded_as(&self, coding: Coding, etag: String, bytes: Vec<u8>) -> Variant {
        let identity = Identity {
            size: bytes.len() as u64,
            ..self.plain.identity
        };
        let (content, modified) = (Content::Memory(Arc::new(bytes)), self.plain.modified);
        Variant::new(identity, content, etag, modified, &self.mime, Some(coding), true)
    }

    /// Yields the codings that the file has, then those in `made` that the server may make. Each
    /// group is in the order of [`Coding::ALL`], the denser first.
    pub fn offered(&self, made: &[Coding]) -> impl Iterator<Item = Coding> {
        let lies_there = |coding: &Coding| self.encoded[*coding as usize].is_some();
        let siblings = Coding::EACH.into_iter().filter(lies_there);
        let made = Coding::EACH
            .into_iter()
            .filter(move |coding| self.is_encodable && made.contains(coding) && !lies_there(coding));
        siblings.chain(made)
    }

    fn variants(&self) -> impl Iterator<Item = &Variant> {
        self.encoded.iter().flatten().chain([&self.plain])
    }
}

impl Weigh for Arc<Resource> {
    fn bytes(&self) -> usize {
        let contents = self.variants().map(|variant| match &variant.content {
            Content::Memory(bytes) => bytes.len(),
            Content::Disk(_) => 0,
        });
        // 512 is an estimate of the fields, tags and boxes of one form.
        contents.map(|bytes| bytes + 512).sum()
    }

    fn files(&self) -> usize {
        self.variants()
            .filter(|variant| matches!(variant.content, Content::Disk(_)))
            .count()
    }
}

/// Whether encoded forms are made of a file of `size` bytes. `encoded_from` is the smallest size.
fn shrinks(encoded_from: Option<u64>, size: u64, mime: &str) -> bool {
    encoded_from.is_some_and(|min| (min.max(1)..=MOST_ENCODED).contains(&size)) && is_compressible(mime.as_bytes())
}

/// Opens `name`.
fn find(root: &Root, name: &[u8], access: Access) -> io::Result<Found> {
    match access {
        Access::Cached => root.find_cached(name),
        Access::Blocking => root.find(name),
    }
}

/// Converts the date of a file. It may lie before 1970 or beyond the range of the clock.
fn system_time(at: i64) -> SystemTime {
    match u64::try_from(at) {
        Ok(at) => UNIX_EPOCH + Duration::from_secs(at.min(LAST_DATE)),
        Err(_) => UNIX_EPOCH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Response;
    use crate::files::variant::SMALL;
    use http::StatusCode;
    use testkit::Folder;

    const OPTIONS: LoadOptions<'_> = LoadOptions {
        siblings: true,
        made: None,
        in_memory: SMALL,
        types: &Types::NONE,
    };
    const BOTH: [Access; 2] = [Access::Cached, Access::Blocking];

    /// Loads from the page cache if the machine allows it, so that both ways are compared.
    fn loaded(root: &Root, name: &str, access: Access, previous: Option<&Arc<Resource>>) -> Arc<Resource> {
        let mut result = load(root, name.as_bytes(), access, OPTIONS, previous);
        if access == Access::Cached
            && result
                .as_ref()
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        {
            println!("skipped: {name} is not served from the kernel's memory here, loaded from disk instead");
            result = load(root, name.as_bytes(), Access::Blocking, OPTIONS, previous);
        }
        match result.unwrap() {
            Loaded::Resource(resource) => resource,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn age(path: &Path, modified: SystemTime) {
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_modified(modified)
            .unwrap();
    }

    fn field(variant: &Variant, name: &str) -> Option<String> {
        let response = Response::new(StatusCode::OK).with_fields(&variant.fields);
        response
            .lookup(name)
            .map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    #[test]
    fn small_in_memory_large_open() {
        let folder = Folder::new();
        folder.write("small.css", vec![b'a'; SMALL as usize]);
        folder.write("large.css", vec![b'a'; SMALL as usize + 1]);
        folder.write("empty", "");
        let root = Root::open(folder.path()).unwrap();
        for access in BOTH {
            let small = loaded(&root, "small.css", access, None);
            assert!(matches!(&small.plain.content, Content::Memory(bytes) if bytes.len() as u64 == SMALL));
            assert_eq!((small.files(), small.plain.length()), (0, SMALL));
            assert_eq!(
                field(&small.plain, "content-type").as_deref(),
                Some("text/css; charset=utf-8")
            );
            assert_eq!(field(&small.plain, "vary").as_deref(), None);
            let large = loaded(&root, "large.css", access, None);
            assert!(matches!(&large.plain.content, Content::Disk(_)));
            assert_eq!(large.files(), 1);
            assert_eq!(loaded(&root, "empty", access, None).plain.length(), 0);
        }
        let none = LoadOptions {
            in_memory: 0,
            ..OPTIONS
        };
        let Ok(Loaded::Resource(kept_open)) = load(&root, b"small.css", Access::Blocking, none, None) else {
            panic!("it is a file");
        };
        assert!(matches!(&kept_open.plain.content, Content::Disk(_)));
    }

    #[test]
    fn siblings_have_their_own_tags_and_count_only_when_current() {
        let folder = Folder::new();
        let hour = Duration::from_secs(3600);
        let then = SystemTime::now() - hour;
        age(&folder.write("a.js", "plain"), then);
        age(&folder.write("a.js.gz", "gzip"), then);
        age(&folder.write("a.js.br", "brotli"), then - hour);
        std::fs::create_dir(folder.path().join("a.js.zst")).unwrap();
        let root = Root::open(folder.path()).unwrap();
        for access in BOTH {
            let resource = loaded(&root, "a.js", access, None);
            assert_eq!(resource.offered(&[]).collect::<Vec<_>>(), [Coding::Gzip]);
            let gzip = resource.encoded[2].as_ref().unwrap();
            assert_ne!(gzip.etag, resource.plain.etag);
            assert_eq!(field(gzip, "content-encoding").as_deref(), Some("gzip"));
            assert_eq!(
                field(gzip, "content-type").as_deref(),
                Some("text/javascript; charset=utf-8")
            );
            assert_eq!(field(gzip, "vary").as_deref(), Some("accept-encoding"));
            assert_eq!(field(&resource.plain, "vary").as_deref(), Some("accept-encoding"));
            assert_eq!(field(&resource.plain, "content-encoding").as_deref(), None);
        }
    }

    /// Loads once nobody could have written the file without another date.
    fn loaded_later(root: &Root, name: &str, previous: Option<&Arc<Resource>>) -> Arc<Resource> {
        let later = SystemTime::now() + 2 * SETTLED;
        match load_at(later, root, name.as_bytes(), Access::Blocking, OPTIONS, previous) {
            Ok(Loaded::Resource(resource)) => resource,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn unchanged_is_the_same_and_changed_is_not() {
        let folder = Folder::new();
        let then = SystemTime::now() - Duration::from_secs(3600);
        let path = folder.write("a.txt", "one");
        age(&path, then);
        let root = Root::open(folder.path()).unwrap();
        let first = loaded_later(&root, "a.txt", None);
        assert!(Arc::ptr_eq(
            &first,
            &loaded(&root, "a.txt", Access::Blocking, Some(&first))
        ));
        // The name now means another file of the same size and date.
        age(&folder.write("b.txt", "two"), then);
        std::fs::rename(folder.path().join("b.txt"), &path).unwrap();
        let second = loaded(&root, "a.txt", Access::Blocking, Some(&first));
        assert!(matches!(&second.plain.content, Content::Memory(bytes) if ***bytes == *b"two"));
        // A new sibling changes the resource.
        age(&folder.write("a.txt.gz", "gz"), then);
        assert_eq!(
            loaded(&root, "a.txt", Access::Blocking, Some(&second))
                .offered(&[])
                .collect::<Vec<_>>(),
            [Coding::Gzip]
        );
    }

    #[test]
    fn what_has_just_changed_is_read_again() {
        let folder = Folder::new();
        let path = folder.write("a.txt", "one");
        let now = SystemTime::now();
        age(&path, now);
        let root = Root::open(folder.path()).unwrap();
        let first = loaded(&root, "a.txt", Access::Blocking, None);
        std::fs::write(&path, "two").unwrap();
        age(&path, now);
        let second = loaded(&root, "a.txt", Access::Blocking, Some(&first));
        assert!(matches!(&second.plain.content, Content::Memory(bytes) if ***bytes == *b"two"));
    }

    /// No date tells two states apart within one tick of the clock of the file system.
    #[test]
    fn what_has_just_changed_is_read_again_whatever_its_date() {
        let folder = Folder::new();
        let then = SystemTime::now() - Duration::from_secs(3600);
        age(&folder.write("a.txt", "one"), then);
        let root = Root::open(folder.path()).unwrap();
        let first = loaded(&root, "a.txt", Access::Blocking, None);
        let second = loaded(&root, "a.txt", Access::Blocking, Some(&first));
        assert!(!Arc::ptr_eq(&first, &second));
        // Each has encoded forms of its own.
        assert!(first.reading.is_some() && second.reading.is_some() && first.reading != second.reading);
        let later = loaded_later(&root, "a.txt", Some(&second));
        assert!(!Arc::ptr_eq(&second, &later) && later.reading.is_none());
        assert!(Arc::ptr_eq(&later, &loaded_later(&root, "a.txt", Some(&later))));
    }

    #[test]
    fn a_file_that_was_changed_in_the_future_is_not_encoded_each_time_that_it_is_read() {
        let folder = Folder::new();
        let then = SystemTime::now() - Duration::from_secs(7200);
        age(&folder.write("a.txt", "one ".repeat(1000)), then);
        let root = Root::open(folder.path()).unwrap();
        let options = LoadOptions {
            made: Some(100),
            ..OPTIONS
        };
        let is_encodable = |now| match load_at(now, &root, b"a.txt", Access::Blocking, options, None) {
            Ok(Loaded::Resource(resource)) => resource.is_encodable,
            other => panic!("{other:?}"),
        };
        assert!(is_encodable(SystemTime::now()));
        // The clock has been set back since.
        assert!(!is_encodable(SystemTime::now() - Duration::from_secs(3600)));
    }

    #[test]
    fn a_file_that_is_written_again_with_its_date_and_size_is_another() {
        let folder = Folder::new();
        let then = SystemTime::now() - Duration::from_secs(3600);
        let path = folder.write("a.txt", "one");
        age(&path, then);
        let root = Root::open(folder.path()).unwrap();
        let first = loaded_later(&root, "a.txt", None);
        // Longer than a tick of the clock of the file system.
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(&path, "two").unwrap();
        age(&path, then);
        let second = loaded(&root, "a.txt", Access::Blocking, Some(&first));
        assert!(matches!(&second.plain.content, Content::Memory(bytes) if ***bytes == *b"two"));
        assert_eq!(
            (&first.plain.etag, first.plain.modified),
            (&second.plain.etag, second.plain.modified)
        );
    }

    #[test]
    fn a_file_without_a_date_has_the_tag_of_its_content() {
        let folder = Folder::new();
        let root = Root::open(folder.path()).unwrap();
        for date in [0, 1] {
            let date = UNIX_EPOCH + Duration::from_secs(date);
            for (in_memory, is_hash) in [(SMALL, true), (0, false)] {
                let tag = |content: &str| {
                    let path = folder.write("new.txt", content);
                    age(&path, date);
                    std::fs::rename(path, folder.path().join("a.txt")).unwrap();
                    let options = LoadOptions { in_memory, ..OPTIONS };
                    let twice = [(); 2].map(|()| match load(&root, b"a.txt", Access::Blocking, options, None) {
                        Ok(Loaded::Resource(resource)) => {
                            assert_eq!(field(&resource.plain, "last-modified"), None);
                            field(&resource.plain, "etag").expect("it has one")
                        }
                        other => panic!("{other:?}"),
                    });
                    assert_eq!(twice[0], twice[1]);
                    twice[0].clone()
                };
                let (one, two, again) = (tag("one"), tag("two"), tag("one"));
                assert!(one != two && (!is_hash || one == again), "{one} {two} {again}");
            }
        }
        // In an image, no file has a date of any kind.
        let path = folder.write("a.txt", "one");
        age(&path, UNIX_EPOCH);
        let identity = Identity {
            changed: (0, 0),
            ..Identity::of(&path.metadata().unwrap())
        };
        let access = (Access::Blocking, 0);
        let variant = Variant::of(
            File::open(path).unwrap(),
            identity,
            access,
            "x/y",
            None,
            false,
            SystemTime::now(),
        );
        let variant = variant.unwrap();
        assert_eq!((&*variant.etag, field(&variant, "etag")), ("", None));
    }

    #[test]
    fn dates_that_http_cannot_say_are_left_out() {
        let folder = Folder::new();
        let path = folder.write("a.txt", "a");
        let root = Root::open(folder.path()).unwrap();
        for date in [
            UNIX_EPOCH - Duration::from_secs(5),
            SystemTime::now() + Duration::from_secs(86_400),
        ] {
            age(&path, date);
            let resource = loaded(&root, "a.txt", Access::Blocking, None);
            assert_eq!(
                (resource.plain.modified, field(&resource.plain, "last-modified")),
                (None, None)
            );
        }
        age(&path, UNIX_EPOCH + Duration::from_secs(784_111_777));
        let resource = loaded(&root, "a.txt", Access::Blocking, None);
        assert_eq!(
            field(&resource.plain, "last-modified").as_deref(),
            Some("Sun, 06 Nov 1994 08:49:37 GMT")
        );
    }

    #[test]
    fn an_embedded_page_has_a_tag() {
        let one = Resource::embedded(b"one", "text/html", None);
        let two = Resource::embedded(b"two", "text/html", None);
        assert_ne!(one.plain.etag, two.plain.etag);
        assert_eq!(field(&one.plain, "content-type").as_deref(), Some("text/html"));
        assert_eq!(one.plain.length(), 3);
    }
}
