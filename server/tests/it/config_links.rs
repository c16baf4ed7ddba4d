//! `symlinks` of `files` and `fastcgi`, in the layouts of the recipes in docs/configuration.md.

use std::os::unix::fs::symlink;

use crate::support::sites::Sites;
use testkit::php::{Fpm, Listen};

#[test]
fn links_inside_are_followed_and_others_are_refused_with_a_reason() {
    let folder = Sites::folder();
    folder.write("secret/key", "secret");
    folder.write("www/data/x.txt", "x");
    let www = folder.join("www");
    symlink(www.join("data"), www.join("absolute")).unwrap();
    symlink("data/x.txt", www.join("relative")).unwrap();
    symlink("../secret", www.join("out")).unwrap();
    symlink("/etc/passwd", www.join("passwd")).unwrap();
    let file = |rule: &str| {
        format!("[[site]]\ndefault = true\n[[site.route]]\nfiles = {{ root = \"www\", listing = true{rule} }}\n")
    };
    let sites = Sites::start_in(folder, &file(""));
    assert_eq!(sites.get("x", "/absolute/x.txt").text(), "x");
    assert_eq!(sites.get("x", "/relative").text(), "x");
    for _ in 0..3 {
        assert_eq!(sites.get("x", "/out/key").status, 404);
        assert_eq!(sites.get("x", "/passwd").status, 404);
    }
    let said = sites.said();
    let www = sites.folder.join("www");
    let line = format!(
        "osier: '{0}/out/key' is not served: the symbolic link '{0}/out' leads to '../secret', out of the folder; symlinks = \
         \"owner\" or \"all\" allows that\n",
        www.display()
    );
    assert_eq!(said.matches(&line).count(), 1, "{said}");
    assert_eq!(said.matches("/passwd' is not served").count(), 1, "{said}");
    // The same user owns the test's links and files, so the rule of owners follows them.
    for rule in [", symlinks = \"owner\"", ", symlinks = \"all\""] {
        assert!(sites.reload(&file(rule)).contains("reloaded"));
        assert_eq!(sites.get("x", "/out/key").text(), "secret", "{rule}");
        assert_eq!(sites.get("x", "/relative").text(), "x", "{rule}");
        assert_eq!(sites.get("x", "/..%2fsecret/key").status, 400, "{rule}");
    }
}

