//! Shows proofs to issuers: a text on the plain listeners, a special certificate on the TLS listeners, or a DNS record
//! that a program sets.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use osier::process::Command;
use rcgen::{CertificateParams, CustomExtension, KeyPair};

use super::order::{Challenge, Kind, Presented, Solver};
use super::protocol::one_line;

/// Longest time for a program that sets a DNS record. Records take minutes to spread.
const PROGRAM_TIME: Duration = Duration::from_secs(600);

/// The listeners, which show proofs to issuers until the result is dropped.
pub trait Board: Send + Sync {
    /// Shows a text at `/.well-known/acme-challenge/TOKEN`.
    fn give_text(&self, token: &str, text: &str) -> Box<dyn Presented>;

    /// Shows a certificate in handshakes with the protocol `acme-tls/1` and this name: the certificate and its key, in
    /// DER.
    ///
    /// # Errors
    /// One line: the certificate cannot be used.
    fn give_certificate(&self, name: &str, certificate: &[u8], key: &[u8]) -> Result<Box<dyn Presented>, String>;
}

/// Shows the proofs of a site's names.
pub struct Proofs<'p> {
    board: &'p dyn Board,
    /// The program that sets and removes DNS records.
    program: Option<&'p Path>,
}

impl<'p> Proofs<'p> {
    pub fn new(board: &'p dyn Board, program: Option<&'p Path>) -> Proofs<'p> {
        Proofs { board, program }
    }
}

impl Solver for Proofs<'_> {
    fn present(&self, challenge: &Challenge<'_>) -> Result<Box<dyn Presented>, String> {
        match challenge.kind {
            Kind::Http01 => Ok(self.board.give_text(challenge.token, challenge.authorization)),
            Kind::TlsAlpn01 => {
                let (certificate, key) = special(challenge).map_err(|error| error.to_string())?;
                self.board.give_certificate(challenge.name, &certificate, &key)
            }
            Kind::Dns01 => {
                let program = self.program.ok_or("no program is set that can set DNS records")?;
                let record = Record {
                    program: Arc::new(program.to_owned()),
                    name: format!("_acme-challenge.{}", challenge.name),
                    value: challenge.record(),
                };
                record.run("add")?;
                Ok(Box::new(Shown(record)))
            }
        }
    }
}

/// The certificate of RFC 8737 section 3, and its key.
fn special(challenge: &Challenge<'_>) -> Result<(Vec<u8>, Vec<u8>), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([challenge.name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(&challenge.digest())];
    Ok((params.self_signed(&key)?.der().to_vec(), key.serialize_der()))
}

/// A DNS record that a program has set.
#[derive(Clone)]
struct Record {
    program: Arc<PathBuf>,
    name: String,
    value: String,
}

impl Record {
    /// Runs `PROGRAM add|remove NAME VALUE`. The record can be seen when the program has ended.
    ///
    /// # Suspends
    /// Until the program has ended, for [`PROGRAM_TIME`] at most.
    fn run(&self, what: &str) -> Result<(), String> {
        let shown = self.program.display();
        let run = || {
            Command::new(self.program.as_path())
                .args([what, &self.name, &self.value])
                .output()
        };
        let output = osier::timeout(PROGRAM_TIME, run);
        let output = output.map_err(|_| format!("'{shown} {what}' has not ended within {PROGRAM_TIME:?}"))?;
        let output = output.map_err(|error| format!("'{shown}' cannot be run: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = one_line(String::from_utf8_lossy(&output.stderr).trim());
        Err(format!(
            "'{shown} {what} {}' has failed ({}): {said}",
            self.name, output.status
        ))
    }
}

/// A DNS record that is removed when this is dropped.
struct Shown(Record);

impl Presented for Shown {}

impl Drop for Shown {
    fn drop(&mut self) {
        // The order must not wait for the removal, and a record that stays does no harm.
        let record = self.0.clone();
        drop(osier::spawn(move || record.run("remove")));
    }
}
