//! TLS: what curl gets from listeners, sites and certificates.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread;

use crate::support::certs::{Authority, write};
use crate::support::sites::{Sites, wait_for};
use crate::support::{Client, Folder, check, osier};
use testkit::php::{Fpm, Listen};

/// Two listeners: `http` without TLS, and `https`, with further settings. A reload tells them apart by their addresses.
fn listeners(tls: &str) -> String {
    format!(
        "[[listen]]\nname = \"http\"\naddress = \"127.0.0.2:0\"\n\
         [[listen]]\nname = \"https\"\naddress = \"127.0.0.1:0\"\ntls = {tls}\n"
    )
}

fn site(host: &str, name: &str, more: &str) -> String {
    format!(
        "[[site]]\n{host}\ntls = {{ cert = \"{name}.pem\", key = \"{name}.key\" }}\n{more}\n\
         [[site.route]]\nrespond = \"{name}\"\n"
    )
}

/// A folder with the authority `ca.pem`.
fn folder() -> (Folder, Authority) {
    let (folder, authority) = (Sites::folder(), Authority::new("the authority"));
    folder.write("ca.pem", &authority.pem);
    (folder, authority)
}

/// Asks `https://NAME:PORT/` with curl, and trusts `ca.pem`. Returns what curl prints: the fields, the body and the status; or the
/// number of its error. None where there is no curl.
fn curl(sites: &Sites, name: &str, more: &[&str]) -> Option<Result<String, i32>> {
    let https = sites.addresses[1];
    let output = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--include",
            "--max-time",
            "30",
            "--noproxy",
            "*",
        ])
        .args(["--cacert", "ca.pem", "--write-out", "\n%{http_code}"])
        .args(["--resolve", &format!("{name}:{}:127.0.0.1", https.port())])
        .args(more)
        .arg(format!("https://{name}:{}/", https.port()))
        .current_dir(sites.folder.path())
        .output();
    match output {
        Ok(output) if output.status.success() => Some(Ok(String::from_utf8(output.stdout).unwrap())),
        Ok(output) => Some(Err(output.status.code().unwrap())),
        Err(error) => {
            testkit::skip(format_args!("curl cannot be run: {error}"));
            None
        }
    }
}

/// curl's number for a certificate that it does not trust, or for a name that is not in it.
const UNTRUSTED: i32 = 60;
/// curl's number for a handshake that the server refuses.
const REFUSED: i32 = 35;

#[test]
fn each_name_gets_the_certificate_and_the_site_that_has_it() {
    let (folder, authority) = folder();
    authority.write(&folder, "exact", &["www.example.org"]);
    authority.write(&folder, "wild", &["*.example.org"]);
    authority.write(&folder, "other", &["other.test", "127.0.0.1"]);
    let text = listeners("true")
        + &site("host = \"www.example.org\"", "exact", "")
        + &site("host = \"*.example.org\"", "wild", "")
        + &site("default = true", "other", "");
    let sites = Sites::start_in(folder, &text);
    let ask = |name: &str, more: &[&str]| curl(&sites, name, more);
    let Some(reply) = ask("www.example.org", &[]) else {
        return;
    };
    assert!(reply.unwrap().ends_with("exact\n200"));
    assert!(ask("a.example.org", &[]).unwrap().unwrap().ends_with("wild\n200"));
    assert!(ask("other.test", &[]).unwrap().unwrap().ends_with("other\n200"));
    // No name in the handshake: the default site's certificate, and any host.
    assert!(ask("127.0.0.1", &[]).unwrap().unwrap().ends_with("other\n200"));
    assert!(
        ask("127.0.0.1", &["-H", "Host: www.example.org"])
            .unwrap()
            .unwrap()
            .ends_with("exact\n200")
    );
    // The certificate of the default site is not for this name.
    assert_eq!(ask("nobody.test", &[]).unwrap(), Err(UNTRUSTED));
    // A host of another site than the name in the handshake.
    let misdirected = ask("www.example.org", &["-H", "Host: a.example.org"]).unwrap().unwrap();
    assert!(misdirected.ends_with("421 Misdirected Request\n\n421"), "{misdirected}");
    assert!(
        ask("a.example.org", &["-H", "Host: b.example.org"])
            .unwrap()
            .unwrap()
            .ends_with("wild\n200")
    );
    // The listener without TLS serves all of them as ever.
    assert_eq!(sites.get("a.example.org", "/").text(), "wild");
}

