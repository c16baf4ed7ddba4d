//! `types`: the `Content-Type` of files by the ends of their names.

use crate::support::check;
use crate::support::sites::Sites;

fn folder() -> crate::support::Folder {
    let folder = Sites::folder();
    for name in ["a.md", "a.tar.gz", "a.gz", "a.xyz", "a.html", "LICENSE"] {
        folder.write(format!("www/{name}"), "x".repeat(3000));
    }
    folder
}

const SITE: &str = "[policy.plain]\ntypes = { md = \"text/x-policy\", xyz = \"text/x-policy\" }\n\
    [[site]]\ndefault = true\ncompress = true\ntypes = { md = \"text/markdown; charset=iso-8859-1\", \"TAR.GZ\" = \"application/x-gtar\", \".gz\" = \"application/x-gzip\" }\n";

#[test]
fn a_route_comes_before_its_policy_and_that_before_the_site() {
    let sites = Sites::start_in(
        folder(),
        &format!(
            "{SITE}[[site.route]]\npath = \"/route\"\npolicy = \"plain\"\ntypes = {{ md = \"application/x-route\", \"*\" = \"text/plain\" }}\n\
             files = {{ root = \"www\", strip = true }}\n\
             [[site.route]]\npath = \"/policy\"\npolicy = \"plain\"\nfiles = {{ root = \"www\", strip = true }}\n\
             [[site.route]]\nfiles = \"www\"\n"
        ),
    );
    for (path, expected) in [
        ("/a.md", "text/markdown; charset=iso-8859-1"),
        ("/a.tar.gz", "application/x-gtar"),
        ("/a.gz", "application/x-gzip"),
        ("/a.html", "text/html; charset=utf-8"),
        ("/LICENSE", "application/octet-stream"),
        ("/policy/a.md", "text/x-policy; charset=utf-8"),
        ("/policy/a.gz", "application/x-gzip"),
        ("/route/a.md", "application/x-route"),
        ("/route/a.xyz", "text/x-policy; charset=utf-8"),
        ("/route/LICENSE", "text/plain; charset=utf-8"),
    ] {
        let reply = sites.get("x", path);
        assert_eq!(
            (reply.status, reply.field("content-type")),
            (200, Some(expected)),
            "{path}"
        );
    }
    // A type of text is compressed like any other.
    let coding = |path: &str| {
        let reply = sites.ask("GET", "x", path, &["Accept-Encoding: gzip"]);
        reply.field("content-encoding").map(str::to_owned)
    };
    let codings = ["/route/LICENSE", "/LICENSE", "/a.tar.gz"].map(coding);
    assert_eq!(codings, [Some("gzip".into()), None, None]);
}

#[test]
fn a_reload_changes_types_at_once() {
    let text = |types: &str| format!("[[site]]\n{types}[[site.route]]\nfiles = \"www\"\n");
    let sites = Sites::start_in(folder(), &text(""));
    let shown = || sites.get("x", "/a.xyz").field("content-type").unwrap().to_owned();
    assert_eq!(shown(), "chemical/x-xyz");
    sites.reload(&text("types = { xyz = \"text/plain\" }\n"));
    assert_eq!(shown(), "text/plain; charset=utf-8");
    let said = sites.reload(&text("types = { xyz = \"text\" }\n"));
    assert!(said.contains("the old configuration stays"), "{said}");
    assert_eq!(shown(), "text/plain; charset=utf-8");
    sites.reload(&text(""));
    assert_eq!(shown(), "chemical/x-xyz");
}

#[test]
fn nonsense_has_its_place_and_its_remedy() {
    let folder = folder();
    folder.write(
        "site.toml",
        "[[site]]\n[site.types]\nmd = \"text\"\n\"a/b\" = \"text/plain\"\nMD = \"text/plain\"\n\".Md\" = \"text/plain\"\n\
         x = \"text/plain\\r\\nX: y\"\ntar.gz = \"application/gzip\"\nn = 7\ncs = \"text/html; utf-8\"\nv = \"${HOME}\"\n\"\" = \"a/b\"\n\
         [[site.route]]\npath = \"/r\"\ntypes = { md = \"text/plain\" }\nrespond = \"x\"\n\
         [[site.route]]\npath = \"/f\"\nfiles = { root = \"www\", types = { md = \"text/plain\" } }\n\
         [[site.route]]\npath = \"/d\"\ndefault_type = \"text/plain\"\nfiles = \"www\"\n\
         [[site.route]]\npath = \"/w\"\ntypes = \"text/plain\"\nfiles = \"www\"\n\
         [[site.route]]\npath = \"/p\"\ntypes = { md = \"text/plain\" }\nproxy = \"127.0.0.1:1\"\n",
    );
    let (_, said) = check(&folder, &["site.toml"]);
    for line in [
        "site.toml:3:6: 'md' cannot be \"text\": a type is written KIND/NAME, \"text/plain\" for example",
        "site.toml:4:1: 'a/b' cannot be a suffix: it is the end of a name, without '/', '*' and control characters; write \"md\"",
        "site.toml:6:1: the suffix 'md' has a type already",
        "site.toml:7:5: 'x' cannot be \"text/plain\\r\\nX: y\": a type is written KIND/NAME",
        "site.toml:8:1: 'tar' must be a type, not a table; a suffix with a dot needs quotes: \"tar.gz\"",
        "site.toml:9:5: 'n' must be a type, \"text/plain\" for example, not the number 7",
        "site.toml:10:6: 'cs' cannot be \"text/html; utf-8\": behind the ';' of a type stands NAME=VALUE",
        "site.toml:11:5: 'v': a type is written KIND/NAME",
        "site.toml:12:1: '' cannot be a suffix: it is empty",
        "'types' has no effect here: write 'content_type' in the table of 'respond'",
        "unknown key 'types' in [site.route.files]; it belongs beside 'files', into [[site.route]]",
        "unknown key 'default_type' in [[site.route]]; write types = { \"*\" = \"text/plain\" }",
        "'types' must be a table, not \"text/plain\"; write types = { SUFFIX = \"TYPE\" }",
        "'types' has no effect here: it is for the files of 'files' and 'fastcgi'",
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }
}