#[test]
fn the_layouts_of_the_recipes_work() {
    let folder = Sites::folder();
    // WordPress as Debian packs it, and its theme links.
    folder.write(
        "share/wordpress/index.php",
        "<?php echo 'front ', $_SERVER['REQUEST_URI'];",
    );
    folder.write("share/javascript/underscore.js", "underscore");
    folder.write("share/wordpress/wp-content/themes/twenty/style.css", "theme");
    folder.write("share/php/getid3.php", "<?php echo 'linked script';");
    folder.write("wp-content/plugins/p/p.php", "<?php echo 'never';");
    folder.write("wp-content/uploads/i.png", "image");
    std::fs::create_dir_all(folder.join("share/wordpress/wp-includes")).unwrap();
    std::fs::create_dir_all(folder.join("wp-content/themes")).unwrap();
    // WordPress in a folder of its own, with a second site.
    folder.write(
        "blog/index.php",
        "<?php echo $_SERVER['SERVER_SOFTWARE'], ' ', $_SERVER['REQUEST_URI'];",
    );
    folder.write(
        "blog/wp-admin/index.php",
        "<?php echo 'admin of ', $_SERVER['REQUEST_URI'];",
    );
    folder.write("blog/wp-login.php", "<?php echo 'login of ', $_SERVER['REQUEST_URI'];");
    folder.write("blog/wp-includes/a.js", "script");
    for never in [
        "wp-content/uploads/2/x.php",
        "wp-content/uploads/2/index.php",
        "wp-content/uploads/x.phtml",
        "wp-config.php.bak",
        "wp-config.php~",
    ] {
        folder.write(format!("blog/{never}"), "<?php echo 'never';");
    }
    folder.write("blog/wp-content/uploads/2/i.png", "image");
    // DokuWiki.
    folder.write("wiki/doku.php", "<?php echo 'doku ', $_SERVER['PATH_INFO'] ?? '';");
    folder.write("wiki/data/pages/start.txt", "never");
    folder.write("wiki/conf/users.auth.php", "<?php echo 'never';");
    // Laravel.
    folder.write("app/public/index.php", "<?php echo 'laravel';");
    folder.write("app/storage/app/public/a.txt", "stored");
    for (to, link) in [
        (
            "../../javascript/underscore.js",
            "share/wordpress/wp-includes/underscore.js",
        ),
        ("../../php/getid3.php", "share/wordpress/wp-includes/getid3.php"),
    ] {
        symlink(to, folder.join(link)).unwrap();
    }
    for (to, link) in [
        ("share/wordpress/wp-content/themes/twenty", "wp-content/themes/twenty"),
        ("app/storage/app/public", "app/public/storage"),
    ] {
        symlink(folder.join(to), folder.join(link)).unwrap();
    }
    let Some(fpm) = Fpm::start(folder.path(), Listen::Unix, "pm.max_children = 2\n") else {
        return;
    };
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md")).unwrap();
    let recipe = |title: &str| {
        let text = document.split(title).nth(1).unwrap().split("```toml\n").nth(1).unwrap();
        text.split("```").next().unwrap().to_string()
    };
    let network = |text: &str| {
        text.split("### WordPress\n")
            .nth(1)
            .unwrap()
            .split("```toml\n")
            .nth(2)
            .unwrap()
            .split("```")
            .next()
            .unwrap()
            .to_string()
    };
    let text = [
        recipe("### WordPress from Debian's package"),
        recipe("### WordPress\n"),
        network(&document).replace("www.example.org", "network.example.org"),
        recipe("### Applications that rely on `.htaccess`"),
        recipe("### Laravel"),
    ];
    let text = text
        .concat()
        .replace("/srv/blog$0", &format!("{}$0", folder.join("blog").display()))
        .replace("/srv/blog", "blog")
        .replace("/srv/wiki", "wiki")
        .replace("/var/lib/wordpress/wp-content", "wp-content")
        .replace("/usr/share/wordpress", "share/wordpress")
        .replace("/srv/app/public", "app/public")
        .replace("unix:/run/php/php-fpm.sock", &fpm.address);
    let sites = Sites::start_in(folder, &text);
    let blog = |path: &str| {
        let reply = sites.get("blog.example.org", path);
        (reply.status, reply.text().to_string())
    };
    for (path, text) in [
        ("/", "front /"),
        ("/2024/hello", "front /2024/hello"),
        ("/wp-includes/underscore.js", "underscore"),
        ("/wp-includes/getid3.php", "linked script"),
        ("/wp-content/themes/twenty/style.css", "theme"),
        ("/wp-content/uploads/i.png", "image"),
    ] {
        assert_eq!(blog(path), (200, text.into()), "{path}: {}", sites.said());
    }
    for path in ["/wp-content/plugins/p/p.php", "/wp-content/plugins/p/p.php/x"] {
        let (status, text) = blog(path);
        assert!(status == 404 && !text.contains("never"), "{path}: {status} {text}");
    }
    for (host, path, text) in [
        ("www", "/two/wp-admin/", "nginx /two/wp-admin/"),
        ("network", "/two/wp-admin/", "admin of /two/wp-admin/"),
        (
            "network",
            "/two/wp-admin/index.php?a",
            "admin of /two/wp-admin/index.php?a",
        ),
        ("network", "/wp-admin/", "admin of /wp-admin/"),
        ("network", "/two/wp-login.php", "login of /two/wp-login.php"),
        ("network", "/two/wp-includes/a.js", "script"),
        ("network", "/two/2024/hello", "nginx /two/2024/hello"),
        ("wiki", "/", "doku "),
        ("wiki", "/doku.php/ns/page", "doku /ns/page"),
    ] {
        assert_eq!(
            sites.get(&format!("{host}.example.org"), path).text(),
            text,
            "{host} {path}"
        );
    }
    let reply = sites.get("network.example.org", "/two/wp-admin");
    assert_eq!((reply.status, reply.field("location")), (301, Some("/two/wp-admin/")));
    for host in ["www", "network"] {
        let get = |path: &str| sites.get(&format!("{host}.example.org"), path);
        assert_eq!(get("/").text(), "nginx /");
        assert_eq!(get("/wp-content/uploads/2/i.png").text(), "image");
        for path in [
            "/wp-content/uploads/2/x.php",
            "/wp-content/uploads/2/x.php/i.png",
            "/wp-content/uploads/2/",
            "/wp-content/uploads/2/index.php",
            "/wp-content/uploads/x.phtml",
            "/wp-config.php.bak",
            "/wp-config.php~",
        ] {
            assert_eq!(get(path).status, 404, "{host} {path}");
        }
    }
    for path in [
        "/data/",
        "/data/pages/start.txt",
        "/data//pages/start.txt",
        "/conf/users.auth.php",
    ] {
        assert_eq!(sites.get("wiki.example.org", path).status, 404, "{path}");
    }
    assert_eq!(sites.get("app.example.org", "/storage/a.txt").text(), "stored");
    assert_eq!(sites.get("app.example.org", "/any").text(), "laravel");
    assert!(!sites.said().contains("is not served"), "{}", sites.said());
}