#[test]
fn a_name_that_no_site_has_is_refused_without_a_default_site() {
    let (folder, authority) = folder();
    authority.write(&folder, "one", &["one.test"]);
    authority.write(&folder, "two", &["two.test"]);
    let text = listeners("{ min_version = \"1.3\" }")
        + &site("host = \"one.test\"", "one", "")
        + &site("host = \"two.test\"", "two", "");
    let sites = Sites::start_in(folder, &text);
    let Some(reply) = curl(&sites, "two.test", &[]) else {
        return;
    };
    assert!(reply.unwrap().ends_with("two\n200"));
    assert_eq!(curl(&sites, "three.test", &[]).unwrap(), Err(REFUSED));
    assert_eq!(curl(&sites, "127.0.0.1", &["-k"]).unwrap(), Err(REFUSED));
    assert_eq!(curl(&sites, "two.test", &["--tls-max", "1.2"]).unwrap(), Err(REFUSED));
}

#[test]
fn http2_is_spoken_unless_the_file_says_no() {
    let (folder, authority) = folder();
    authority.write(&folder, "site", &["example.org"]);
    let text = listeners("true") + &site("default = true", "site", "");
    let sites = Sites::start_in(folder, &text);
    // The curl of some systems knows no HTTP/2.
    let version = || curl(&sites, "example.org", &["--http2", "--write-out", "\n%{http_version}"]);
    let Some(Ok(reply)) = version() else { return };
    assert!(reply.ends_with("site\n2"), "{reply}");
    let said = sites.reload(&text.replacen("tls = true", "tls = true\nhttp2 = false", 1));
    assert!(
        said.contains("'http2' of listener 'https': new connections get the change"),
        "{said}"
    );
    let reply = version().unwrap().unwrap();
    assert!(reply.ends_with("site\n1.1"), "{reply}");
}

#[test]
fn a_reload_takes_a_good_certificate_and_keeps_the_old_one_for_a_bad_one() {
    let (folder, authority) = folder();
    authority.write(&folder, "site", &["example.org"]);
    let sites = Sites::start_in(folder, &(listeners("true") + &site("default = true", "site", "")));
    let serves = |name: &str| curl(&sites, name, &[]).map(|reply| reply.is_ok());
    let Some(reply) = serves("example.org") else { return };
    assert!(reply && serves("example.net") == Some(false));
    // A key of another certificate.
    let (_, key) = authority.sign(&["example.net"]);
    sites.folder.write("site.key", key);
    let said = sites.hang_up();
    let expected = "the private key does not belong to the certificate; the old certificate stays";
    assert!(said.contains(expected) && said.contains("osier: reloaded "), "{said}");
    assert_eq!(serves("example.org"), Some(true));
    authority.write(&sites.folder, "site", &["example.net"]);
    let said = sites.hang_up();
    assert!(said.contains("has been read anew; it is valid until"), "{said}");
    assert_eq!(
        (serves("example.org"), serves("example.net")),
        (Some(false), Some(true))
    );
}

