//! A `fastcgi` route: scripts, the files beside them, a front controller; and that a reload keeps the application's place.

#[path = "../../web/tests/common/php.rs"]
mod php;
mod support;

/// What `php.rs` asks of the tests it was written for.
mod common {
    pub const PATIENCE: std::time::Duration = crate::support::DEADLINE;
}

use php::{Fpm, Listen};
use support::sites::Sites;

fn fpm(folder: &support::Folder) -> Option<Fpm> {
    folder.write("app/index.php", "<?php echo 'front ', $_SERVER['REQUEST_URI'];");
    folder.write(
        "app/info.php",
        "<?php echo $_SERVER['SCRIPT_NAME'], ' ', $_SERVER['PATH_INFO'] ?? '', ' ', getenv('MODE');",
    );
    folder.write("app/style.css", "a{}");
    Fpm::start(folder.path(), Listen::Unix, "pm = static\npm.max_children = 2\n")
}

fn route(fpm: &Fpm, more: &str) -> String {
    format!(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/fixed\"\nrespond = \"@\"\n\
         [[site.route]]\nfastcgi = {{ to = \"{}\", root = \"app\", {more} }}\n",
        fpm.address
    )
}

#[test]
fn scripts_files_and_a_front_controller() {
    let folder = Sites::folder();
    let Some(fpm) = fpm(&folder) else { return };
    let text = route(
        &fpm,
        "files = true, front = \"/index.php\", params = { MODE = \"test\" }",
    );
    let sites = Sites::start_in(folder, &text);
    assert_eq!(sites.get("x", "/info.php/more").text(), "/info.php /more test");
    assert_eq!(sites.get("x", "/style.css").text(), "a{}");
    assert_eq!(sites.get("x", "/any/page?q=1").text(), "front /any/page?q=1");
    assert_eq!(sites.get("x", "/").text(), "front /");
    // The same over a reload that changes another route.
    assert!(sites.reload(&text.replace('@', "new")).contains("reloaded"));
    assert_eq!(sites.get("x", "/fixed").text(), "new");
    assert_eq!(sites.get("x", "/info.php").text(), "/info.php  test");
}

#[test]
fn an_application_that_is_away_has_an_error_page() {
    let folder = Sites::folder();
    let Some(mut fpm) = fpm(&folder) else { return };
    let text = route(&fpm, "files = true").replacen(
        "default = true\n",
        "default = true\nerror_pages = { 502 = \"404.html\", 404 = \"404.html\" }\n",
        1,
    );
    let sites = Sites::start_in(folder, &text);
    assert_eq!(sites.get("x", "/info.php").status, 200);
    fpm.stop();
    let reply = sites.get("x", "/info.php");
    assert_eq!((reply.status, reply.text()), (502, "<h1>lost</h1>"));
}
