//! TLS: what `osier check` says about listeners, sites and certificates.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::config_check::mistakes;
use crate::support::certs::{Authority, write};
use crate::support::{Folder, check};

const HTTPS: &str = "[[listen]]\naddress = \"127.0.0.1:8443\"\ntls = true\n";
const ROUTE: &str = "[[site.route]]\nfiles = \"www\"\n";

/// The part of a message behind its place.
fn texts(text: &str) -> Vec<String> {
    let texts = mistakes(text).into_iter();
    texts
        .map(|line| line.splitn(3, ':').nth(2).unwrap().trim().to_owned())
        .collect()
}

#[test]
fn listeners_and_sites_fit_together() {
    let plain = "[[listen]]\naddress = \"127.0.0.1:8080\"\nname = \"plain\"\n";
    let remedies = "write tls = \"auto\", \"on-demand\", \"internal\" or { cert = \"FILE\", key = \"FILE\" }, or";
    for (text, expected) in [
        (
            format!("{HTTPS}[[site]]\nhost = \"example.org\"\n{ROUTE}"),
            format!(
                "the site 'example.org' has no 'tls', and the listener '127.0.0.1:8443' has: {remedies} add a listener without \
                 'tls' for it"
            ),
        ),
        (
            format!("{HTTPS}{plain}[[site]]\ndefault = true\n{ROUTE}"),
            format!(
                "the default site has no 'tls', and the listener '127.0.0.1:8443' has: {remedies} name other listeners in its \
                 'listen'"
            ),
        ),
        (
            format!("{plain}[[site]]\ndefault = true\ntls = \"internal\"\n{ROUTE}"),
            "'tls' has no effect: no listener of this site has 'tls'; add [[listen]] with address = \":443\" and tls = true"
                .into(),
        ),
        (
            format!("{HTTPS}[[site]]\ndefault = true\ntls = \"internal\"\nredirect_https = true\n{ROUTE}"),
            "'redirect_https' has no effect: every listener of this site has 'tls'".into(),
        ),
        (
            format!("{plain}[[site]]\ndefault = true\nredirect_https = true\n{ROUTE}"),
            "'redirect_https' has nowhere to lead: no listener of this site has 'tls'; where a proxy in front has it, write the \
             port: redirect_https = 443"
                .into(),
        ),
        (
            format!("{plain}[[site]]\ndefault = true\nhsts = \"30d\"\n{ROUTE}"),
            "'hsts' has no effect: no listener of this site has 'tls', and no 'real_ip' names a proxy that has it".into(),
        ),
        (
            format!("[[site]]\ndefault = true\ntls = \"auto\"\n{ROUTE}"),
            "tls = \"auto\" needs to know for which names: give the site its 'host'".into(),
        ),
        (
            format!("[[site]]\nhost = \"web.local\"\ntls = \"auto\"\n{ROUTE}"),
            "no public authority signs 'web.local': write tls = \"internal\", or name the site's files".into(),
        ),
    ] {
        assert_eq!(texts(&text), [expected], "{text}");
    }
}

