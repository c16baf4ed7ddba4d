//! Every configuration in the documents is valid.

use crate::support::certs::Authority;
use crate::support::sites::Sites;
use crate::support::{Folder, osier};
use std::path::Path;

fn check(folder: &Folder, name: &str) -> Result<(), String> {
    // A recipe names folders of the system, which need not be there.
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    let names_system = text.contains("\"/run/") || text.contains("\"unix:/run/") || text.contains("\"/dev/log\"");
    let strict = (!names_system).then_some("--strict");
    let output = osier()
        .arg("check")
        .args(strict)
        .arg(name)
        .current_dir(folder.path())
        .output()
        .unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8(output.stderr).unwrap())
}

/// The keys of all handlers. The error for a route without a handler lists them.
fn handlers(folder: &Folder) -> Vec<String> {
    folder.write("none.toml", "[[site]]\ndefault = true\n[[site.route]]\n");
    let said = check(folder, "none.toml").unwrap_err();
    let list = said.lines().find_map(|line| line.split("give it one of ").nth(1));
    let list = list.unwrap_or_else(|| panic!("{said}"));
    list.split(", ").map(String::from).collect()
}

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn the_examples_of_the_documentation() {
    let text = std::fs::read_to_string(project().join("docs/configuration.md")).unwrap();
    let folder = Folder::new();
    folder.write("www/index.html", "");
    folder.write("404.html", "");
    folder.write("maintenance.html", "");
    folder.write("keys.json", include_str!("../../../web/tests/it/jwt/keys.json"));
    let hash = "$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW";
    folder.write("passwords", format!("ada:{hash}\nbob:{hash}\n"));
    folder.write("sites/.keep", "");
    folder.write("private/.keep", "");
    let authority = Authority::new("clients");
    folder.write("clients.pem", &authority.pem);
    authority.write(&folder, "cert", &["example.org", "*.example.org"]);
    std::fs::rename(folder.join("cert.key"), folder.join("key.pem")).unwrap();
    let blocks: Vec<&str> = text
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(blocks.len() >= 8, "{}", blocks.len());
    for block in blocks {
        folder.write("block.toml", block);
        check(&folder, "block.toml").unwrap_or_else(|why| panic!("{block}\n{why}"));
    }
}

#[test]
fn the_examples_of_rules() {
    let text = std::fs::read_to_string(project().join("docs/rewrite.md")).unwrap();
    let folder = Sites::folder();
    let blocks = text
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap());
    for block in blocks.filter(|block| block.contains("[[site.route]]")) {
        folder.write("routes.toml", format!("[[site]]\n{block}"));
        check(&folder, "routes.toml").unwrap_or_else(|why| panic!("{block}\n{why}"));
    }
    let examples = text.rsplit("```toml\n").next().unwrap().split("```").next().unwrap();
    let rules: Vec<&str> = examples.split("\n\n").collect();
    assert!(rules.len() >= 5, "{}", rules.len());
    for rule in &rules {
        folder.write("rule.toml", format!("[[site]]\n[[site.route]]\n{rule}\n"));
        check(&folder, "rule.toml").unwrap_or_else(|why| panic!("{rule}\n{why}"));
    }
    // Requests for what the rules have made of them do not loop.
    let rule = |word: &str| rules.iter().find(|rule| rule.contains(word)).unwrap();
    let front = rule("/index.php/").replace("/srv/site", folder.join("www").to_str().unwrap());
    let config = format!(
        "[[site]]\n[[site.route]]\npath = \"/twice\"\n{}\n[[site.route]]\n{front}\n[[site.route]]\npath = \"/index.php\"\n\
         respond = {{ body = \"php $path\", content_type = \"text/plain\" }}\n[[site.route]]\nfiles = \"www\"\n",
        rule("again")
    );
    let sites = Sites::start_in(folder, &config);
    for (path, expected) in [
        ("/a.txt", "the file a"),
        ("/articles/1", "php /index.php/articles/1"),
        ("/", "php /index.php/"),
        ("/index.php", "php /index.php"),
        ("/twice/twice", "php /index.php/twice"),
    ] {
        assert_eq!(sites.get("x", path).text(), expected, "{path}");
    }
}

#[test]
fn the_sites_of_the_readme() {
    let text = std::fs::read_to_string(project().join("README.md")).unwrap();
    let folder = Folder::new();
    folder.write("public/index.html", "");
    Authority::new("clients").write(&folder, "fullchain", &["example.org"]);
    std::fs::rename(folder.join("fullchain.key"), folder.join("privkey.pem")).unwrap();
    let blocks = text
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap());
    let mut sites = 0;
    for block in blocks.filter(|block| block.contains("[[site]]")) {
        sites += 1;
        folder.write("block.toml", block);
        check(&folder, "block.toml").unwrap_or_else(|why| panic!("{block}\n{why}"));
    }
    assert!(sites >= 2, "{sites}");
}

