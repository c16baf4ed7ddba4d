//! Accounts and certificates in the state folder, which several processes of one machine may share.
//!
//! ```text
//!   accounts/ISSUER.json         the account's key
//!   certificates/NAME.pem        private key and chain in one file, so that they always belong together
//!   certificates/NAME.order      an order on its way: its URL, its issuer and the private key
//!   certificates/NAME.advice     the issuer's answer about the renewal
//!   locks/NAME                   locked by the process that orders the certificate of NAME
//!   locks/+accounts              locked by the process that makes an account's key
//! ```
//!
//! `certificates/state.rs` writes the files, so a reader sees the old one or the new one, and only the server's user can read them.
//! `NAME` is the first name of a certificate; `_` stands for the `*` of a wildcard.
//!
//! A call of [`Folder`] suspends a fiber, except that taking a lock blocks its thread, and blocks any other thread.
//! [`Pooled`] makes the same calls on the blocking pool.

use std::fs::TryLockError;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use osier::fs::{self, File, OpenOptions};

use super::{Advice, Held, Locking, Pending, Storage, Stored, account_from_text, account_to_text, malformed};
use crate::certificates::acme::jose::AccountKey;
use crate::certificates::state;

/// The pause before another look at a lock that another process has.
const BUSY: Duration = Duration::from_secs(30);

/// The state folder.
#[derive(Debug, Clone)]
pub struct Folder {
    folder: PathBuf,
}

/// The state folder, used on threads of the blocking pool.
pub struct Pooled(pub Folder);

/// An open file with a lock, which the kernel releases at the latest when the process has ended.
#[derive(Debug)]
struct Locked {
    file: std::fs::File,
}

impl Held for Locked {}

impl Drop for Locked {
    /// Releases the lock. A program that this process starts has a copy of the descriptor for a moment, and the lock with it.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// The file name of the lock of all accounts. No name of a host gives it.
const ACCOUNTS: &str = "+accounts";

/// The largest file that is read.
const FILE_MAX: u64 = 1 << 20;

impl Folder {
    /// Uses the folder, which is made at the first write.
    pub fn new(folder: PathBuf) -> Folder {
        Folder { folder }
    }

    /// Removes the temporary files that killed processes have left.
    ///
    /// # Suspends
    /// While the disk is busy.
    pub fn remove_abandoned(&self) {
        state::remove_abandoned(&self.folder.join("accounts"), &["json"]);
        state::remove_abandoned(&self.folder.join("certificates"), &["pem", "order", "advice"]);
    }

    /// Whether there is a certificate of a name.
    ///
    /// # Suspends
    /// While the folder is looked at.
    pub fn has_certificate(&self, name: &str) -> bool {
        fs::exists(self.path("certificates", name, "pem")).unwrap_or(false)
    }

    /// Takes the lock of a name, unless another process has it.
    ///
    /// # Blocks the thread
    /// While the file is opened.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn lock(&self, name: &str) -> io::Result<Locking> {
        let file = self.lock_file(&file_name(name))?;
        match file.try_lock() {
            Ok(()) => Ok(Locking::Taken(Box::new(Locked { file }))),
            Err(TryLockError::WouldBlock) => Ok(Locking::Busy(BUSY)),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The certificate of a name. `None` if there is none.
    ///
    /// # Suspends
    /// While the file is read.
    ///
    /// # Errors
    /// When the file cannot be read, or holds something else.
    pub fn certificate(&self, name: &str) -> io::Result<Option<Stored>> {
        let text = read(&self.path("certificates", name, "pem"))?;
        text.map(|text| Stored::from_text(&text)).transpose()
    }

    /// Stores the certificate of a name, and forgets the order.
    ///
    /// # Suspends
    /// Until the bytes are on the disk.
    ///
    /// # Errors
    /// When the file cannot be written. The old one is there then.
    pub fn put_certificate(&self, name: &str, stored: &Stored) -> io::Result<()> {
        self.write("certificates", name, "pem", &stored.to_text())?;
        match fs::remove_file(self.path("certificates", name, "order")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The order of a name that was on its way when it was last stored.
    ///
    /// # Suspends
    /// While the file is read.
    ///
    /// # Errors
    /// When the file cannot be read, or holds something else.
    pub fn pending(&self, name: &str) -> io::Result<Option<Pending>> {
        let text = read(&self.path("certificates", name, "order"))?;
        text.map(|text| Pending::from_text(&text)).transpose()
    }

    /// Stores an order before it is finalized. [`put_certificate`](Storage::put_certificate) forgets it.
    ///
    /// # Suspends
    /// Until the bytes are on the disk.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put_pending(&self, name: &str, pending: &Pending) -> io::Result<()> {
        self.write("certificates", name, "order", &pending.to_text())
    }

    /// The key of the account at an issuer, which is made at the first use.
    ///
    /// # Suspends
    /// While the file is read or written.
    ///
    /// # Blocks the thread
    /// While another process makes the key.
    ///
    /// # Errors
    /// When the file cannot be read or written, or holds something else. A key that is damaged is not replaced in
    /// silence: the account's rights would be lost.
    pub fn account(&self, issuer: &str) -> io::Result<AccountKey> {
        let _lock = self.wait_for(ACCOUNTS)?;
        let path = self.path("accounts", issuer, "json");
        if let Some(text) = read(&path)? {
            let key = account_from_text(&text);
            return key.map_err(|error| malformed(&format!("'{}': {error}", path.display())));
        }
        let key = AccountKey::generate();
        self.write("accounts", issuer, "json", &account_to_text(issuer, &key))?;
        Ok(key)
    }

    /// Waits for a lock that other processes hold only for moments.
    fn wait_for(&self, file_name: &str) -> io::Result<Locked> {
        let file = self.lock_file(file_name)?;
        file.lock()?;
        Ok(Locked { file })
    }

    /// Opens the file of a lock.
    fn lock_file(&self, file_name: &str) -> io::Result<std::fs::File> {
        let path = self.folder("locks")?.join(file_name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(path)?.into_std()
    }

    fn path(&self, folder: &str, name: &str, extension: &str) -> PathBuf {
        self.folder
            .join(folder)
            .join(format!("{}.{extension}", file_name(name)))
    }

    fn folder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.folder.join(name);
        state::make_folder(&path)?;
        Ok(path)
    }

    fn write(&self, folder: &str, name: &str, extension: &str, text: &str) -> io::Result<()> {
        self.folder(folder)?;
        state::write(&self.path(folder, name, extension), text.as_bytes())
    }
}

impl Pooled {
    /// Runs `work` on the blocking pool. A cancellation of the caller does not stop `work`.
    fn with<T: Send + 'static>(&self, work: impl FnOnce(&Folder) -> io::Result<T> + Send + 'static) -> io::Result<T> {
        let folder = self.0.clone();
        osier::shield(|| osier::unblock(move || work(&folder)))
    }
}

impl Storage for Pooled {
    fn description(&self) -> &'static str {
        "the state folder"
    }

