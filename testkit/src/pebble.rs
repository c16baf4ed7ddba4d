//! Pebble, the test server of the ACME protocol, with a DNS server that answers every name with 127.0.0.1.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::program::find;
use crate::{Program, free_port, skip};

/// A running Pebble. Dropping it ends it.
#[derive(Debug)]
pub struct Pebble {
    _issuer: Program,
    _dns: Program,
    port: u16,
    management: u16,
    /// Port of the DNS server's own management.
    records: u16,
}

/// How Pebble behaves.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// Ports where it looks at the proofs of names.
    pub http_port: u16,
    /// The same for TLS-ALPN-01.
    pub tls_port: u16,
    /// Percentage of nonces that it refuses.
    pub refused_nonces: u8,
    /// Whether accounts must be bound to the customer "customer", whose secret is 32 times the byte 7.
    pub wants_binding: bool,
}

impl Pebble {
    /// Starts it in `folder` with a certificate and its key, in PEM files, for its own HTTPS port. Prints "skipped" and returns
    /// `None` if it is not installed.
    ///
    /// # Panics
    /// Panics if it is there and does not listen.
    pub fn start(folder: &Path, certificate: &Path, key: &Path, manners: Manners) -> Option<Pebble> {
        if find("pebble").is_none() || find("pebble-challtestsrv").is_none() {
            skip("pebble is not installed (package pebble)");
            return None;
        }
        let [port, management, dns, records] = [(); 4].map(|()| free_port());
        let config = folder.join("pebble.json");
        let secret = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc";
        let text = format!(
            "{{\"pebble\": {{\"listenAddress\": \"127.0.0.1:{port}\", \"managementListenAddress\": \"127.0.0.1:{management}\", \
             \"certificate\": \"{}\", \"privateKey\": \"{}\", \"httpPort\": {}, \"tlsPort\": {}, \"ocspResponderURL\": \"\", \
             \"externalAccountBindingRequired\": {}, \"externalAccountMACKeys\": {{\"customer\": \"{secret}\"}}}}}}",
            certificate.display(),
            key.display(),
            manners.http_port,
            manners.tls_port,
            manners.wants_binding,
        );
        std::fs::write(&config, text).expect("a file in the folder of the test");
        let mut resolver = Command::new("pebble-challtestsrv");
        resolver.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""]);
        resolver.args([
            "-dns01",
            &format!("127.0.0.1:{dns}"),
            "-management",
            &format!("127.0.0.1:{records}"),
        ]);
        let mut issuer = Command::new("pebble");
        issuer
            .arg("-config")
            .arg(&config)
            .args(["-dnsserver", &format!("127.0.0.1:{dns}")]);
        issuer.env("PEBBLE_VA_NOSLEEP", "1");
        issuer.env("PEBBLE_WFE_NONCEREJECT", manners.refused_nonces.to_string());
        let quiet = |command: &mut Command, name: &str| {
            let log = std::fs::File::create(folder.join(name)).expect("a file in the folder of the test");
            command
                .stdout(log.try_clone().expect("a descriptor"))
                .stderr(Stdio::from(log));
        };
        quiet(&mut resolver, "dns.log");
        quiet(&mut issuer, "pebble.log");
        let listens = |port: u16| TcpStream::connect(("127.0.0.1", port)).is_ok();
        let log = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let mut resolver = Program::start(&mut resolver)?;
        resolver.wait_until(|| listens(records), || log("dns.log"));
        let mut issuer = Program::start(&mut issuer)?;
        issuer.wait_until(|| listens(port) && listens(management), || log("pebble.log"));
        Some(Pebble {
            _issuer: issuer,
            _dns: resolver,
            port,
            management,
            records,
        })
    }

    /// The URL of its directory.
    pub fn directory(&self) -> String {
        format!("https://127.0.0.1:{}/dir", self.port)
    }

    /// The port of its management interface, which has the root of its certificates at `/roots/0`.
    pub fn management(&self) -> u16 {
        self.management
    }

    /// A program for DNS-01, which sets records of the DNS server. It needs curl. It notes what it is asked to add and to remove, a line
    /// each, in `dns-program.log`, and removes nothing: that server only clears all values of a name, also those of another order.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn dns_program(&self, folder: &Path) -> PathBuf {
        let path = folder.join("dns-program");
        let text = format!(
            "#!/bin/sh\necho \"$@\" >> '{}'\n[ $1 = add ] || exit 0\n\
             exec curl -s -f -d \"{{\\\"host\\\": \\\"$2.\\\", \\\"value\\\": \\\"$3\\\"}}\" http://127.0.0.1:{}/set-txt\n",
            folder.join("dns-program.log").display(),
            self.records
        );
        std::fs::write(&path, text).expect("a file in the folder of the test");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).expect("the test's own file");
        path
    }
}
