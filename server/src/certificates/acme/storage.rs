//! Accounts and certificates in the state folder, which several processes may share.
//!
//! ```text
//!   accounts/ISSUER.json         the account's key
//!   certificates/NAME.pem        private key and chain in one file, so that they always belong together
//!   certificates/NAME.order      an order on its way: its URL, its issuer and the private key
//!   locks/NAME                   locked by the process that orders the certificate of NAME
//! ```
//!
//! `state.rs` writes the files, so a reader sees the old one or the new one, and nobody else reads them. `NAME` is the first name of a certificate; `_` stands for the `*` of a wildcard.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::jose::AccountKey;
use crate::certificates::state;

/// The state folder.
#[derive(Debug, Clone)]
pub struct Storage {
    folder: PathBuf,
}

/// A certificate with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Stored {
    /// The private key, in PEM.
    pub key: String,
    /// The chain, in PEM.
    pub chain: String,
}

/// An order on its way.
#[derive(Clone, PartialEq, Eq)]
pub struct Pending {
    pub issuer: String,
    pub url: String,
    /// The names, in the order of the request.
    pub names: Vec<String>,
    /// The private key of the certificate, in PEM.
    pub key: String,
}

/// The right to order the certificate of a name. It ends with the value, or with the process.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// The largest file that is read.
const FILE_MAX: u64 = 1 << 20;

impl Storage {
    /// Uses the folder, which is made at the first write.
    pub fn new(folder: PathBuf) -> Storage {
        Storage { folder }
    }

    /// Whether there is a certificate of a name.
    ///
    /// # Blocks the thread
    /// While the folder is looked at.
    pub fn has_certificate(&self, name: &str) -> bool {
        self.path("certificates", name, "pem").exists()
    }

    /// Takes the lock of a name. `None` if another process has it.
    ///
    /// # Blocks the thread
    /// While the file is opened.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn lock(&self, name: &str) -> io::Result<Option<Lock>> {
        let file = self.lock_file(name)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The certificate of a name. `None` if there is none.
    ///
    /// # Blocks the thread
    /// While the file is read.
    ///
    /// # Errors
    /// When the file cannot be read, or holds something else.
    pub fn certificate(&self, name: &str) -> io::Result<Option<Stored>> {
        let Some(text) = read(&self.path("certificates", name, "pem"))? else {
            return Ok(None);
        };
        let split = text.find("-----BEGIN CERTIFICATE-----").filter(|&at| at > 0);
        let split = split.ok_or_else(|| malformed("it has no key before its certificates"))?;
        let (key, chain) = text.split_at(split);
        Ok(Some(Stored {
            key: key.to_owned(),
            chain: chain.to_owned(),
        }))
    }

