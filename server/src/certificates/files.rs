//! A certificate in files, read again when they change.
//!
//! The process reads the files for the first time before it gives up its privileges. Later readings may be denied. A
//! reading that fails leaves the old certificate in place.
//!
//! The lock of `looked` is held while the files are read. A handshake takes only the lock of `current`, which is held
//! for moments.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use osier_tls::Identity;

use crate::log::operator::Say;
use crate::policy::watched::{self, Stamp};
use crate::process::root::inside;

use super::inspect::validity;
use super::settings::CertificateFiles;
use super::x509::{Certificate, Time};
use super::{Source, locked};

/// The files of a certificate.
pub struct Files {
    files: CertificateFiles,
    current: Mutex<Option<Identity>>,
    looked: Mutex<Looked>,
    say: Say,
}

/// The result of the last look at the files.
#[derive(Default)]
struct Looked {
    /// The files as they were when the certificate was read.
    stamps: Option<[Stamp; 2]>,
    leaf: Option<Certificate>,
    /// The lines that were logged since then, so that each is logged once.
    said: Vec<String>,
}

impl Files {
    /// Reads the files for the first time.
    ///
    /// # Blocks the thread
    /// While they are read.
    pub fn open(files: CertificateFiles, root: Option<&Path>, say: Say) -> Arc<Files> {
        let files = Arc::new(Files {
            files,
            current: Mutex::default(),
            looked: Mutex::default(),
            say,
        });
        files.look(root, Time::now());
        files
    }

    /// Reads the files if they have changed. `root` is the root folder that this process has changed to.
    ///
    /// # Blocks the thread
    /// While they are looked at.
    pub fn look(&self, root: Option<&Path>, now: Time) {
        let mut looked = locked(&self.looked);
        let paths = inside(root, &self.files.cert).zip(inside(root, &self.files.key));
        let Some((cert, key)) = paths else {
            let name = self.files.cert.display();
            self.say_once(&mut looked, format!("the certificate '{name}' or its key lies outside of 'chroot': a renewed one is read at the next start"));
            return;
        };
        let stamps = Stamp::at(&cert).and_then(|of_cert| Ok([of_cert, Stamp::at(&key)?]));
        match &stamps {
            Ok(stamps) if looked.stamps.as_ref() == Some(stamps) => return self.warn_of_end(&mut looked, now),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && looked.stamps.is_some() => {
                let name = self.files.cert.display();
                self.say_once(&mut looked, format!("this user may not look at the certificate '{name}' or its key: a renewed one is read at the next start"));
                return self.warn_of_end(&mut looked, now);
            }
            _ => {}
        }
        match read(&cert, &key) {
            Ok((identity, leaf, stamps)) => {
                let is_first = looked.stamps.is_none() && looked.said.is_empty();
                if !is_first {
                    let (name, end) = (self.files.cert.display(), leaf.not_after);
                    self.say.info(format_args!(
                        "the certificate '{name}' has been read anew; it is valid until {end}"
                    ));
                }
                *locked(&self.current) = Some(identity);
                *looked = Looked {
                    stamps: Some(stamps),
                    leaf: Some(leaf),
                    said: Vec::new(),
                };
                match is_first {
                    // The check of the configuration has just warned of the end.
                    true => {
                        let end = self.end(&looked, now);
                        looked.said.extend(end);
                    }
                    false => self.warn_of_end(&mut looked, now),
                }
            }
            Err(why) => {
                let meanwhile = match looked.stamps {
                    Some(_) => "the old certificate stays",
                    None => "THE SITE SERVES A SELF-SIGNED CERTIFICATE until a usable one is there",
                };
                let text = format!("{why}; {meanwhile}");
                if !looked.said.contains(&text) {
                    self.say.error(format_args!("{text}"));
                    looked.said.push(text);
                }
            }
        }
    }

    /// Logs that the validity ends. This happens once a day, because the text counts the days.
    fn warn_of_end(&self, looked: &mut Looked, now: Time) {
        if let Some(text) = self.end(looked, now) {
            self.say_once(looked, text);
        }
    }

    /// The line about the end of the validity, if it is near.
    fn end(&self, looked: &Looked, now: Time) -> Option<String> {
        let text = validity(looked.leaf.as_ref()?, now)?;
        Some(format!("'{}': {text}", self.files.cert.display()))
    }

    /// Logs a line, unless it was logged since the certificate was read.
    fn say_once(&self, looked: &mut Looked, text: String) {
        if !looked.said.contains(&text) {
            self.say.warning(format_args!("{text}"));
            looked.said.push(text);
        }
    }
}

impl Source for Files {
    fn find(&self, _name: Option<&str>) -> Option<Identity> {
        locked(&self.current).clone()
    }
}

