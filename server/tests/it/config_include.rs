//! `include`: sites and policies in files of their own, with mistakes at their own places.

use crate::support::sites::{Sites, wait_for};
use crate::support::{Folder, osier};

fn check(folder: &Folder) -> (Option<i32>, String) {
    let output = osier()
        .args(["check", "site.toml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let real = folder.path().canonicalize().unwrap();
    let said = said
        .replace(real.to_str().unwrap(), "DIR")
        .replace(folder.path().to_str().unwrap(), "DIR");
    (output.status.code(), said)
}

/// The lines that begin with a place.
fn places(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.contains(".toml:")).collect()
}

#[test]
fn sites_come_from_several_files_and_reload_with_them() {
    let folder = Sites::folder();
    let site = |name: &str, text: &str| {
        format!("[[site]]\nhost = \"{name}.example\"\npolicy = \"shared\"\n[[site.route]]\nrespond = \"{text}\"\n")
    };
    folder.write("sites/a.toml", site("a", "of a"));
    folder.write(
        "sites/b.toml",
        site("b", "of b") + "[[site.route]]\npath = \"/x\"\nfiles = \"www\"\n",
    );
    folder.write("sites/.hidden.toml", "not = TOML =");
    folder.write("sites/c.off", "not = TOML =");
    folder.write(
        "more/policies.toml",
        "[policy.shared]\nheaders = { X-Shared = \"1\" }\n",
    );
    let main = "include = [\"sites/*.toml\", \"more/policies.toml\"]\n[[site]]\ndefault = true\n[[site.route]]\nrespond = \"main\"\n";
    folder.write("sites/b.toml", site("b", "of b"));
    let sites = Sites::start_in(folder, main);
    for (host, text) in [("a.example", "of a"), ("b.example", "of b"), ("x", "main")] {
        assert_eq!(sites.get(host, "/").text(), text, "{host}");
    }
    assert_eq!(sites.get("a.example", "/").field("x-shared"), Some("1"));
    // A reload finds files that are new, changed or gone.
    sites.folder.write("sites/a.toml", site("a", "of a again"));
    sites.folder.write("sites/d.toml", site("d", "of d"));
    std::fs::remove_file(sites.folder.join("sites/b.toml")).unwrap();
    let said = sites.hang_up();
    assert!(said.contains("(3 sites, 3 routes, 1 listener)"), "{said}");
    for (host, text) in [
        ("a.example", "of a again"),
        ("b.example", "main"),
        ("d.example", "of d"),
    ] {
        assert_eq!(sites.get(host, "/").text(), text, "{host}");
    }
    // A mistake in one of them keeps the old configuration.
    sites.folder.write("sites/d.toml", "[[site]]\nhost = 5\n");
    let said = sites.hang_up();
    assert!(
        said.contains("sites/d.toml:2:8: 'host' must be") && said.contains("the old configuration stays"),
        "{said}"
    );
    assert_eq!(sites.get("d.example", "/").text(), "of d");
}

#[test]
fn mistakes_have_the_place_in_their_own_file() {
    let folder = Folder::new();
    folder.write(
        "site.toml",
        "include = \"sites/*.toml\"\n[[site]]\nhost = \"a.example\"\n[[site.route]]\nfles = \"x\"\nrespond = 204\n",
    );
    folder.write(
        "sites/1.toml",
        "# one\n\n[[site]]\nhost = [\"ok.example\", \"a.example\"]\n[[site.route]]\nrespond = 204\n",
    );
    folder.write(
        "sites/2.toml",
        "[[site]]\nhost = \"two.example\"\n[[site.route]]\nredirect = 7\n",
    );
    let (status, said) = check(&folder);
    assert_eq!(status, Some(2));
    assert_eq!(
        places(&said),
        [
            "site.toml:5:1: unknown key 'fles' in [[site.route]]; did you mean 'files'?",
            "DIR/sites/1.toml:4:23: host 'a.example' has a site already (line 3 of site.toml)",
            "DIR/sites/2.toml:4:12: 'redirect' must be a table, or the target alone, not the number 7; write redirect = { to = \"https://example.org/\", status = \
             301 }",
        ],
        "{said}"
    );
    assert!(
        said.contains("\n  4 | host = [\"ok.example\", \"a.example\"]\n    |                       ^"),
        "{said}"
    );
}

#[test]
fn no_message_about_an_included_file_shows_a_secret() {
    let folder = Folder::new();
    folder.write("site.toml", "include = \"sites/*.toml\"\n");
    folder.write(
        "sites/1.toml",
        "[[site]]\nauth = { users = { ada = \"secret\", ada = \"secret\" } }\n[[site.route]]\nrespond = 204\n",
    );
    let (status, said) = check(&folder);
    assert_eq!(status, Some(2));
    assert!(
        said.contains("1.toml:2:") && said.contains("'ada' is set twice") && !said.contains("secret"),
        "{said}"
    );
    // A key before the first [[site]] makes the whole file unread.
    folder.write(
        "sites/1.toml",
        "auth = { users = { ada = \"secret\" } }\n[[site]]\n[[site.route]]\nrespond = 204\n",
    );
    let (status, said) = check(&folder);
    assert_eq!(status, Some(2));
    assert!(
        said.contains("1.toml:1:1: 'auth' in an included file") && said.contains("\n  1 | auth = ***"),
        "{said}"
    );
    assert!(!said.contains("secret"), "{said}");
}

#[test]
fn files_that_cannot_be_included_are_named() {
    let folder = Folder::new();
    let with = |include: &str, included: &str| {
        folder.write(
            "site.toml",
            format!("include = {include}\n[[site]]\n[[site.route]]\nrespond = 204\n[policy.main]\n"),
        );
        folder.write("sites/a.toml", included);
        check(&folder)
    };
    for (include, included, line) in [
        (
            "\"sites/*.toml\"",
            "workers = 2\n",
            "DIR/sites/a.toml:1:1: 'workers' in an included file: it holds [[site]] and [policy.NAME] only",
        ),
        (
            "\"sites/*.toml\"",
            "include = \"x\"\n",
            "DIR/sites/a.toml:1:1: 'include' in an included file: it holds [[site]] and [policy.NAME] only",
        ),
        ("\"sites/a.toml\"", "\n[[site]\n", "DIR/sites/a.toml:2:8: "),
        (
            "\"sites/none.toml\"",
            "",
            "site.toml:1:11: 'DIR/sites/none.toml': there is no such file",
        ),
        (
            "\"*/a.toml\"",
            "",
            "site.toml:1:11: a '*' stands in the name of the file only, not in that of its folder",
        ),
        (
            "\"sites/*.toml\"",
            "[[site.route]]\nrespond = 204\n",
            "DIR/sites/a.toml:1:3: a table of a site before the first [[site]] of the file",
        ),
        (
            "\"sites/*.toml\"",
            "[site.limits]\nbody = 1\n",
            "DIR/sites/a.toml:1:2: a table of a site before the first [[site]] of the file",
        ),
        (
            "\"sites/*.toml\"",
            "policy.inner.deny = \"10.0.0.0/8\"\n[[site]]\nhost = \"a.example\"\n[[site.route]]\nrespond = 204\n",
            "DIR/sites/a.toml:1:1: 'policy' before the first header of an included file: write it below [policy.NAME]",
        ),
        (
            "\"sites/*.toml\"",
            "site = [{ host = \"a.example\" }]\n",
            "DIR/sites/a.toml:1:1: 'site' before the first header of an included file: write it below [[site]]",
        ),
        (
            "\"sites/*.toml\"",
            "[policy.main.headers]\nX-More = \"1\"\n",
            "DIR/sites/a.toml:1:9: another file has a [policy.main]",
        ),
        (
            "5",
            "",
            "site.toml:1:11: 'include' must be a string or a list of strings, not the number 5",
        ),
    ] {
        let (status, said) = with(include, included);
        assert_eq!(status, Some(2), "{include} {included}");
        assert!(said.lines().any(|shown| shown.starts_with(line)), "{line}\n{said}");
    }
    // Nothing to include is fine. A folder that is not there yet is a warning.
    assert_eq!(with("\"sites/*.conf\"", "").0, Some(0));
    let (status, said) = with("\"later/*.toml\"", "");
    assert_eq!(status, Some(0));
    assert!(
        said.contains("site.toml:1:11: warning: there is no folder 'DIR/later'; no site is included"),
        "{said}"
    );
    // A warning hides nothing of its line.
    let said = with("[\"later/*.toml\"]", "").1;
    assert!(said.contains("include = [\"later/*.toml\"]"), "{said}");
    // The file itself is none of those that it includes, and a byte order mark is no part of the text.
    let (status, said) = with("\"*.toml\"", "");
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(with("\"sites/*.toml\"", "\u{feff}[policy.other]\n").0, Some(0));
    // A file that two patterns match is included once.
    let site = "[[site]]\nhost = \"a.example\"\n[[site.route]]\nrespond = 204\n";
    folder.write("site.toml", "include = [\"sites/a.toml\", \"sites/*.toml\"]\n");
    folder.write("sites/a.toml", site);
    let (status, said) = check(&folder);
    assert_eq!(
        (status, said.as_str()),
        (Some(0), "site.toml: ok (1 site, 1 route, 1 listener)\n")
    );
}

#[test]
fn landlock_leaves_included_files_readable() {
    let (folder, elsewhere) = (Sites::folder(), Folder::new());
    elsewhere.write("a.toml", "[[site]]\n[[site.route]]\nrespond = \"one\"\n");
    let include = elsewhere.path().display();
    let sites = Sites::start_in(folder, &format!("landlock = true\ninclude = \"{include}/*.toml\"\n"));
    if !sites.said().contains("landlock: ABI") {
        println!("skipped: {}", sites.said());
        return;
    }
    assert_eq!(sites.get("x", "/").text(), "one");
    elsewhere.write("a.toml", "[[site]]\n[[site.route]]\nrespond = \"two\"\n");
    let said = sites.hang_up();
    assert!(said.contains("reloaded"), "{said}");
    wait_for("the other text", || sites.get("x", "/").text() == "two");
}
