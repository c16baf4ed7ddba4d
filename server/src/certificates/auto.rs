//! The certificate of a site with `tls = "auto"`. The state folder keeps it; it is read when a client first asks for it, so that ten
//! thousand certificates do not slow the start. Where several machines share certificates, the keeper brings it, because a handshake
//! cannot wait for Redis.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use osier_tls::Identity;

use super::acme::issue;
use super::acme::storage::{Folder, Stored};
use super::{Source, locked};
use crate::log::operator::Say;

/// The certificate of a site.
pub struct Auto {
    /// The first host of the site, whose name the files have.
    name: String,
    /// The folder that the first handshake reads. `None` if the keeper loads the certificate.
    folder: Option<Folder>,
    is_told: AtomicBool,
    /// The end of its validity, in seconds since 1970. 0 while there is none.
    ends: AtomicI64,
    current: Mutex<Current>,
    say: Say,
}

enum Current {
    Unread,
    Missing,
    Read(Identity),
}

impl Auto {
    /// The certificate of a site whose first host is `name`.
    ///
    /// # Blocks the thread
    /// While the folder is looked at.
    pub fn new(name: &str, folder: Option<Folder>, say: Say) -> Auto {
        let is_missing = folder.as_ref().is_some_and(|folder| !folder.has_certificate(name));
        let current = match folder {
            Some(_) => Current::Unread,
            None => Current::Missing,
        };
        let auto = Auto {
            name: name.to_owned(),
            folder,
            is_told: AtomicBool::new(false),
            ends: AtomicI64::new(0),
            current: Mutex::new(current),
            say,
        };
        if is_missing {
            auto.tell_missing();
        }
        auto
    }

    /// Logs once that there is no certificate yet.
    pub fn tell_missing(&self) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            let name = &self.name;
            self.say.warning(format_args!(
                "tls = \"auto\": there is no certificate for {name} yet; THE SITE SERVES A SELF-SIGNED ONE until there is"
            ));
        }
    }

    /// Shows a stored certificate to clients from now on.
    ///
    /// # Errors
    /// One line: the certificate cannot be used with its key.
    pub fn replace(&self, stored: &Stored) -> Result<(), String> {
        self.ends.store(issue::end(&stored.chain), Ordering::Relaxed);
        let mut current = locked(&self.current);
        // The first client reads what is stored.
        if !matches!(*current, Current::Unread) {
            *current = Current::Read(stored.identity()?);
        }
        Ok(())
    }

    /// Its name, and the end of its validity in seconds since 1970. `None` while there is none.
    pub fn ends(&self) -> Option<(String, i64)> {
        let ends = self.ends.load(Ordering::Relaxed);
        (ends != 0).then(|| (self.name.clone(), ends))
    }

    /// Reads what is stored.
    fn read(&self) -> Current {
        let read = self
            .folder
            .as_ref()
            .map_or(Ok(None), |folder| folder.certificate(&self.name));
        let read = read.map_err(|error| error.to_string());
        match read.and_then(|stored| stored.as_ref().map(Stored::identity).transpose()) {
            Ok(Some(identity)) => Current::Read(identity),
            Ok(None) => Current::Missing,
            Err(why) => {
                let name = &self.name;
                self.say
                    .error(format_args!("the stored certificate of {name} cannot be used: {why}"));
                Current::Missing
            }
        }
    }
}

impl Source for Auto {
    /// # Blocks the thread
    /// The first time, while a small file is read.
    fn find(&self, _name: Option<&str>) -> Option<Identity> {
        let mut current = locked(&self.current);
        if let Current::Unread = *current {
            *current = self.read();
        }
        match &*current {
            Current::Read(identity) => Some(identity.clone()),
            Current::Unread | Current::Missing => None,
        }
    }
}
