//! A deploy: another folder under the same path is served without a reload or a restart.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::support::Folder;
use crate::support::sites::{Sites, wait_for};
use testkit::php::{Fpm, Listen};

/// Turns the link `current` to another folder in one step, as `ln -sfn` and `mv -T` do.
fn turn(folder: &Path, to: &str) {
    let next = folder.join("next");
    symlink(to, &next).unwrap();
    fs::rename(&next, folder.join("current")).unwrap();
}

#[test]
fn a_folder_that_is_removed_and_made_again_shows_its_new_files() {
    let folder = Sites::folder();
    folder.write("dist/index.html", "one");
    folder.write("dist/old.txt", "old");
    let sites = Sites::start_in(folder, "[[site]]\ndefault = true\n[[site.route]]\nfiles = \"dist\"\n");
    assert_eq!(sites.get("x", "/").text(), "one");
    assert_eq!(sites.get("x", "/old.txt").text(), "old");
    fs::remove_dir_all(sites.folder.join("dist")).unwrap();
    sites.folder.write("dist/index.html", "two");
    // The requests of the waiting keep every cache in use.
    wait_for("the new index", || sites.get("x", "/").text() == "two");
    wait_for("the end of the old file", || sites.get("x", "/old.txt").status == 404);
    assert!(!sites.said().contains("cannot be opened") || sites.said().contains("is there now"));
}

#[test]
fn a_link_that_is_turned_shows_its_new_folder() {
    let folder = Sites::folder();
    folder.write("r1/index.html", "one");
    folder.write("r2/index.html", "two");
    turn(folder.path(), "r1");
    // A path with `..` is as good as any.
    let file = "[[site]]\ndefault = true\n[[site.route]]\nfiles = \"www/../current\"\n";
    let sites = Sites::start_in(folder, file);
    for (release, text) in [("r1", "one"), ("r2", "two"), ("r1", "one")] {
        turn(sites.folder.path(), release);
        wait_for(release, || sites.get("x", "/").text() == text);
    }
}

#[test]
fn scripts_and_files_come_from_the_same_release() {
    let folder = Sites::folder();
    for release in ["r1", "r2"] {
        folder.write(format!("{release}/index.php"), format!("<?php echo '{release}';"));
        folder.write(format!("{release}/style.css"), release);
        folder.write(
            format!("{release}/sent.php"),
            "<?php header('X-Sendfile: ' . __DIR__ . '/style.css');",
        );
    }
    folder.write("r2/only.php", "<?php echo 'only';");
    turn(folder.path(), "r1");
    let Some(fpm) = Fpm::start(folder.path(), Listen::Unix, "pm.max_children = 2\n") else {
        return;
    };
    let file = format!(
        "[[site]]\ndefault = true\n[[site.route]]\nfastcgi = {{ to = \"{}\", root = \"www/../current\", files = true }}\n",
        fpm.address
    );
    let sites = Sites::start_in(folder, &file);
    let all = || ["/", "/style.css", "/sent.php"].map(|path| sites.get("x", path).text().to_string());
    assert_eq!(all(), ["r1", "r1", "r1"]);
    assert_eq!(sites.get("x", "/only.php").status, 404);
    turn(sites.folder.path(), "r2");
    wait_for("the new release", || all() == ["r2", "r2", "r2"]);
    wait_for("the new script", || sites.get("x", "/only.php").text() == "only");
}

/// Starts with Landlock, or says why it cannot.
fn landlocked(folder: Folder, file: &str) -> Option<Sites> {
    let sites = Sites::start_in(folder, &format!("landlock = true\n{file}"));
    let said = sites.said();
    if said.contains("landlock: ABI") {
        return Some(sites);
    }
    println!("skipped: {said}");
    None
}

#[test]
fn landlock_lets_a_deploy_happen() {
    let folder = Sites::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder.write("app/releases/r1/index.html", "one");
    folder.write("app/releases/r2/index.html", "two");
    folder.write("dist/public/index.html", "one");
    turn(&folder.path().join("app"), "releases/r1");
    let file = "[[site]]\ndefault = true\n[[site.route]]\npath = \"/dist\"\nfiles = { root = \"dist/public\", strip = true }\n\
                [[site.route]]\npath = \"/later\"\nfiles = { root = \"later/a/b\", strip = true }\n\
                [[site.route]]\nfiles = \"app/current\"\n";
    let Some(sites) = landlocked(folder, file) else { return };
    assert_eq!(sites.get("x", "/").text(), "one");
    turn(&sites.folder.join("app"), "releases/r2");
    wait_for("the other release", || sites.get("x", "/").text() == "two");
    fs::remove_dir_all(sites.folder.join("dist/public")).unwrap();
    sites.folder.write("dist/public/index.html", "two");
    wait_for("the new folder", || sites.get("x", "/dist/").text() == "two");
    sites.folder.write("later/a/b/index.html", "there");
    wait_for("the folder that was missing", || {
        sites.get("x", "/later/").text() == "there"
    });
    let said = sites.said();
    let line = said.lines().find(|line| line.contains("may be replaced"));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    for readable in ["/app'", "/app/releases'", "/dist'"] {
        assert!(line.contains(readable), "{readable}: {line}");
    }
}