#[test]
fn a_site_without_its_certificate_serves_a_self_signed_one() {
    let (folder, authority) = folder();
    authority.write(&folder, "there", &["there.test"]);
    let text =
        listeners("true") + &site("host = \"there.test\"", "there", "") + &site("host = \"later.test\"", "later", "");
    let sites = Sites::start_in(folder, &text);
    let said = sites.said();
    assert!(
        said.contains("THE SITE SERVES A SELF-SIGNED CERTIFICATE until a usable one is there"),
        "{said}"
    );
    let Some(reply) = curl(&sites, "there.test", &[]) else {
        return;
    };
    assert!(reply.is_ok());
    assert_eq!(curl(&sites, "later.test", &[]).unwrap(), Err(UNTRUSTED));
    assert!(
        curl(&sites, "later.test", &["-k"])
            .unwrap()
            .unwrap()
            .ends_with("later\n200")
    );
    authority.write(&sites.folder, "later", &["later.test"]);
    sites.hang_up();
    assert!(curl(&sites, "later.test", &[]).unwrap().is_ok());
}

#[test]
fn the_clear_is_redirected_and_browsers_are_told_to_stay() {
    let (folder, authority) = folder();
    authority.write(&folder, "site", &["example.org"]);
    let more =
        "redirect_https = 8443\nhsts = { max_age = \"180d\", subdomains = true }\nreal_ip = { from = \"127.0.0.1\" }";
    let sites = Sites::start_in(
        folder,
        &(listeners("true") + &site("host = \"example.org\"", "site", more)),
    );
    for (method, status) in [("GET", 301), ("HEAD", 301), ("POST", 308), ("OPTIONS", 308)] {
        let reply = sites.ask(method, "Example.org:80", "/a%2Fb?c=d", &[]);
        let location = reply.field("location");
        assert_eq!(
            (reply.status, location),
            (status, Some("https://Example.org:8443/a%2Fb?c=d")),
            "{method}"
        );
        assert_eq!(reply.field("strict-transport-security"), None);
    }
    // The server as a whole has no address.
    let reply = sites.ask("OPTIONS", "example.org", "*", &[]);
    assert_eq!((reply.status, reply.field("location")), (204, None));
    // A program that gets the certificate has its answers in the files of the site.
    let reply = sites.get("example.org", "/.well-known/acme-challenge/token");
    assert_eq!((reply.status, reply.text()), (200, "site"));
    for path in [
        "/.well-known/acme-challenge",
        "/.well-known/other",
        "/x/.well-known/acme-challenge/token",
        "/.well-known/acme-challenge/",
        "/.well-known/acme-challenge/../../a.txt",
        "/.well-known/acme-challenge/%2e%2e/%2e%2e/a.txt",
    ] {
        assert_eq!(sites.get("example.org", path).status, 301, "{path}");
    }
    // A proxy in front has got this one by https.
    let reply = sites.ask(
        "GET",
        "example.org",
        "/",
        &["X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: https"],
    );
    assert_eq!((reply.status, reply.text()), (200, "site"));
    let expected = "max-age=15552000; includeSubDomains";
    assert_eq!(reply.field("strict-transport-security"), Some(expected));
    let Some(reply) = curl(&sites, "example.org", &["--http1.1"]) else {
        return;
    };
    let reply = reply.unwrap().to_ascii_lowercase();
    assert!(
        reply.contains(&format!(
            "strict-transport-security: {}\r\n",
            expected.to_ascii_lowercase()
        )),
        "{reply}"
    );
}

/// Answers each request with its head. `fields` go into each response.
fn echo(listener: TcpListener, fields: &'static str) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut client = Client::over(stream.unwrap());
            thread::spawn(move || {
                while let Some(head) = client.receive_head_of_request() {
                    let head = head.replace("\r\n", "\n");
                    client.send_raw(
                        format!(
                            "HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n{head}",
                            head.len()
                        )
                        .as_bytes(),
                    );
                }
            });
        }
    });
}

