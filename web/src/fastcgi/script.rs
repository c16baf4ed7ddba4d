//! Finds the script that a path means, by looking at the files. Only scripts that exist below the root are run.
//!
//! The handler first reads the path ([`Wanted::parse`]), then looks below the root ([`Wanted::find`]). The script is
//! the first prefix of the path, segment by segment, that is a file with a script's suffix. The rest of the path is
//! PATH_INFO. No longer prefix can be a script, as nothing lies below a file: `/photo.jpg/x.php` is no script.
//!
//! Only a slash ends a name. An encoded slash and a backslash do not, and a segment that holds one names no file. In
//! PATH_INFO, which CGI wants decoded, an encoded slash becomes a slash.
//!
//! A link may lead out of the root only as `Options::symlinks` allows. A name that begins with a dot is never found.

use std::io;

use osier_http::path::{BadPath, Path};
use osier_http::percent_decode;

use crate::files::Access;
use crate::files::root::Root;

/// A parsed path. It borrows nothing, so that it can go to a thread of the blocking pool.
#[derive(Clone, Debug)]
pub struct Wanted {
    sent: Box<str>,
    segments: Vec<Segment>,
    is_folder: bool,
    /// See [`Wanted::name`].
    name: Option<Box<[u8]>>,
}

#[derive(Clone, Debug)]
struct Segment {
    /// The decoded segment.
    data: Box<[u8]>,
    /// Whether the segment can name a file and does not begin with a dot.
    is_name: bool,
    /// The segment's end in the path as it was sent.
    end: usize,
}

/// The meaning of a path.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A script that exists.
    Script(Script),
    /// A folder with an index, named without the slash at the end. Relative links would lead elsewhere, so the client
    /// is redirected.
    FolderWithoutSlash,
    /// A folder whose index is a file that is no script.
    Index,
    /// No script: the path means something else, or does not exist.
    Nothing,
}

/// A script that exists, and the rest of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The file's name relative to the root, with a leading `/`.
    pub name: Vec<u8>,
    /// PATH_INFO: empty, or with a leading `/`.
    pub info: Vec<u8>,
}

/// The rules by which names are scripts.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Suffixes of script names, including the dot.
    pub suffixes: Vec<String>,
    /// Names to try in a folder. A name that is not that of a script is only tried if `serves_files`.
    pub index: Vec<String>,
    /// Whether another handler sends the files that are not scripts.
    pub serves_files: bool,
}

impl Rules {
    /// Whether the name has a script's suffix.
    fn is_of_script(&self, name: &[u8]) -> bool {
        self.suffixes.iter().any(|suffix| name.ends_with(suffix.as_bytes()))
    }
}

impl Wanted {
    /// Reads the path of a request target, without its query.
    pub fn parse(sent: &str) -> Result<Wanted, BadPath> {
        let path = Path::parse(sent)?;
        let segments = path.segments().zip(path.sent_places()).map(|(segment, sent)| Segment {
            data: segment.data().into(),
            is_name: segment.name().is_some() && !segment.canonical().starts_with('.'),
            end: sent.end,
        });
        Ok(Wanted {
            segments: segments.collect(),
            is_folder: path.is_folder(),
            name: path.file_name().map(Into::into),
            sent: sent.into(),
        })
    }

    /// The encoded path with one slash between segments and one at the end.
    pub fn folder_url(&self) -> String {
        let mut url = String::from("/");
        for segment in &self.segments {
            url.extend(percent_encoding::percent_encode(
                &segment.data,
                crate::files::target::SEGMENT,
            ));
            url.push('/');
        }
        url
    }

    /// The whole path as a name below a root, without a leading slash; `None` where it cannot name a file.
    pub fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    /// Whether the last segment may be another spelling of a script's name. Some file systems (FAT, SMB, those of Macs) ignore the case of
    /// letters, and dots and spaces at the end.
    pub fn ends_like_a_script(&self, rules: &Rules) -> bool {
        let Some(last) = self.segments.last() else { return false };
        let end = last.data.iter().rposition(|byte| !b". ".contains(byte));
        let name = last.data[..end.map_or(0, |end| end + 1)].to_ascii_lowercase();
        let is = |suffix: &String| name.ends_with(suffix.to_ascii_lowercase().as_bytes());
        rules.suffixes.iter().any(is)
    }