    fn lock(&self, name: &str) -> io::Result<Locking> {
        let name = name.to_owned();
        self.with(move |folder| folder.lock(&name))
    }

    fn certificate(&self, name: &str) -> io::Result<Option<Stored>> {
        let name = name.to_owned();
        self.with(move |folder| folder.certificate(&name))
    }

    fn put_certificate(&self, name: &str, stored: &Stored) -> io::Result<()> {
        let (name, stored) = (name.to_owned(), stored.clone());
        self.with(move |folder| folder.put_certificate(&name, &stored))
    }

    fn pending(&self, name: &str) -> io::Result<Option<Pending>> {
        let name = name.to_owned();
        self.with(move |folder| folder.pending(&name))
    }

    fn put_pending(&self, name: &str, pending: &Pending) -> io::Result<()> {
        let (name, pending) = (name.to_owned(), pending.clone());
        self.with(move |folder| folder.put_pending(&name, &pending))
    }

    fn advice(&self, name: &str) -> io::Result<Option<Advice>> {
        let name = name.to_owned();
        self.with(move |folder| {
            let text = read(&folder.path("certificates", &name, "advice"))?;
            text.map(|text| Advice::from_text(&text)).transpose()
        })
    }

    fn put_advice(&self, name: &str, advice: &Advice) -> io::Result<()> {
        let (name, text) = (name.to_owned(), advice.to_text());
        self.with(move |folder| folder.write("certificates", &name, "advice", &text))
    }

    fn account(&self, issuer: &str) -> io::Result<AccountKey> {
        let issuer = issuer.to_owned();
        self.with(move |folder| folder.account(&issuer))
    }
}

/// The name as a file name. Names of hosts have no slash; the URLs of issuers do.
fn file_name(name: &str) -> String {
    let name = name.strip_prefix("https://").unwrap_or(name);
    name.chars()
        .map(|char| match char {
            '*' => '_',
            char if char.is_ascii_alphanumeric() || "-._".contains(char) => char,
            ':' => '+',
            _ => '-',
        })
        .collect()
}

/// The text of a file. `None` if there is no such file.
fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(FILE_MAX).read_to_string(&mut text)?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::acme::storage::Origin;
    use std::os::unix::fs::PermissionsExt;
    use testkit::Folder as Temporary;