#[test]
fn backends_are_told_which_certificate_a_client_has_shown() {
    let (folder, authority) = folder();
    let clients = Authority::new("the clients");
    folder.write("clients.pem", &clients.pem);
    authority.write(&folder, "site", &["example.org"]);
    let (cert, key) = clients.sign_with(&["ann"], |params| {
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "Ann, of \"A\"");
        params.serial_number = Some(0xab01_u64.into());
        params.not_before = rcgen::date_time_ymd(2026, 1, 2);
        params.not_after = rcgen::date_time_ymd(2096, 1, 2);
    });
    write(&folder, "ann", &cert, &key);
    let (cert, key) = authority.sign(&["mallory"]);
    write(&folder, "mallory", &cert, &key);
    folder.write(
        "app/index.php",
        "<?php foreach ($_SERVER as $k => $v) if (preg_match('/^(SSL_|HTTPS|REQUEST_SCHEME|HTTP_CLIENT)/', $k)) echo \"$k=$v\\n\";",
    );
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = backend.local_addr().unwrap();
    echo(backend, "");
    let fpm = Fpm::start(folder.path(), Listen::Unix, "pm = static\npm.max_children = 2\n");
    let fastcgi = fpm.as_ref().map(|fpm| {
        format!(
            "[[site.route]]\npath = \"/index.php\"\nfastcgi = {{ to = \"{}\", root = \"app\" }}\n",
            fpm.address
        )
    });
    let text = listeners("{ client_ca = \"clients.pem\", client = \"optional\" }")
        + "[[site]]\ndefault = true\ntls = { cert = \"site.pem\", key = \"site.key\" }\n"
        + &fastcgi.unwrap_or_default()
        + &format!("[[site.route]]\nproxy = \"{address}\"\n");
    let sites = Sites::start_in(folder, &text);
    let ann = ["--cert", "ann.pem", "--key", "ann.key"];
    let Some(reply) = curl(&sites, "example.org", &ann) else {
        return;
    };
    let reply = reply.unwrap();
    let field = reply.lines().find_map(|line| {
        line.strip_prefix("client-cert: ")
            .or(line.strip_prefix("Client-Cert: "))
    });
    let pem = fs::read_to_string(sites.folder.join("ann.pem")).unwrap();
    let inside: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    assert_eq!(field, Some(format!(":{inside}:").as_str()), "{reply}");
    assert!(
        reply.to_ascii_lowercase().contains("x-forwarded-proto: https\n"),
        "{reply}"
    );
    // Nobody says it in a field of its own, over TLS or in the clear.
    let forged = [
        "-H",
        "Client-Cert: :AAAA:",
        "-H",
        "Client_Cert: :AAAA:",
        "-H",
        "Client-Cert-Chain: :AAAA:",
    ];
    let reply = curl(&sites, "example.org", &forged).unwrap().unwrap();
    assert!(!reply.contains("AAAA") && reply.ends_with("200"), "{reply}");
    let reply = sites.ask("GET", "example.org", "/", &["Client-Cert: :AAAA:"]);
    assert!(!reply.text().contains("AAAA"), "{}", reply.text());
    // Another authority's certificate, and none at all.
    assert!(
        curl(
            &sites,
            "example.org",
            &["--cert", "mallory.pem", "--key", "mallory.key"]
        )
        .unwrap()
        .is_err()
    );
    if fpm.is_some() {
        let php = ["--request-target", "/index.php", "--data", "a body"];
        let reply = curl(&sites, "example.org", &[&ann[..], &php].concat())
            .unwrap()
            .unwrap();
        for line in [
            "HTTPS=on",
            "REQUEST_SCHEME=https",
            "SSL_CLIENT_VERIFY=SUCCESS",
            "SSL_CLIENT_S_DN=CN=Ann\\, of \\\"A\\\"",
            "SSL_CLIENT_I_DN=CN=the clients",
            "SSL_CLIENT_M_SERIAL=AB01",
            "SSL_CLIENT_V_START=Jan  2 00:00:00 2026 GMT",
            "SSL_CLIENT_V_END=Jan  2 00:00:00 2096 GMT",
        ] {
            assert!(reply.lines().any(|known| known == line), "{line}\n{reply}");
        }
        assert!(
            reply.contains(&format!("SSL_CLIENT_CERT={}", pem.trim_end())),
            "{reply}"
        );
        let reply = curl(&sites, "example.org", &php).unwrap().unwrap();
        assert!(
            reply.contains("SSL_CLIENT_VERIFY=NONE\n") && !reply.contains("SSL_CLIENT_S_DN"),
            "{reply}"
        );
    }
    let required = text.replace("optional", "required");
    assert!(
        sites
            .reload(&required)
            .contains("'tls' of listener 'https': new connections get the change")
    );
    assert!(curl(&sites, "example.org", &[]).unwrap().is_err());
    assert!(curl(&sites, "example.org", &ann).unwrap().is_ok());
}