#[test]
fn values_of_the_wrong_kind() {
    let site = format!("[[site]]\ndefault = true\ntls = \"internal\"\n{ROUTE}");
    let listen = "[[listen]]\naddress = \"81\"\n";
    let tls = |value: &str| format!("{listen}tls = {value}\n{site}");
    let own = |line: &str| format!("[[site]]\nhost = \"example.org\"\n{line}\n{ROUTE}");
    for (text, expected) in [
        (tls("1"), "'tls' must be true, false or a table, not the number 1"),
        (
            tls("{ min_version = \"1.1\" }"),
            "'min_version' must be one of \"1.2\", \"1.3\", not \"1.1\"",
        ),
        (
            tls("{ client = \"optional\" }"),
            "'client' needs 'client_ca': the file with the authorities that sign the clients' certificates",
        ),
        (
            tls("{ cert = \"c.pem\", key = \"k.pem\" }"),
            "a certificate belongs to its site: [[site]] tls = { cert = \"FILE\", key = \"FILE\" }",
        ),
        (
            tls("{ client_ca = \"404.html\" }"),
            "'client_ca': 'DIR/404.html' holds no certificates in PEM form",
        ),
        (
            tls("{ client_ca = \"none\" }"),
            "'client_ca': 'DIR/none' cannot be read: No such file or directory (os error 2)",
        ),
        (
            own("tls = \"internl\""),
            "'tls' cannot be \"internl\": write \"auto\", \"on-demand\", \"internal\" or { cert = \"FILE\", key = \"FILE\" }",
        ),
        (
            own("tls = true"),
            "'tls' must be \"auto\", \"on-demand\", \"internal\" or { cert = \"FILE\", key = \"FILE\" }, not true",
        ),
        (
            own("tls = \"on-demand\""),
            "tls = \"on-demand\" needs 'ask' in [acme]: a URL that says which names may have a certificate",
        ),
        (
            format!("[acme]\nask = \"ftp://a\"\n{}", own("tls = \"internal\"")),
            "'ask' cannot be \"ftp://a\": write a URL, \"http://127.0.0.1:3000/may-have-certificate\" for example",
        ),
        (
            format!(
                "[acme]\nask = \"http://a\"\n{}",
                own("acme = { email = \"a@b\" }\ntls = \"on-demand\"")
            ),
            "a site with tls = \"on-demand\" has no 'acme' of its own: set the keys of [acme]",
        ),
        (
            own("acme = { email = \"a@b\" }"),
            "'acme' of a site is for tls = \"auto\", which this one does not have: write it, or remove 'acme'",
        ),
        (
            own("acme = { email = \"a@b\" }\ntls = \"internal\""),
            "'acme' of a site is for tls = \"auto\", which this one does not have: write it, or remove 'acme'",
        ),
        (
            format!("[shared]\nredis = \"redis://a/3\"\n{}", own("tls = \"internal\"")),
            "'redis': only the database 0 is used; give this server keys of its own by 'prefix'",
        ),
        (
            own("tls = { cert = \"a.pem\" }"),
            "[site.tls] lacks 'key': the file with the private key, in PEM form",
        ),
        (
            own("tls = \"internal\"\nhsts = \"1h\""),
            "browsers keep 'hsts' from visit to visit: give it at least \"1d\", or leave it out",
        ),
        (
            own("tls = \"internal\"\nredirect_https = \"yes\""),
            "'redirect_https' must be true, false, or the port of https, not \"yes\"; write true",
        ),
        (
            own("tls = \"internal\"\nredirect_https = 0"),
            "'redirect_https' must be a whole number from 1 to 65535, not the number 0",
        ),
    ] {
        assert_eq!(texts(&text), [expected], "{text}");
    }
}

/// Checks a site with a certificate in `site.pem` and `site.key`.
fn check_certificate(folder: &Folder) -> (Option<i32>, String) {
    folder.write(
        "site.toml",
        format!(
            "{HTTPS}[[site]]\nhost = [\"example.org\", \"*.example.org\"]\n\
             tls = {{ cert = \"site.pem\", key = \"site.key\" }}\n{ROUTE}"
        ),
    );
    folder.write("www/index.html", "");
    check(folder, &["site.toml"])
}

#[test]
fn what_is_wrong_with_a_certificate_is_a_warning() {
    let folder = Folder::new();
    let authority = Authority::new("the authority");
    authority.write(&folder, "site", &["example.org", "*.example.org"]);
    assert_eq!(check_certificate(&folder), (Some(0), String::new()));
    let expect = |at: &str, text: &str| {
        let (status, said) = check_certificate(&folder);
        let expected = format!("site.toml:6:{at}: warning: '{}", folder.join(text).display());
        assert!(status == Some(0) && said.starts_with(&expected), "{expected}\n{said}");
    };
    authority.write(&folder, "site", &["www.example.net", "example.org"]);
    expect(
        "16",
        "site.pem': the certificate is not for '*.example.org', but for www.example.net, example.org\n",
    );
    let (cert, key) = authority.sign_with(&["example.org", "*.example.org"], |params| {
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2001, 12, 31);
    });
    write(&folder, "site", &cert, &key);
    expect("16", "site.pem': the certificate has expired on 2001-12-31; renew it\n");
    let (cert, _) = authority.sign(&["example.org", "*.example.org"]);
    folder.write("site.pem", cert);
    let (status, said) = check_certificate(&folder);
    assert!(
        status == Some(0) && said.contains("the private key does not belong to the certificate"),
        "{said}"
    );
    authority.write(&folder, "site", &["example.org", "*.example.org"]);
    fs::set_permissions(folder.join("site.key"), Permissions::from_mode(0o644)).unwrap();
    expect(
        "34",
        "site.key' can be read by every user of this machine (mode 0644): chmod o-r\n",
    );
}

#[test]
fn a_missing_certificate_is_a_warning() {
    let folder = Folder::new();
    let (status, said) = check_certificate(&folder);
    let warnings: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("warning: there is no file"))
        .collect();
    assert_eq!((status, warnings.len()), (Some(0), 2), "{said}");
    assert_eq!(check(&folder, &["--strict", "site.toml"]).0, Some(2));
}

#[test]
fn a_public_site_is_six_lines() {
    let folder = Folder::new();
    folder.write("www/index.html", "");
    let text = format!("[[site]]\nhost = \"example.org\"\ntls = \"auto\"\n{ROUTE}");
    assert!(text.lines().count() <= 6);
    folder.write("site.toml", text);
    assert_eq!(check(&folder, &["--strict", "site.toml"]), (Some(0), String::new()));
}