#[test]
fn every_key_that_the_checker_knows_is_documented() {
    let text = std::fs::read_to_string(project().join("docs/configuration.md")).unwrap();
    let folder = Folder::new();
    // For an unknown key that resembles none, the error of each table lists the known keys.
    let odd = "zzzzzzzz = 1\n";
    let site = "[[site]]\ndefault = true\n";
    let route = format!("{site}[[site.route]]\n");
    let tables = [
        odd.to_string() + site,
        format!("[[listen]]\naddress = \"81\"\n{odd}{site}"),
        format!("[[listen]]\naddress = \"81\"\ntls = {{ zzzzzzzz = 1 }}\n{site}"),
        format!("[[listen]]\naddress = \"81\"\nhttp2 = {{ zzzzzzzz = 1 }}\n{site}"),
        format!("{site}tls = {{ zzzzzzzz = 1 }}\n"),
        format!("{site}[shared]\nredis = \"redis://a\"\n{odd}"),
        format!("{site}[acme]\n{odd}"),
        format!("{site}hsts = {{ zzzzzzzz = 1 }}\n"),
        format!("{site}{odd}"),
        format!("{route}{odd}"),
        format!("error_log = {{ zzzzzzzz = 1 }}\n{route}"),
        format!("error_log = {{ syslog = {{ to = \"127.0.0.1:1\", zzzzzzzz = 1 }} }}\n{route}"),
    ];
    let policies = [
        "rate",
        "auth",
        "forward_auth",
        "jwt",
        "cors",
        "limits",
        "cache",
        "log",
        "request_id",
    ]
    .map(String::from);
    let inner: Vec<String> = handlers(&folder)
        .iter()
        .chain(&policies)
        .map(|key| format!("{route}{key} = {{ zzzzzzzz = 1 }}\n"))
        .collect();
    let (mut known, mut missing) = (0, Vec::new());
    for table in tables.iter().chain(&inner) {
        folder.write("t.toml", table);
        let said = check(&folder, "t.toml").unwrap_err();
        let list = said.lines().find_map(|line| line.split("known keys are ").nth(1));
        // A handler whose value cannot be a table has no keys of its own.
        if list.is_none() && said.contains(", not a table") {
            continue;
        }
        for key in list.unwrap_or_else(|| panic!("{table}\n{said}")).split(", ") {
            known += 1;
            let places = [
                format!("`{key}`"),
                format!("`{key}."),
                format!(".{key}`"),
                format!("{key} = "),
                format!("[{key}]"),
                format!(".{key}]"),
                format!("{key}, "),
                format!(", {key}"),
            ];
            if !places.iter().any(|place| text.contains(place.as_str())) {
                missing.push(format!("{key} of\n{table}"));
            }
        }
    }
    assert!(missing.is_empty(), "not documented: {}", missing.join("\n"));
    assert!(known > 80, "{known}");
}

#[test]
fn each_number_of_the_reference_has_bounds_and_each_key_a_default() {
    let text = std::fs::read_to_string(project().join("docs/configuration.md")).unwrap();
    let (mut columns, mut rows) = (None, 0);
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let column = |name| cells.iter().position(|cell| *cell == name);
        if !line.starts_with('|') {
            columns = None;
        } else if cells[1] == "key" {
            columns = column("type").zip(column("default"));
        } else if let Some((kind, default)) = columns
            && !cells[1].starts_with('-')
            && !cells[kind].starts_with("as for ")
        {
            rows += 1;
            let has_bounds = !["number", "integer"].contains(&cells[kind]);
            assert!(has_bounds && !cells[default].is_empty(), "{line}");
        }
    }
    assert!(rows > 150, "{rows}");
}

#[test]
fn the_documentation_lists_every_handler() {
    let text = std::fs::read_to_string(project().join("docs/configuration.md")).unwrap();
    let start = "A route has exactly one of the handlers ";
    let sentence = text
        .split(start)
        .nth(1)
        .unwrap_or_else(|| panic!("no sentence begins with {start:?}"));
    let sentence = sentence.split('.').next().unwrap();
    let mut listed: Vec<&str> = sentence.split('`').skip(1).step_by(2).collect();
    let mut known = handlers(&Folder::new());
    listed.sort_unstable();
    known.sort_unstable();
    assert_eq!(listed, known, "docs/configuration.md: {start}{sentence}");
}

/// The files of the packages, with the folders of an installed system put here.
#[test]
fn the_files_of_the_packages() {
    let folder = Folder::new();
    folder.write("www/index.html", "");
    for file in ["packaging/site.toml", "packaging/docker/site.toml"] {
        let text = std::fs::read_to_string(project().join(file)).unwrap();
        let here = text.replace("/var/log/osier/", "").replace("/run/osier/", "");
        let here = here.replace("/srv/www", "www");
        folder.write("site.toml", here);
        check(&folder, "site.toml").unwrap_or_else(|why| panic!("{file}: {why}"));
    }
}

#[test]
fn the_sample() {
    let folder = Folder::new();
    folder.write(
        "site.toml",
        std::fs::read(project().join("examples/site.toml")).unwrap(),
    );
    check(&folder, "site.toml").unwrap();
}

/// The edges of `examples/arena/`, with the folders of the benchmark put here.
#[test]
fn the_edges_of_the_arena() {
    let folder = Folder::new();
    folder.write("static/.keep", "");
    Authority::new("arena").write(&folder, "server", &["localhost"]);
    for name in ["gateway.toml", "production-stack.toml"] {
        let text = std::fs::read_to_string(project().join("examples/arena").join(name)).unwrap();
        let here = text
            .replace("${ARENA_CERTS:-/certs}/server.crt", "server.pem")
            .replace("${ARENA_CERTS:-/certs}/", "")
            .replace("${ARENA_DATA:-/data}/", "");
        folder.write(name, here);
        check(&folder, name).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}