/// A list of version 1, as `openssl ca -gencrl` makes it without extensions.
const OLD_LIST: &str = "\
-----BEGIN X509 CRL-----
MIGcMEQwCgYIKoZIzj0EAwIwFjEUMBIGA1UEAwwLdGhlIGNsaWVudHMXDTI2MTEy
OTE5MTg0N1oYDzIxMjUwNjIzMTkxODQ3WjAKBggqhkjOPQQDAgNIADBFAiEAjZLk
uwIx+8qax/BeMzpMZ+XWHZhne+htVs3Mo8yWHIACIHPLIyd7et0AKoyBSJz4e5iC
IFbIFCA21yYaAKZIl3xY
-----END X509 CRL-----
";

/// A list of the changes since another one.
const DELTA_LIST: &str = "\
-----BEGIN X509 CRL-----
MIGxMFoCAQEwCgYIKoZIzj0EAwIwFjEUMBIGA1UEAwwLdGhlIGNsaWVudHMXDTI2
MTEyOTE5MTg0N1oYDzIxMjUwNjIzMTkxODQ3WqARMA8wDQYDVR0bAQH/BAMCAQEw
CgYIKoZIzj0EAwIDRwAwRAIgHUYHdQiOeifLUARYKWytoEizys4uV5lBNRKuhR3r
zAQCIGVkPU3Qbaq+mZUiriOI3n9+00by1BrJ+EXGi5n5YLdM
-----END X509 CRL-----
";

#[test]
fn a_revoked_certificate_is_refused_after_a_reload() {
    let (folder, authority) = folder();
    let clients = Authority::new("the clients");
    folder.write("clients.pem", &clients.pem);
    authority.write(&folder, "site", &["example.org"]);
    for (name, serial) in [("ann", 7_u64), ("bob", 8)] {
        let (cert, key) = clients.sign_with(&[name], |params| params.serial_number = Some(serial.into()));
        write(&folder, name, &cert, &key);
    }
    folder.write("revoked.pem", clients.revoke(7, 2096));
    let tls = "{ client_ca = \"clients.pem\" }";
    let text = listeners(tls) + &site("default = true", "site", "");
    let sites = Sites::start_in(folder, &text);
    let get = |name: &str| {
        let files = [format!("{name}.pem"), format!("{name}.key")];
        curl(&sites, "example.org", &["--cert", &files[0], "--key", &files[1]])
    };
    let Some(before) = get("ann") else { return };
    assert!(before.is_ok() && get("bob").unwrap().is_ok());
    let with_list = text.replace(tls, "{ client_ca = \"clients.pem\", client_crl = \"revoked.pem\" }");
    assert!(sites.reload(&with_list).contains("new connections get the change"));
    assert!(get("ann").unwrap().is_err() && get("bob").unwrap().is_ok());
    sites.folder.write("revoked.pem", clients.revoke(8, 2026));
    let said = sites.reload(&with_list);
    assert!(
        said.contains("revoked.pem': a newer list was due on 2026-01-01") && said.contains("reloaded"),
        "{said}"
    );
    assert!(get("ann").unwrap().is_ok() && get("bob").unwrap().is_err());
    // Without the list everybody would be let in, a certificate beside it would sign for clients, and of two lists the first one would count.
    let [older, newer] = [7, 8].map(|serial| clients.revoke(serial, 2096));
    for (content, mistake) in [
        (clients.pem.clone(), "holds no list of revoked certificates"),
        (format!("{newer}{}", authority.pem), "holds certificates, too"),
        (format!("{older}{newer}"), "holds two lists of one authority"),
        (OLD_LIST.into(), "must hold whole lists of version 2"),
        (DELTA_LIST.into(), "must hold whole lists of version 2"),
    ] {
        sites.folder.write("revoked.pem", content);
        let said = sites.reload(&with_list);
        assert!(said.contains(mistake) && said.contains("stays"), "{said}");
        assert!(get("bob").unwrap().is_err());
    }
    sites.folder.write("revoked.pem", clients.revoke(8, 2096));
    let not_der = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    sites.folder.write("clients.pem", not_der);
    let said = sites.reload(&with_list);
    let mistake = "clients.pem' cannot be used: an authority cannot be used";
    assert!(said.contains(mistake) && said.contains("stays"), "{said}");
    let said = sites.reload(&text.replace(tls, "{ client_crl = \"revoked.pem\" }"));
    assert!(said.contains("'client_crl' needs 'client_ca'"), "{said}");
}

