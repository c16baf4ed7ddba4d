//! The certificate of a site with `tls = "auto"`.
//!
//! The state folder stores the certificate. It is read when a client first asks for it, so ten thousand certificates do
//! not slow the start. Where several machines share certificates, the keeper loads it, because a handshake cannot wait
//! for Redis.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use osier_tls::Identity;

use super::acme::issue;
use super::acme::storage::{Folder, Stored};
use super::x509::Time;
use super::{Source, locked};
use crate::log::operator::Say;

/// The certificate of a site.
pub struct Auto {
    /// The hosts of the site. The first one names the files.
    hosts: Vec<String>,
    /// The folder that the first handshake reads. `None` if the keeper loads the certificate.
    folder: Option<Folder>,
    /// Whether the log has said that there is no certificate.
    is_told: AtomicBool,
    /// The end of the certificate's validity, in seconds since 1970. 0 while there is no certificate.
    ends: AtomicI64,
    current: Mutex<Current>,
    say: Say,
}

/// The certificate that clients get.
enum Current {
    /// The certificate in the folder, which was not read yet. The number counts the renewals of it.
    Unread(u32),
    Missing,
    Read(Identity),
}

impl Auto {
    /// The certificate of a site with these hosts, at least one.
    ///
    /// # Suspends
    /// While the folder is looked at.
    pub fn new(hosts: &[String], folder: Option<Folder>, say: Say) -> Auto {
        let is_missing = |folder: &Folder| !hosts.iter().any(|host| folder.has_certificate(host));
        let is_missing = folder.as_ref().is_some_and(is_missing);
        let current = match folder {
            Some(_) => Current::Unread(0),
            None => Current::Missing,
        };
        let auto = Auto {
            hosts: hosts.to_vec(),
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
            let name = &self.hosts[0];
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
        let mut current = locked(&self.current);
        match &mut *current {
            // The first client will read the stored certificate.
            Current::Unread(renewals) => *renewals += 1,
            shown => *shown = Current::Read(stored.identity()?),
        }
        self.ends.store(issue::end(&stored.chain), Ordering::Relaxed);
        Ok(())
    }

    /// Shows a certificate to clients from now on that the folder does not have.
    ///
    /// # Errors
    /// One line: the certificate cannot be used with its key.
    pub fn hold(&self, unstored: &Stored) -> Result<(), String> {
        let identity = unstored.identity()?;
        *locked(&self.current) = Current::Read(identity);
        self.ends.store(issue::end(&unstored.chain), Ordering::Relaxed);
        Ok(())
    }

    /// The name of the certificate, and the end of its validity in seconds since 1970. `None` while there is no
    /// certificate.
    pub fn ends(&self) -> Option<(String, i64)> {
        let ends = self.ends.load(Ordering::Relaxed);
        (ends != 0).then(|| (self.hosts[0].clone(), ends))
    }

    /// Reads the stored certificate, or one of another host of the site: the hosts may have changed. An expired one counts
    /// if there is no other. The caller holds no lock: another fiber of this worker that waits for the lock would block the
    /// thread that has to resume this one.
    ///
    /// # Suspends
    /// While the file is read.
    fn read(&self) -> Current {
        let Some(folder) = &self.folder else {
            return Current::Missing;
        };
        let mut expired = None;
        for name in &self.hosts {
            let stored = folder.certificate(name).map_err(|error| error.to_string());
            let read = stored.and_then(|stored| {
                let used = stored.map(|stored| Ok::<_, String>((issue::end(&stored.chain), stored.identity()?)));
                used.transpose()
            });
            match read {
                Ok(Some((ends, identity))) if ends > Time::now().0 => return Current::Read(identity),
                Ok(Some((_, identity))) => expired = expired.or(Some(identity)),
                Ok(None) => {}
                Err(why) => self
                    .say
                    .error(format_args!("the stored certificate of {name} cannot be used: {why}")),
            }
        }
        expired.map_or(Current::Missing, Current::Read)
    }
}

impl Source for Auto {
    /// # Suspends
    /// The first time, while a small file is read.
    fn find(&self, _name: Option<&str>) -> Option<Identity> {
        loop {
            let seen = match &*locked(&self.current) {
                Current::Read(identity) => return Some(identity.clone()),
                Current::Missing => return None,
                Current::Unread(renewals) => *renewals,
            };
            let read = self.read();
            let mut current = locked(&self.current);
            // Another client may have been faster, or the keeper has brought a newer certificate.
            if matches!(*current, Current::Unread(renewals) if renewals == seen) {
                if matches!(read, Current::Missing) {
                    self.ends.store(0, Ordering::Relaxed);
                }
                *current = read;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    /// A certificate that is in the folder, unread.
    fn auto(folder: &testkit::Folder, first: &Stored) -> Arc<Auto> {
        let folder = Folder::new(folder.join("state"));
        folder.put_certificate("a.example.org", first).unwrap();
        let hosts = ["a.example.org".to_owned()];
        Arc::new(Auto::new(&hosts, Some(folder), Say::new(|_| {})))
    }

    fn leaf(identity: Option<Identity>) -> Vec<u8> {
        identity.unwrap().chain().next().unwrap().to_vec()
    }

    #[test]
    fn a_site_with_a_new_first_host_shows_the_certificate_of_another_one() {
        let folder = testkit::Folder::new();
        let stored = Stored::self_signed("a.example.org");
        auto(&folder, &stored);
        let hosts = ["b.example.org", "a.example.org"].map(str::to_owned);
        let folder = Folder::new(folder.join("state"));
        let auto = |folder: &Folder| Auto::new(&hosts, Some(folder.clone()), Say::new(|line| panic!("{}", line.text)));
        assert_eq!(leaf(auto(&folder).find(None)), leaf(stored.identity().ok()));
        // That of an earlier site is not shown while another host has a valid one.
        folder
            .put_certificate("b.example.org", &Stored::expired("b.example.org"))
            .unwrap();
        assert_eq!(leaf(auto(&folder).find(None)), leaf(stored.identity().ok()));
    }

    #[test]
    fn a_certificate_with_another_key_does_not_count_as_one() {
        let folder = testkit::Folder::new();
        let [mut stored, other] = [0, 1].map(|_| Stored::self_signed("a.example.org"));
        stored.key = other.key;
        let auto = auto(&folder, &stored);
        auto.replace(&stored).unwrap();
        assert!(auto.find(None).is_none() && auto.ends().is_none());
        assert!(auto.replace(&stored).is_err() && auto.ends().is_none());
    }

    #[test]
    fn a_certificate_that_found_no_room_is_shown_to_the_first_client() {
        let folder = testkit::Folder::new();
        let [stored, unstored] = [0, 1].map(|_| Stored::self_signed("a.example.org"));
        let auto = auto(&folder, &stored);
        auto.hold(&unstored).unwrap();
        assert_eq!(leaf(auto.find(None)), leaf(unstored.identity().ok()));
    }

    #[test]
    fn the_first_clients_of_a_worker_and_the_keeper_do_not_wait_for_each_other() {
        let (shown, second) = (0..20).find_map(|_| renewed_under_first_clients()).unwrap();
        assert_eq!(shown, [second.clone(), second]);
    }

    /// The certificates that two clients are shown whose file the keeper renews while they read it, and the new one.
    /// `None` if a client was through before.
    fn renewed_under_first_clients() -> Option<([Vec<u8>; 2], Vec<u8>)> {
        let folder = testkit::Folder::new();
        let [first, second] = [0, 1].map(|_| Stored::self_signed("a.example.org"));
        let auto = auto(&folder, &first);
        let (tell, told) = mpsc::channel();
        let renewed = second.clone();
        // Not joined: if they do wait for each other, the worker's thread never ends.
        thread::spawn(move || {
            let runtime = osier::Runtime::builder().workers(1).build().unwrap();
            runtime.run(|| {
                let clients = [0, 1].map(|_| {
                    let auto = Arc::clone(&auto);
                    osier::spawn_local(move || leaf(auto.find(None)))
                });
                // Both read now, and none goes on while the keeper renews what they read, because it does not suspend.
                // A client whose read ends before it looks does not suspend either.
                osier::yield_now();
                let are_reading = matches!(*locked(&auto.current), Current::Unread(0));
                thread::scope(|scope| {
                    let folder = auto.folder.as_ref().unwrap();
                    scope.spawn(|| folder.put_certificate("a.example.org", &renewed).unwrap());
                });
                auto.replace(&renewed).unwrap();
                let shown = clients.map(|client| client.join().unwrap());
                tell.send(are_reading.then_some(shown)).unwrap();
            });
        });
        let shown = told
            .recv_timeout(Duration::from_secs(60))
            .expect("nobody waits for ever")?;
        Some((shown, leaf(second.identity().ok())))
    }
}