    fn storage(folder: &Temporary) -> Folder {
        Folder::new(folder.join("state"))
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_stored_is_private_and_read_again() {
        let folder = Temporary::new();
        let storage = storage(&folder);
        assert!(storage.certificate("*.example.org").unwrap().is_none());
        let stored = Stored {
            key: "-----BEGIN PRIVATE KEY-----\nk\n-----END PRIVATE KEY-----\n".into(),
            chain: "-----BEGIN CERTIFICATE-----\na\n-----END CERTIFICATE-----\n".into(),
            origin: Some(Origin {
                issuer: "https://issuer/dir".into(),
                profile: Some("shortlived".into()),
            }),
        };
        storage.put_certificate("*.example.org", &stored).unwrap();
        assert!(storage.certificate("*.example.org").unwrap() == Some(stored));
        let file = folder.join("state/certificates/_.example.org.pem");
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        std::fs::write(&file, "nothing").unwrap();
        assert_eq!(
            storage.certificate("*.example.org").err().unwrap().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    fn a_full_disk_leaves_the_old_certificate_and_nothing_beside_it() {
        let folder = Temporary::new();
        let storage = storage(&folder);
        std::fs::create_dir(folder.join("state")).unwrap();
        let Some(_disk) = testkit::SmallDisk::mount(&folder.join("state")) else {
            return;
        };
        let stored = |text: &str| Stored {
            key: "-----BEGIN PRIVATE KEY-----\nk\n-----END PRIVATE KEY-----\n".into(),
            chain: format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"),
            origin: None,
        };
        let old = stored("old");
        storage.put_certificate("a.example", &old).unwrap();
        let filler = folder.join("state/filler");
        let mut file = File::create(&filler).unwrap();
        while io::Write::write(&mut file, &[7; 4096]).is_ok() {}
        let new = stored(&"new".repeat(3000));
        let refused = storage.put_certificate("a.example", &new).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert!(storage.certificate("a.example").unwrap() == Some(old));
        let names = std::fs::read_dir(folder.join("state/certificates")).unwrap();
        assert_eq!(names.count(), 1);
        drop(file);
        std::fs::remove_file(filler).unwrap();
        storage.put_certificate("a.example", &new).unwrap();
        assert!(storage.certificate("a.example").unwrap() == Some(new));
    }

    #[test]
    fn an_order_is_kept_until_its_certificate_is_there() {
        let folder = Temporary::new();
        let storage = storage(&folder);
        assert!(storage.pending("a.example").unwrap().is_none());
        let pending = Pending {
            issuer: "https://issuer/dir".into(),
            url: "https://issuer/order/1".into(),
            profile: None,
            names: vec!["a.example".into(), "b.example".into()],
            key: "key".into(),
        };
        storage.put_pending("a.example", &pending).unwrap();
        assert!(storage.pending("a.example").unwrap() == Some(pending));
        let stored = Stored {
            key: "k\n".into(),
            chain: "-----BEGIN CERTIFICATE-----\n".into(),
            origin: None,
        };
        storage.put_certificate("a.example", &stored).unwrap();
        assert!(storage.pending("a.example").unwrap().is_none());
    }

    #[test]
    fn an_account_is_made_once_and_a_damaged_one_is_not_replaced() {
        let folder = Temporary::new();
        let storage = storage(&folder);
        let made = storage.account("https://issuer.example:14000/dir").unwrap();
        let again = storage.account("https://issuer.example:14000/dir").unwrap();
        assert_eq!(made.pkcs8(), again.pkcs8());
        let file = folder.join("state/accounts/issuer.example+14000-dir.json");
        assert_eq!(mode(&file), 0o600);
        std::fs::write(&file, "{}").unwrap();
        let error = storage.account("https://issuer.example:14000/dir").unwrap_err();
        assert!(error.to_string().contains("remove it"), "{error}");
    }

    #[test]
    fn one_process_orders_a_name_at_a_time() {
        let folder = Temporary::new();
        let storage = storage(&folder);
        let take = |name: &str| match storage.lock(name).unwrap() {
            Locking::Taken(lock) => Some(lock),
            Locking::Busy(_) => None,
        };
        let first = take("a.example");
        assert!(first.is_some());
        // A lock belongs to the open file, so a second opening in this process stands for another process.
        assert!(take("a.example").is_none());
        assert!(take("b.example").is_some());
        drop(first);
        assert!(take("a.example").is_some());
    }

    /// The order of a host called `accounts` waited for itself, and all other orders for it.
    #[test]
    fn no_host_has_the_lock_of_the_accounts() {
        for host in ["accounts", "+accounts", "*accounts", ":accounts."] {
            let folder = Temporary::new();
            let storage = storage(&folder);
            let _lock = storage.lock(host).unwrap();
            let (tell, told) = std::sync::mpsc::channel();
            // Not joined: if it waits, it does for ever.
            std::thread::spawn(move || tell.send(storage.account("https://issuer.example/dir").is_ok()));
            let done = told.recv_timeout(Duration::from_secs(30));
            assert_eq!(done, Ok(true), "{host}");
        }
    }

    #[test]
    fn a_lock_is_released_although_a_program_has_a_copy() {
        let folder = Temporary::new();
        let storage = storage(&folder);
        let lock = storage.wait_for("a.example").unwrap();
        let _copy = lock.file.try_clone().unwrap();
        drop(lock);
        assert!(matches!(storage.lock("a.example").unwrap(), Locking::Taken(_)));
    }
}
