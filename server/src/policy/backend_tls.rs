//! TLS to backends, to authentication servers and to Redis: the keys beside an address with a scheme for TLS.
//!
//! The files are read with the configuration, and their content is a part of the settings. So a reload finds a changed
//! file, and opens the handler again.

use std::fmt;
use std::io;

use osier_web::tls::{Connector, Error, Identity};
use osier_web::upstream::Builder;

use crate::reader::Section;

/// The settings of TLS with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendTls {
    /// The authorities, in PEM form, that sign the backends' certificates. None for those that the system trusts.
    ca: Option<Vec<u8>>,
    verify: bool,
    /// The server name that is sent to the backends, and that their certificates must have. None for the host of each
    /// address.
    sni: Option<String>,
    identity: Option<Pem>,
}

/// A certificate and its key in PEM form.
#[derive(Clone, PartialEq, Eq)]
struct Pem {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem").finish_non_exhaustive()
    }
}

impl Default for BackendTls {
    fn default() -> BackendTls {
        BackendTls {
            ca: None,
            verify: true,
            sni: None,
            identity: None,
        }
    }
}

impl BackendTls {
    /// TLS with a server whose certificate an authority in `ca` has signed. None for the authorities that the system
    /// trusts.
    pub fn of_ca(ca: Option<Vec<u8>>) -> BackendTls {
        BackendTls {
            ca,
            ..BackendTls::default()
        }
    }

    /// Reads the keys. `is_used`: the addresses begin with `https://`. Otherwise each key is a mistake.
    pub fn read(table: &Section<'_>, is_used: bool) -> Option<BackendTls> {
        let keys = ["ca", "verify", "sni", "cert", "key"];
        if !is_used {
            for at in keys.iter().filter_map(|key| table.key(key)) {
                let text = "this key is for TLS: write the address in 'to' with https://, or remove the key";
                table.source().problem(&at, text);
            }
            for key in keys {
                let _ = table.any(key);
            }
            return None;
        }
        let default = BackendTls::default();
        let ca_at = table.key("ca");
        let verify = table.boolean("verify").unwrap_or(default.verify);
        if let (false, Some(at)) = (verify, &ca_at) {
            let text = "'ca' has no effect with 'verify = false', which trusts every certificate";
            table.source().problem(at, text);
        }
        let tls = BackendTls {
            ca: table.content("ca").map(|(_, pem)| pem),
            verify,
            sni: table.parsed("sni", name).map(|name| name.value),
            identity: identity(table),
        };
        if let (Some(at), Err(error)) = (ca_at, tls.connector(None)) {
            table.source().problem(&at, format!("'ca' cannot be used: {error}"));
        }
        Some(tls)
    }

    /// Makes the backends of `builder` speak TLS.
    pub fn apply(&self, builder: Builder) -> io::Result<Builder> {
        let builder = builder.tls(self.connector(Some("http/1.1"))?);
        Ok(match &self.sni {
            Some(name) => builder.tls_name(name.as_str()),
            None => builder,
        })
    }

    /// Makes the client's end of TLS. `protocol` is the one that it offers to the server, if any.
    pub fn connector(&self, protocol: Option<&str>) -> Result<Connector, Error> {
        let mut builder = Connector::builder().alpn(protocol);
        if let Some(pem) = &self.ca {
            builder = builder.ca_pem(pem);
        }
        if !self.verify {
            builder = builder.dangerous_without_verification();
        }
        if let Some(Pem { cert, key }) = &self.identity {
            builder = builder.identity(Identity::from_pem(cert, key)?);
        }
        builder.build()
    }
}

/// Reads `cert` and `key`, which belong together.
fn identity(table: &Section<'_>) -> Option<Pem> {
    let (cert_at, key_at) = (table.key("cert"), table.key("key"));
    let (cert, key) = (table.content("cert"), table.content("key"));
    if let (Some(at), None) | (None, Some(at)) = (&cert_at, &key_at) {
        let text = "'cert' and 'key' belong together: the certificate that backends ask for, and its private key";
        table.source().problem(at, text);
    }
    let ((cert_path, cert), (_, key)) = cert.zip(key)?;
    if let Err(error) = Identity::from_pem(&cert, &key) {
        table
            .source()
            .problem(&cert_path.span, format!("'cert' and 'key' cannot be used: {error}"));
        return None;
    }
    Some(Pem { cert, key })
}

/// Checks a server name.
fn name(text: &str) -> Result<String, &'static str> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    match !text.is_empty() && text.bytes().all(fine) {
        true => Ok(text.to_owned()),
        false => Err("write the name that the backend's certificate has, \"app.internal\" for example"),
    }
}
