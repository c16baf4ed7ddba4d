//! `osier check` names the folders that an application closes by an `.htaccess` and that a route serves.

use std::os::unix::fs::symlink;

use crate::support::{self, Folder};

const DENIED: &str = "<IfModule mod_authz_core.c>\n    Require all denied\n</IfModule>\n";

/// A wiki as it is installed: its script, its data, and uploads of which some are deleted.
fn wiki() -> Folder {
    let folder = Folder::new();
    for path in ["data", "images/deleted", "images/a", "lib"] {
        folder.write(format!("wiki/{path}/x.txt"), "x");
    }
    folder.write("wiki/data/.htaccess", DENIED);
    folder.write("wiki/images/deleted/.htaccess", "Deny from all\n");
    folder.write("wiki/lib/.htaccess", "<Files a.php>\nDeny from all\n</Files>\n");
    folder
}

/// Runs `osier check --strict`. Returns its status and the folders that it names, in order.
fn check(folder: &Folder, text: &str) -> (Option<i32>, Vec<String>) {
    std::fs::write(
        folder.join("site.toml"),
        format!("[[site]]\nhost = \"w.example\"\n{text}"),
    )
    .unwrap();
    let (status, said) = support::check(folder, &["--strict", "site.toml"]);
    let named = |line: &str| {
        let path = line.split("read and '").nth(1)?.split('\'').next()?;
        assert!(
            line.starts_with("site.toml: warning: '") && line.contains("of the site 'w.example' is served"),
            "{line}"
        );
        Some(path.to_owned())
    };
    let mut named: Vec<_> = said.lines().filter_map(named).collect();
    named.sort();
    (status, named)
}

#[test]
fn check_names_the_folders_that_an_htaccess_closes_and_a_route_serves() {
    let folder = wiki();
    let files = "[[site.route]]\nfiles = \"wiki\"\n";
    let php = "[[site.route]]\nfastcgi = { root = \"wiki\", to = \"127.0.0.1:9\", files = true }\n";
    let both = vec!["/data/".to_owned(), "/images/deleted/".to_owned()];
    assert_eq!(check(&folder, files), (Some(2), both.clone()));
    assert_eq!(check(&folder, php), (Some(2), both.clone()));

    let closed = "[[site.route]]\nglob = \"/{data,x}/**\"\nrespond = 404\n";
    let images = "[[site.route]]\npath = \"/images\"\nfiles = \"wiki\"\n";
    assert_eq!(check(&folder, &format!("{closed}{php}")).1, ["/images/deleted/"]);
    // The route of the uploads answers for them, and the scripts' route does not name them again.
    assert_eq!(
        check(&folder, &format!("{closed}{images}{php}")).1,
        ["/images/deleted/"]
    );
    let prefixed = "[[site.route]]\npath = \"/pub\"\nfiles = { root = \"wiki\", strip = true }\n";
    assert_eq!(check(&folder, prefixed).1, ["/pub/data/", "/pub/images/deleted/"]);
}

#[test]
fn check_names_no_folder_that_a_policy_or_another_route_closes() {
    let folder = wiki();
    let rule = "[[site.route]]\nrewrite = { pattern = \"^/(data|images/deleted)/\", to = \"/gone\" }\n";
    for text in [
        "[[site.route]]\npath = \"/data\"\nrespond = 403\n[[site.route]]\npath = \"/images/deleted\"\nrespond = 403\n\
         [[site.route]]\nfiles = \"wiki\"\n",
        "[[site.route]]\nfiles = \"wiki\"\nallow = \"192.0.2.1\"\n",
        "[[site.route]]\nfiles = \"wiki/lib\"\n",
        "[[site.route]]\nfastcgi = { root = \"wiki\", to = \"127.0.0.1:9\" }\n",
        &format!("[[site.route]]\npath = \"/gone\"\nrespond = 404\n{rule}[[site.route]]\nfiles = \"wiki\"\n"),
    ] {
        assert_eq!(check(&folder, text), (Some(0), Vec::new()), "{text}");
    }
}

#[test]
fn check_looks_behind_links_that_a_route_follows() {
    let folder = wiki();
    std::fs::create_dir(folder.join("www")).unwrap();
    symlink(folder.join("wiki"), folder.join("www/w")).unwrap();
    // A circle ends.
    symlink(folder.join("wiki"), folder.join("wiki/lib/again")).unwrap();
    let links = |which: &str| {
        check(
            &folder,
            &format!("[[site.route]]\nfiles = {{ root = \"www\", symlinks = \"{which}\" }}\n"),
        )
        .1
    };
    assert_eq!(links("inside"), Vec::<String>::new());
    assert_eq!(links("owner")[..2], ["/w/data/", "/w/images/deleted/"]);
}