#[test]
fn what_a_cache_stores_for_a_certificate_is_not_for_others() {
    let (folder, authority) = folder();
    let clients = Authority::new("the clients");
    folder.write("clients.pem", &clients.pem);
    authority.write(&folder, "site", &["example.org"]);
    let (cert, key) = clients.sign(&["ann"]);
    write(&folder, "ann", &cert, &key);
    folder.write(
        "app/index.php",
        "<?php header('Cache-Control: max-age=600'); echo 'verify=', $_SERVER['SSL_CLIENT_VERIFY'] ?? 'unset', ' https=', $_SERVER['HTTPS'] ?? 'unset';",
    );
    let fpm = Fpm::start(folder.path(), Listen::Unix, "pm = static\npm.max_children = 2\n");
    let fastcgi = fpm.as_ref().map(|fpm| {
        format!(
            "[[site.route]]\npath = \"/index.php\"\nfastcgi = {{ to = \"{}\", root = \"app\" }}\n",
            fpm.address
        )
    });
    let mut text = listeners("{ client_ca = \"clients.pem\", client = \"optional\" }")
        + "[[site]]\ndefault = true\ncache = true\ntls = { cert = \"site.pem\", key = \"site.key\" }\n"
        + &fastcgi.unwrap_or_default();
    for (path, fields) in [
        ("/own", "Cache-Control: max-age=600\r\n"),
        ("/public", "Cache-Control: public, max-age=600\r\n"),
    ] {
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        text += &format!(
            "[[site.route]]\npath = \"{path}\"\nproxy = \"{}\"\n",
            backend.local_addr().unwrap()
        );
        echo(backend, fields);
    }
    let sites = Sites::start_in(folder, &text);
    let ann = ["--cert", "ann.pem", "--key", "ann.key"];
    let get = |path, more: &[&str]| {
        let reply = curl(&sites, "example.org", &[more, &["--request-target", path]].concat())?;
        Some(reply.unwrap().to_ascii_lowercase())
    };
    let Some(first) = get("/own", &ann) else {
        return;
    };
    assert!(
        first.contains("\nclient-cert: :") && first.contains("\nx-forwarded-proto: https\n"),
        "{first}"
    );
    let other = get("/own", &[]).unwrap();
    assert!(
        other.contains("fwd=miss; stored") && !other.contains("client-cert"),
        "{other}"
    );
    assert!(get("/own", &[]).unwrap().contains("osier; hit"));
    assert!(get("/public", &ann).unwrap().contains("fwd=miss; stored"));
    assert!(get("/public", &[]).unwrap().contains("osier; hit"));
    if fpm.is_some() {
        for (more, said) in [(&ann[..], "success"), (&[], "none"), (&[], "none")] {
            let reply = get("/index.php", more).unwrap();
            assert!(reply.contains(&format!("verify={said} https=on\n")), "{reply}");
        }
    }
}