    /// Stores the certificate of a name, and forgets the order.
    ///
    /// # Blocks the thread
    /// Until the bytes are on the disk.
    ///
    /// # Errors
    /// When the file cannot be written. The old one is there then.
    pub fn put_certificate(&self, name: &str, stored: &Stored) -> io::Result<()> {
        let text = format!("{}\n{}", stored.key.trim_end(), stored.chain);
        self.write("certificates", name, "pem", text.as_bytes())?;
        match fs::remove_file(self.path("certificates", name, "order")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The order of a name that was on its way when it was last stored.
    ///
    /// # Blocks the thread
    /// While the file is read.
    ///
    /// # Errors
    /// When the file cannot be read, or holds something else.
    pub fn pending(&self, name: &str) -> io::Result<Option<Pending>> {
        let Some(value) = self.json("certificates", name, "order")? else {
            return Ok(None);
        };
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let names = value["names"].as_array().into_iter().flatten();
        let names = names.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        let read = (text("issuer"), text("url"), text("key"));
        let (Some(issuer), Some(url), Some(key)) = read else {
            return Err(malformed("it is no order"));
        };
        Ok(Some(Pending {
            issuer,
            url,
            names,
            key,
        }))
    }

    /// Stores an order before it is finalized. [`put_certificate`](Storage::put_certificate) forgets it.
    ///
    /// # Blocks the thread
    /// Until the bytes are on the disk.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put_pending(&self, name: &str, pending: &Pending) -> io::Result<()> {
        let Pending {
            issuer,
            url,
            names,
            key,
        } = pending;
        let value = json!({ "issuer": issuer, "url": url, "names": names, "key": key });
        self.write("certificates", name, "order", value.to_string().as_bytes())
    }

    /// The key of the account at an issuer, which is made at the first use.
    ///
    /// # Blocks the thread
    /// While the file is read or written.
    ///
    /// # Errors
    /// When the file cannot be read or written, or holds something else. A key that is damaged is not replaced in silence: the
    /// account's rights would be lost.
    pub fn account(&self, issuer: &str) -> io::Result<AccountKey> {
        let _lock = self.wait_for("accounts")?;
        if let Some(value) = self.json("accounts", issuer, "json")? {
            let bytes = value["key"]
                .as_str()
                .and_then(|key| data_encoding::BASE64.decode(key.as_bytes()).ok());
            let key = bytes.and_then(|bytes| AccountKey::from_pkcs8(&bytes).ok());
            return key.ok_or_else(|| malformed("it is no account key; remove it to open another account"));
        }
        let key = AccountKey::generate();
        let value = json!({ "issuer": issuer, "key": data_encoding::BASE64.encode(key.pkcs8()) });
        self.write("accounts", issuer, "json", value.to_string().as_bytes())?;
        Ok(key)
    }

    /// Waits for a lock that is held for moments only.
    fn wait_for(&self, name: &str) -> io::Result<Lock> {
        let file = self.lock_file(name)?;
        file.lock()?;
        Ok(Lock { _file: file })
    }

    fn lock_file(&self, name: &str) -> io::Result<File> {
        let path = self.folder("locks")?.join(file_name(name));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(path)
    }

    fn json(&self, folder: &str, name: &str, extension: &str) -> io::Result<Option<Value>> {
        let path = self.path(folder, name, extension);
        let Some(text) = read(&path)? else {
            return Ok(None);
        };
        let value = serde_json::from_str(&text);
        value
            .map(Some)
            .map_err(|_| malformed(&format!("'{}' is not JSON", path.display())))
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

    fn write(&self, folder: &str, name: &str, extension: &str, bytes: &[u8]) -> io::Result<()> {
        self.folder(folder)?;
        state::write(&self.path(folder, name, extension), bytes)
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

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use testkit::Folder;

    fn storage(folder: &Folder) -> Storage {
        Storage::new(folder.join("state"))
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_stored_is_private_and_read_again() {
        let folder = Folder::new();
        let storage = storage(&folder);
        assert!(storage.certificate("*.example.org").unwrap().is_none());
        let stored = Stored {
            key: "-----BEGIN PRIVATE KEY-----\nk\n-----END PRIVATE KEY-----\n".into(),
            chain: "-----BEGIN CERTIFICATE-----\na\n-----END CERTIFICATE-----\n".into(),
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
    fn an_order_is_kept_until_its_certificate_is_there() {
        let folder = Folder::new();
        let storage = storage(&folder);
        assert!(storage.pending("a.example").unwrap().is_none());
        let pending = Pending {
            issuer: "https://issuer/dir".into(),
            url: "https://issuer/order/1".into(),
            names: vec!["a.example".into(), "b.example".into()],
            key: "key".into(),
        };
        storage.put_pending("a.example", &pending).unwrap();
        assert!(storage.pending("a.example").unwrap() == Some(pending));
        let stored = Stored {
            key: "k\n".into(),
            chain: "-----BEGIN CERTIFICATE-----\n".into(),
        };
        storage.put_certificate("a.example", &stored).unwrap();
        assert!(storage.pending("a.example").unwrap().is_none());
    }

    #[test]
    fn an_account_is_made_once_and_a_damaged_one_is_not_replaced() {
        let folder = Folder::new();
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
        let folder = Folder::new();
        let storage = storage(&folder);
        let first = storage.lock("a.example").unwrap();
        assert!(first.is_some());
        // A lock belongs to the open file, so a second opening in this process stands for another process.
        assert!(storage.lock("a.example").unwrap().is_none());
        assert!(storage.lock("b.example").unwrap().is_some());
        drop(first);
        assert!(storage.lock("a.example").unwrap().is_some());
    }
}