    /// PATH_INFO after `segment`: the rest of the path, decoded.
    fn info_after(&self, segment: &Segment) -> Vec<u8> {
        percent_decode(&self.sent.as_bytes()[segment.end..]).unwrap_or_default()
    }

    /// Finds the script. `look` returns what lies at a name below the root.
    ///
    /// # Errors
    ///
    /// The errors of `look`, `WouldBlock` for example. A missing file is not an error.
    pub fn find(&self, rules: &Rules, look: impl Fn(&[u8]) -> io::Result<Kind>) -> io::Result<Found> {
        let mut name = Vec::new();
        for segment in &self.segments {
            if !segment.is_name {
                return Ok(Found::Nothing);
            }
            name.push(b'/');
            name.extend_from_slice(&segment.data);
            if !rules.is_of_script(&segment.data) {
                continue;
            }
            match look(&name[1..])? {
                Kind::File => {
                    let info = self.info_after(segment);
                    return Ok(Found::Script(Script { name, info }));
                }
                Kind::Folder => {}
                Kind::Nothing => return Ok(Found::Nothing),
            }
        }
        if look(name.get(1..).unwrap_or_default())? != Kind::Folder {
            return Ok(Found::Nothing);
        }
        let is_tried = |index: &&String| rules.serves_files || rules.is_of_script(index.as_bytes());
        for index in rules.index.iter().filter(is_tried) {
            let script = [&name, b"/".as_slice(), index.as_bytes()].concat();
            if look(&script[1..])? == Kind::File {
                return Ok(match self.is_folder {
                    false => Found::FolderWithoutSlash,
                    true if !rules.is_of_script(index.as_bytes()) => Found::Index,
                    true => Found::Script(Script {
                        name: script,
                        info: Vec::new(),
                    }),
                });
            }
        }
        Ok(Found::Nothing)
    }
}

/// The kind of thing that a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Folder,
    /// Missing, refused, outside the root, or neither a file nor a folder.
    Nothing,
}

