//! Shows proofs to issuers: a text on the plain listeners, a special certificate on the TLS listeners, or a DNS record
//! that a program sets.

use std::net::IpAddr;
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
    /// # Suspends
    /// While another order proves the name.
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
                self.board.give_certificate(&asked(challenge.name), &certificate, &key)
            }
            Kind::Dns01 => {
                let program = self.program.ok_or("no program is set that can set DNS records")?;
                let record = Record {
                    program: Arc::new(program.to_owned()),
                    name: format!("_acme-challenge.{}", challenge.name),
                    value: challenge.record(),
                };
                // A program that fails, or takes too long, may have set the record.
                let shown = Shown(record);
                shown.0.run("add")?;
                Ok(Box::new(shown))
            }
        }
    }
}

/// The name that an issuer asks for in the handshake of a proof. That of an address is its name in the reverse zone of the
/// domain name system, because a handshake can name no address (RFC 8738 section 6).
fn asked(name: &str) -> String {
    match name.parse::<IpAddr>() {
        Err(_) => name.to_owned(),
        Ok(IpAddr::V4(ip)) => {
            let [a, b, c, d] = ip.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        Ok(IpAddr::V6(ip)) => {
            let digits = ip.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            let digits: String = digits.map(|digit| format!("{digit:x}.")).collect();
            digits + "ip6.arpa"
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
                .kill_on_drop(true)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_asked_for_by_their_names_in_the_reverse_zones() {
        assert_eq!(asked("a.example"), "a.example");
        assert_eq!(asked("192.0.2.7"), "7.2.0.192.in-addr.arpa");
        // The example of RFC 8738 section 6 and of RFC 3596 section 2.5.
        let expected = "b.a.9.8.7.6.5.0.4.0.0.0.3.0.0.0.2.0.0.0.1.0.0.0.0.0.0.0.1.2.3.4.ip6.arpa";
        assert_eq!(asked("4321:0:1:2:3:4:567:89ab"), expected);
    }

    struct Nowhere;

    impl Board for Nowhere {
        fn give_text(&self, _: &str, _: &str) -> Box<dyn Presented> {
            unreachable!()
        }

        fn give_certificate(&self, _: &str, _: &[u8], _: &[u8]) -> Result<Box<dyn Presented>, String> {
            unreachable!()
        }
    }

    #[test]
    fn a_program_for_dns_that_takes_too_long_is_ended_and_its_record_removed() {
        let folder = testkit::Folder::new();
        let script = "#!/bin/sh\necho $1 $$ >> $0.log\n[ $1 = remove ] || exec sleep 600\n";
        let program = folder.write("dns", script);
        let mut mode = program.metadata().unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let log = folder.join("dns.log");
        let until = |is_done: &dyn Fn(&str) -> bool| {
            let look = || {
                while !is_done(&std::fs::read_to_string(&log).unwrap_or_default()) {
                    osier::sleep(Duration::from_millis(5));
                }
            };
            osier::timeout(testkit::DEADLINE, look).expect("the program does what it should");
        };
        osier::run(|| {
            let of_order = program.clone();
            let adding = osier::spawn(move || {
                let proofs = Proofs::new(&Nowhere, Some(&of_order));
                let challenge = Challenge {
                    kind: Kind::Dns01,
                    name: "a.example",
                    token: "t",
                    authorization: "t.thumbprint",
                };
                proofs.present(&challenge).map(drop)
            });
            until(&|log| log.ends_with('\n'));
            // As the end of the time for it does.
            adding.cancel();
            let _ = adding.join();
            until(&|log| log.contains("remove"));
            let text = std::fs::read_to_string(&log).unwrap();
            let id = text.split_whitespace().nth(1).unwrap();
            let process = format!("/proc/{id}/comm");
            until(&|_| {
                std::fs::read_to_string(&process)
                    .is_ok_and(|name| name.trim() == "sleep")
                    .eq(&false)
            });
        });
    }
}