#[test]
fn the_internal_authority_signs_what_clients_ask_for() {
    let folder = Sites::folder();
    let text = listeners("true") + "[[site]]\ndefault = true\ntls = \"internal\"\n[[site.route]]\nrespond = \"in\"\n";
    let sites = Sites::start_in(folder, &("state = \"state\"\n".to_owned() + &text));
    let root = sites.folder.join("state/internal/root.pem");
    fs::copy(&root, sites.folder.join("ca.pem")).unwrap();
    let Some(reply) = curl(&sites, "a.test", &[]) else {
        return;
    };
    assert!(reply.unwrap().ends_with("in\n200"));
    for name in ["127.0.0.1", "localhost"] {
        assert!(curl(&sites, name, &[]).unwrap().is_ok(), "{name}");
    }
    // A restart goes on with the same authority.
    let Sites { server, folder, .. } = sites;
    drop(server);
    let sites = Sites::start_in(folder, &("state = \"state\"\n".to_owned() + &text));
    assert!(curl(&sites, "b.test", &[]).unwrap().is_ok());
    let mut trust = osier();
    let output = trust
        .args(["trust", "site.toml"])
        .current_dir(sites.folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && said.contains(root.to_str().unwrap()),
        "{said}"
    );
    assert!(said.contains("update-ca-certificates"), "{said}");
}

#[test]
fn trust_without_an_authority_says_how_it_comes_to_be() {
    let folder = Folder::new();
    let mut trust = osier();
    trust.arg("trust").env("STATE_DIRECTORY", folder.path());
    let output = trust.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && said.contains("there is no root certificate '"),
        "{said}"
    );
}

/// Serves as the user 65534, with a key that only root may read.
#[test]
fn a_key_of_root_is_read_before_the_user_changes() {
    if !rustix::process::geteuid().is_root() {
        testkit::skip("only root can give privileges up");
        return;
    }
    let open = |path: &std::path::Path| fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    for more in ["", "chroot = \"HERE\"\n"] {
        let ((folder, authority), secrets) = (folder(), Folder::new());
        open(folder.path());
        authority.write(&secrets, "site", &["example.org"]);
        // Root's alone, and outside of the new root folder.
        fs::set_permissions(secrets.path(), Permissions::from_mode(0o700)).unwrap();
        let (here, outside) = (folder.path().display().to_string(), secrets.path().display());
        let text =
            format!("user = \"65534\"\ngroup = \"65534\"\n{more}state = \"HERE/state\"\n").replace("HERE", &here);
        let site = |host: &str, cert: &str| {
            format!(
                "[[site]]\nhost = \"{host}\"\ntls = {{ cert = \"{cert}.pem\", key = \"{cert}.key\" }}\n\
                 [[site.route]]\nrespond = \"in\"\n"
            )
        };
        // The user's, which it may read again.
        let own = |folder: &Folder, day| {
            let (cert, key) = authority.sign_with(&["own.test"], |params| {
                params.not_after = rcgen::date_time_ymd(2090, 1, day);
            });
            write(folder, "own", &cert, &key);
            std::os::unix::fs::chown(folder.join("own.key"), Some(65534), Some(65534)).unwrap();
        };
        let internal = "[[site]]\ndefault = true\ntls = \"internal\"\n[[site.route]]\nrespond = \"internal\"\n";
        own(&folder, 1);
        let text = text
            + &listeners("true")
            + &site("example.org", &format!("{outside}/site"))
            + &site("own.test", &format!("{here}/own"))
            + internal;
        let sites = Sites::start_with(folder, &text, |command| {
            command.env("TMPDIR", &here);
        });
        let Some(reply) = curl(&sites, "example.org", &[]) else {
            return;
        };
        assert!(reply.unwrap().ends_with("in\n200"), "{}", sites.said());
        // The state folder is the user's.
        assert!(
            curl(&sites, "other.test", &["-k"])
                .unwrap()
                .unwrap()
                .ends_with("internal\n200")
        );
        let root = fs::metadata(sites.folder.join("state/internal/root.pem")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&root), 65534);
        // One renewal can be read. Of the other site the old certificate stays.
        authority.write(&secrets, "site", &["example.org"]);
        own(&sites.folder, 2);
        sites.hang_up();
        let said = sites.said();
        assert!(
            said.contains("a renewed one is read at the next start") && said.contains("osier: reloaded "),
            "{said}"
        );
        assert!(
            said.contains("has been read anew; it is valid until 2090-01-02"),
            "{said}"
        );
        assert!(curl(&sites, "own.test", &[]).unwrap().is_ok());
        assert!(curl(&sites, "example.org", &[]).unwrap().is_ok());
    }
}