/// Looks at `name` below `root`.
///
/// # Blocks the thread
///
/// While the disk is read, with [`Access::Blocking`].
///
/// # Errors
///
/// `WouldBlock` with [`Access::Cached`] if the disk might have to be read; other errors of the system call. A missing
/// file is not an error.
pub fn look(root: &Root, name: &[u8], access: Access) -> io::Result<Kind> {
    let metadata = match access {
        Access::Cached => root.metadata_cached(name),
        Access::Blocking => root.metadata(name),
    };
    match metadata {
        Ok(metadata) if metadata.is_file() => Ok(Kind::File),
        Ok(metadata) if metadata.is_dir() => Ok(Kind::Folder),
        Ok(_) => Ok(Kind::Nothing),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            Ok(Kind::Nothing)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules {
            suffixes: vec![".php".into()],
            index: vec!["index.html".into(), "index.php".into()],
            serves_files: false,
        }
    }

    /// A root of the names in `files` and their folders, where nobody sends files.
    fn find(path: &str) -> Result<Found, BadPath> {
        find_by(&rules(), path)
    }

    fn find_by(rules: &Rules, path: &str) -> Result<Found, BadPath> {
        let files = [
            "index.php",
            "a.php",
            "sub/b.php",
            "dir.php/c.php",
            "photo.jpg",
            "app/index.php",
            ".git/x.php",
            "pl/x.txt",
            "page/index.html",
            "both/index.html",
            "both/index.php",
        ];
        let look = |name: &[u8]| {
            let name = str::from_utf8(name).unwrap_or("?");
            Ok(if files.contains(&name) {
                Kind::File
            } else if name.is_empty() || files.iter().any(|file| file.starts_with(&format!("{name}/"))) {
                Kind::Folder
            } else {
                Kind::Nothing
            })
        };
        Ok(Wanted::parse(path)?.find(rules, look).unwrap())
    }

    fn script(name: &str, info: &str) -> Result<Found, BadPath> {
        Ok(Found::Script(Script {
            name: name.into(),
            info: info.into(),
        }))
    }

    #[test]
    fn the_script_is_the_longest_prefix_that_is_a_file() {
        assert_eq!(find("/a.php"), script("/a.php", ""));
        assert_eq!(find("/a.php/"), script("/a.php", "/"));
        assert_eq!(find("/a.php/x/y%20z"), script("/a.php", "/x/y z"));
        assert_eq!(find("/a.php/b.php"), script("/a.php", "/b.php"));
        assert_eq!(find("/a.php//x//"), script("/a.php", "//x//"));
        assert_eq!(find("/a.php/x%2Fy"), script("/a.php", "/x/y"));
        assert_eq!(find("/sub//b.php"), script("/sub/b.php", ""), "slashes merge before it");
        assert_eq!(find("/%61.php"), script("/a.php", ""));
        assert_eq!(
            find("/dir.php/c.php/x"),
            script("/dir.php/c.php", "/x"),
            "a folder that is named like a script"
        );
    }

    #[test]
    fn a_long_path_with_an_escape_is_read_once() {
        let segments = 50_000;
        let path = format!("/%61{}", "/a".repeat(segments));
        let begun = std::time::Instant::now();
        let wanted = Wanted::parse(&path).unwrap();
        // Reading it anew for each segment takes minutes.
        assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
        assert_eq!(wanted.segments.len(), 1 + segments);
        assert_eq!(wanted.segments.last().unwrap().end, path.len());
    }

    #[test]
    fn a_folder_means_its_index_and_wants_its_slash() {
        assert_eq!(find("/"), script("/index.php", ""));
        assert_eq!(find("/app/"), script("/app/index.php", ""));
        assert_eq!(find("/app"), Ok(Found::FolderWithoutSlash));
        assert_eq!(find("//app"), Ok(Found::FolderWithoutSlash));
        assert_eq!(
            Wanted::parse("//app%20%2f").unwrap().folder_url(),
            "/app%20%2F/",
            "never another host"
        );
        assert_eq!(find("/pl/"), Ok(Found::Nothing));
    }

    #[test]
    fn an_index_that_is_no_script_is_left_to_who_sends_files() {
        let rules = Rules {
            serves_files: true,
            ..rules()
        };
        for (path, with_files, without) in [
            ("/page/", Ok(Found::Index), Ok(Found::Nothing)),
            ("/page", Ok(Found::FolderWithoutSlash), Ok(Found::Nothing)),
            ("/both/", Ok(Found::Index), script("/both/index.php", "")),
            ("/app/", script("/app/index.php", ""), script("/app/index.php", "")),
        ] {
            assert_eq!(find_by(&rules, path), with_files, "{path}");
            assert_eq!(find(path), without, "{path}");
        }
    }

    #[test]
    fn other_spellings_of_a_script_are_no_files_to_send() {
        for path in ["/a.php", "/a.PHP", "/a.pHp.", "/a.php%20", "/a.php.%20.", "/.x/a.Php"] {
            assert!(Wanted::parse(path).unwrap().ends_like_a_script(&rules()), "{path}");
        }
        for path in ["/", "/a.php/x", "/a.php.txt", "/aphp", "/...", "/a.phps"] {
            assert!(!Wanted::parse(path).unwrap().ends_like_a_script(&rules()), "{path}");
        }
    }

    #[test]
    fn what_is_no_script_is_never_one() {
        for path in [
            "/none.php",
            "/none.php/a.php",
            "/photo.jpg",
            "/photo.jpg/x.php",
            "/photo.jpg/a.php",
            "/photo.jpg%2Fa.php",
            "/sub%2Fb.php",
            "/.git/x.php",
            "/%2egit/x.php",
            "/a.PHP",
            "/a.php%20",
            "/a.phpx",
            "/sub",
            "/a.php.bak",
            "/sub/x.php/b.php",
            "/a%5c.php",
        ] {
            assert_eq!(find(path), Ok(Found::Nothing), "{path}");
        }
    }

    #[test]
    fn a_path_that_misleads_is_malformed() {
        for path in [
            "",
            "a.php",
            "*",
            "/../a.php",
            "/%2e%2e/a.php",
            "/a.php/../x",
            "/a.php/%2E%2e",
            "/a.php/x%2f..%2Fy",
            "/./a.php",
            "/a.php%00",
            "/a.php%00.jpg",
            "/a.php/x%0Ay",
            "/a.php%0a/x.php",
            "/a.php/%0d",
            "/%7f",
            "/a%",
            "/a%4",
            "/a%zz",
            "/%+1",
        ] {
            assert!(find(path).is_err(), "{path}");
        }
    }
}
