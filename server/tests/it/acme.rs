//! Certificates from an authority that speaks ACME: Pebble, the test server of Let's Encrypt.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use testkit::pebble::{Manners, Pebble};
use testkit::{DEADLINE, Folder, eventually, free_port, wait_for};

use crate::support::{Server, Signal, certs, osier};

/// A Pebble, and the ports at which it looks at proofs.
struct Authority {
    pebble: Pebble,
    plain: u16,
    https: u16,
    folder: Folder,
}

impl Authority {
    /// `None` if Pebble or openssl are not installed.
    fn start(wants_binding: bool) -> Option<Authority> {
        if testkit::find("openssl").is_none() {
            testkit::skip("openssl is not installed");
            return None;
        }
        let folder = Folder::new();
        let ca = certs::Authority::new("the authority of the authority");
        folder.write("ca.pem", &ca.pem);
        ca.write(&folder, "pebble", &["127.0.0.1"]);
        let (plain, https) = (free_port(), free_port());
        let manners = Manners {
            http_port: plain,
            tls_port: https,
            refused_nonces: 30,
            wants_binding,
        };
        let pebble = Pebble::start(
            folder.path(),
            &folder.join("pebble.pem"),
            &folder.join("pebble.key"),
            manners,
        )?;
        Some(Authority {
            pebble,
            plain,
            https,
            folder,
        })
    }

    /// A configuration with one site and the keys of `[acme]`, and the folder of the server.
    fn site(&self, hosts: &str, acme: &str) -> Folder {
        let folder = Folder::new();
        let (plain, https, ca) = (self.plain, self.https, self.folder.join("ca.pem"));
        let binding = if acme.contains("binding") { "" } else { "#" };
        folder.write(
            "site.toml",
            format!(
                "state = \"state\"\n\
                 [acme]\nemail = \"admin@example.org\"\n{acme}\n[[acme.issuer]]\ndirectory = \"{directory}\"\nca = \"{ca}\"\n{binding}binding = {{ id = \"customer\", secret = \"{secret}\" }}\n\
                 [[listen]]\naddress = \"127.0.0.1:{plain}\"\n[[listen]]\naddress = \"127.0.0.1:{https}\"\ntls = true\n\
                 [[site]]\nhost = {hosts}\ntls = \"auto\"\n[[site.route]]\nrespond = \"served\"\n",
                directory = self.pebble.directory(),
                ca = ca.display(),
                secret = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc",
                acme = acme.replace("binding", ""),
            ),
        );
        folder
    }

    /// Number of certificates that Pebble has issued.
    fn issued(&self) -> usize {
        let log = fs::read_to_string(self.folder.join("pebble.log")).unwrap();
        log.matches("Issued certificate serial").count()
    }

    /// The issuer of the certificate that the server shows for a name.
    fn shown(&self, name: &str) -> String {
        let at = format!("127.0.0.1:{}", self.https);
        let output = Command::new("openssl")
            .args(["s_client", "-connect", &at, "-servername", name])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let issuer = text.lines().find(|line| line.starts_with("issuer="));
        issuer.unwrap_or("issuer=none").to_owned()
    }

    #[track_caller]
    fn wait_for_certificate(&self, name: &str, folder: &Folder) {
        let end = Instant::now() + DEADLINE;
        while !self.shown(name).contains("Pebble Intermediate") {
            assert!(Instant::now() < end, "no certificate for {name}: {}", errors(folder));
        }
    }
}

fn errors(folder: &Folder) -> String {
    fs::read_to_string(folder.join("errors")).unwrap_or_default()
}

fn start(folder: &Folder) -> Server {
    let mut command = osier();
    let log = fs::File::options()
        .append(true)
        .create(true)
        .open(folder.join("errors"))
        .unwrap();
    command
        .arg("site.toml")
        .current_dir(folder.path())
        .stderr(Stdio::from(log));
    Server::spawn(command)
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn a_site_gets_its_certificate_by_each_proof() {
    let Some(authority) = Authority::start(false) else {
        return;
    };
    for (proof, name) in [("http-01", "a.example.org"), ("tls-alpn-01", "b.example.org")] {
        let folder = authority.site(&format!("\"{name}\""), &format!("challenges = \"{proof}\""));
        let mut server = start(&folder);
        // It serves from the beginning, with a certificate of its own.
        assert!(server.ready_line.contains("https://"), "{}", server.ready_line);
        authority.wait_for_certificate(name, &folder);
        let stored = folder.join(format!("state/acme/certificates/{name}.pem"));
        assert_eq!((mode(&stored), mode(stored.parent().unwrap())), (0o600, 0o700));
        server.signal(Signal::TERM);
        server.wait();
        let said = errors(&folder);
        assert!(said.contains("SELF-SIGNED"), "{said}");
        assert!(said.contains(&format!("has issued a certificate for {name}")), "{said}");
    }
    assert_eq!(authority.issued(), 2);
}

#[test]
fn a_wildcard_is_proved_by_a_program() {
    let Some(authority) = Authority::start(false) else {
        return;
    };
    let program = authority.pebble.dns_program(authority.folder.path());
    let acme = format!("challenges = \"dns-01\"\ndns = \"{}\"", program.display());
    let folder = authority.site("[\"*.example.org\", \"example.org\"]", &acme);
    let _server = start(&folder);
    authority.wait_for_certificate("any.example.org", &folder);
    authority.wait_for_certificate("example.org", &folder);
}

#[test]
fn an_account_is_bound_to_a_customer() {
    let Some(authority) = Authority::start(true) else {
        return;
    };
    let folder = authority.site("\"a.example.org\"", "");
    {
        let _server = start(&folder);
        eventually("the refusal", || errors(&folder).contains("set 'binding'"));
    }
    let folder = authority.site("\"a.example.org\"", "binding");
    let _server = start(&folder);
    authority.wait_for_certificate("a.example.org", &folder);
    assert!(!errors(&folder).contains("BwcHBwc"));
}

#[test]
fn a_killed_server_takes_up_where_it_was_and_the_stored_certificate_is_served_at_once() {
    let Some(authority) = Authority::start(false) else {
        return;
    };
    let folder = authority.site("\"a.example.org\"", "");
    let server = start(&folder);
    let order = folder.join("state/acme/certificates/a.example.org.order");
    let stored = folder.join("state/acme/certificates/a.example.org.pem");
    // Somewhere in the order; a fast issuer may be done before.
    wait_for("an order", || (order.exists() || stored.exists()).then_some(()));
    server.signal(Signal::KILL);
    drop(server);
    let server = start(&folder);
    authority.wait_for_certificate("a.example.org", &folder);
    assert_eq!(authority.issued(), 1, "{}", errors(&folder));
    drop(server);
    let _server = start(&folder);
    assert!(authority.shown("a.example.org").contains("Pebble Intermediate"));
    assert_eq!(authority.issued(), 1);
}