/// Resumes a session with openssl; returns whether the server has accepted its ticket. None where there is no openssl.
fn resumes(sites: &Sites, session: &str) -> Option<bool> {
    let output = Command::new("openssl")
        // The ticket of TLS 1.2 comes inside of the handshake.
        .args([
            "s_client",
            "-tls1_2",
            "-servername",
            "example.org",
            "-connect",
            &sites.addresses[1].to_string(),
        ])
        .args([session, "session"])
        .stdin(Stdio::null())
        .current_dir(sites.folder.path())
        .output();
    match output {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).contains("Reused, TLSv1.2")),
        Err(error) => {
            testkit::skip(format_args!("openssl cannot be run: {error}"));
            None
        }
    }
}

#[test]
fn sessions_outlive_reloads_and_with_a_file_of_keys_also_restarts() {
    let (folder, authority) = folder();
    authority.write(&folder, "site", &["example.org"]);
    let text = listeners("true") + &site("default = true", "site", "");
    let sites = Sites::start_in(folder, &text);
    let Some(is_resumed) = resumes(&sites, "-sess_out") else {
        return;
    };
    assert!(!is_resumed && resumes(&sites, "-sess_in") == Some(true));
    let renewed = text.replacen("tls = true", "tls = true\nmax_connections = 100", 1);
    assert!(sites.reload(&renewed).contains("new connections get the change"));
    assert_eq!(resumes(&sites, "-sess_in"), Some(true));
    let restart = |sites: Sites, text: &str| {
        let Sites { server, folder, .. } = sites;
        drop(server);
        Sites::start_in(folder, text)
    };
    let sites = restart(sites, &text);
    assert_eq!(resumes(&sites, "-sess_in"), Some(false));
    sites.folder.write("keys", [7; 48]);
    fs::set_permissions(sites.folder.join("keys"), Permissions::from_mode(0o600)).unwrap();
    let text = "ticket_keys = \"keys\"\n".to_owned() + &text;
    let sites = restart(sites, &text);
    resumes(&sites, "-sess_out");
    let sites = restart(sites, &text);
    assert_eq!(resumes(&sites, "-sess_in"), Some(true));
    sites.folder.write("keys", "too short");
    let why = "9 bytes are not ticket keys";
    wait_for("the line about the file", || {
        sites
            .said()
            .lines()
            .any(|line| line.contains(why) && line.contains("the old keys stay"))
    });
    let (status, said) = check(&sites.folder, &["site.toml"]);
    assert!(status == Some(0) && said.contains(&format!("keys': {why}")), "{said}");
    let said = sites.hang_up();
    assert!(
        said.contains("'ticket_keys': ") && said.contains("the old keys stay"),
        "{said}"
    );
    assert_eq!(resumes(&sites, "-sess_in"), Some(true));
}