/// Reads a certificate and its key.
///
/// # Errors
/// One line.
fn read(cert: &Path, key: &Path) -> Result<(Identity, Certificate, [Stamp; 2]), String> {
    let text = |path: &Path| watched::text(path).map_err(|why| format!("'{}': {why}", path.display()));
    let ((chain, of_cert), (secret, of_key)) = (text(cert)?, text(key)?);
    let identity = Identity::from_pem(chain.as_bytes(), secret.as_bytes())
        .map_err(|error| format!("'{}' with the key '{}': {error}", cert.display(), key.display()))?;
    let leaf = identity.chain().next().and_then(|leaf| Certificate::parse(leaf).ok());
    let leaf = leaf.ok_or_else(|| format!("'{}' is not an X.509 certificate", cert.display()))?;
    Ok((identity, leaf, [of_cert, of_key]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::pem;
    use rcgen::{CertificateParams, KeyPair};
    use testkit::Folder;

    /// 2096-01-01.
    const NOW: Time = Time(46_021 * 86_400);

    /// Writes a certificate that is valid until a day of April 2096, and its key.
    fn write(folder: &Folder, day: u8) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["example.org".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2096, 4, day);
        let made = params.self_signed(&key).unwrap();
        folder.write_now("c.pem", pem::block("CERTIFICATE", made.der()));
        folder.write_now("k.pem", pem::block("PRIVATE KEY", key.serialized_der()));
    }

    struct Watched {
        folder: Folder,
        files: Arc<Files>,
        lines: Arc<Mutex<Vec<String>>>,
    }

    impl Watched {
        fn new(folder: Folder) -> Watched {
            let lines: Arc<Mutex<Vec<String>>> = Arc::default();
            let log = Arc::clone(&lines);
            let say = Say::new(move |line| log.lock().unwrap().push(line.text.to_string()));
            let settings = CertificateFiles {
                cert: folder.join("c.pem"),
                key: folder.join("k.pem"),
            };
            Watched {
                files: Files::open(settings, None, say),
                folder,
                lines,
            }
        }

        /// Looks some days after [`NOW`]. Returns what was logged since the last call, and the last day of the
        /// certificate.
        fn look(&self, days: i64) -> (Vec<String>, Option<String>) {
            self.files.look(None, Time(NOW.0 + days * 86_400));
            let lines = std::mem::take(&mut *self.lines.lock().unwrap());
            let identity = self.files.find(None);
            let end = identity.map(|identity| Certificate::parse(identity.chain().next().unwrap()).unwrap().not_after);
            (lines, end.map(|end| end.to_string()))
        }
    }

    #[test]
    fn a_change_is_found_and_a_bad_one_changes_nothing() {
        let folder = Folder::new();
        write(&folder, 1);
        let watched = Watched::new(folder);
        let end = |day| Some(format!("2096-04-0{day}"));
        assert_eq!(watched.look(1), (vec![], end(1)));
        write(&watched.folder, 2);
        let (lines, now) = watched.look(1);
        assert!(
            lines.len() == 1 && lines[0].ends_with("has been read anew; it is valid until 2096-04-02"),
            "{lines:?}"
        );
        assert_eq!(now, end(2));
        watched.folder.write_now("k.pem", "no key");
        let (lines, now) = watched.look(1);
        assert!(
            lines.len() == 1 && lines[0].ends_with("; the old certificate stays"),
            "{lines:?}"
        );
        assert_eq!(
            (now, watched.look(1)),
            (end(2), (vec![], end(2))),
            "each line is logged once"
        );
        std::fs::remove_file(watched.folder.join("c.pem")).unwrap();
        let (lines, now) = watched.look(1);
        assert!(
            lines.len() == 1 && lines[0].contains("there is no such file"),
            "{lines:?}"
        );
        assert_eq!(now, end(2));
        write(&watched.folder, 3);
        assert_eq!((watched.look(1).0.len(), watched.look(1)), (1, (vec![], end(3))));
    }

    #[test]
    fn the_end_is_warned_of_once_a_day() {
        let folder = Folder::new();
        write(&folder, 1);
        let watched = Watched::new(folder);
        assert_eq!(watched.look(70).0.len(), 0);
        for days in [80, 81] {
            let (lines, _) = watched.look(days);
            let expected = format!("the certificate expires in {} days, on 2096-04-01; renew it", 91 - days);
            assert!(lines.len() == 1 && lines[0].ends_with(&expected), "{lines:?}");
            assert_eq!(watched.look(days).0.len(), 0);
        }
    }

    #[test]
    fn a_certificate_that_comes_later_is_taken() {
        let watched = Watched::new(Folder::new());
        let lines = std::mem::take(&mut *watched.lines.lock().unwrap());
        assert!(
            lines.len() == 1 && lines[0].contains("THE SITE SERVES A SELF-SIGNED CERTIFICATE"),
            "{lines:?}"
        );
        assert_eq!(watched.look(1), (vec![], None));
        write(&watched.folder, 1);
        let (lines, end) = watched.look(1);
        assert_eq!((lines.len(), end.as_deref()), (1, Some("2096-04-01")));
    }
}
