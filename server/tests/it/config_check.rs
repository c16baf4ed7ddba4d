//! `osier check`: it reports all mistakes of a file, each with its place, the expected value and a suggestion, and exits with 2.

use crate::support::{Folder, make_fifo, osier};
use std::process::Command;

/// Runs `osier check site.toml` in a folder with `www/`, `users` and `404.html`. Returns the status and the output.
pub fn check_with(text: &str, prepare: impl FnOnce(&mut Command)) -> (i32, String) {
    let folder = Folder::new();
    folder.write("www/index.html", "hi");
    folder.write("users", "");
    folder.write("404.html", "gone");
    make_fifo(&folder.join("fifo"));
    folder.write("site.toml", text);
    let mut command = osier();
    command.args(["check", "site.toml"]).current_dir(folder.path());
    prepare(&mut command);
    let output = command.output().unwrap();
    let (stdout, stderr) = (output.stdout, output.stderr);
    let printed = String::from_utf8(if stderr.is_empty() { stdout } else { stderr }).unwrap();
    // The temporary folder may be reached by a link: both names are the test's.
    let real = folder.path().canonicalize().unwrap();
    let printed = printed.replace(real.to_str().unwrap(), "DIR");
    let printed = printed.replace(folder.path().to_str().unwrap(), "DIR");
    (output.status.code().unwrap(), printed)
}

pub fn check(text: &str) -> (i32, String) {
    check_with(text, |_| {})
}

/// The first lines of each mistake, without `site.toml:`.
pub fn mistakes(text: &str) -> Vec<String> {
    let (status, printed) = check(text);
    assert_eq!(status, 2, "{text}\n{printed}");
    let lines = printed.lines().filter_map(|line| line.strip_prefix("site.toml:"));
    lines.map(str::to_string).collect()
}

pub const SITE: &str = "[[site]]\ndefault = true\n";
const ROUTE: &str = "[[site.route]]\nfiles = \"www\"\n";
/// The keys of all handlers, as messages list them. A new handler is added here and nowhere else in this file.
pub const HANDLERS: &str = "files, fastcgi, proxy, redirect, respond, rewrite, chat, welcome";

#[test]
fn a_reader_that_has_gone_does_not_change_the_status() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (status, printed) = check_with(&format!("{SITE}wrong = 1\n"), |command| {
        command.stderr(writer);
    });
    assert_eq!((status, &*printed), (2, ""));
}

#[test]
fn a_good_file_is_counted() {
    for (text, summary) in [
        (format!("{SITE}{ROUTE}"), "1 site, 1 route, 1 listener"),
        (
            format!(
                "[[listen]]\naddress = \"127.0.0.1:1\"\n[[listen]]\naddress = \"unix:x.sock\"\n{SITE}\
                 [[site.route]]\npath = \"/a\"\nrespond = 404\n{ROUTE}[[site]]\nhost = \"example.org\"\n{ROUTE}"
            ),
            "2 sites, 3 routes, 2 listeners",
        ),
    ] {
        assert_eq!(check(&text), (0, format!("site.toml: ok ({summary})\n")), "{text}");
    }
}

#[test]
fn a_small_site_is_six_lines() {
    let text = "[[site]]\ndefault = true\n\n[[site.route]]\nfiles = \"www\"\n";
    assert!(text.lines().count() <= 6);
    assert_eq!(check(text).0, 0);
}

#[test]
fn the_form_of_a_message() {
    let text = format!("{SITE}{ROUTE}[[site.route]]\n  pat = \"/api\"\n  methods = \"POST\"\n");
    let expected = format!(
        "site.toml:5:1: [[site.route]] has no handler: give it one of {HANDLERS}\n  \
         5 | [[site.route]]\n    \
         | ^^^^^^^^^^^^^^\n\
         site.toml:6:3: unknown key 'pat' in [[site.route]]; did you mean 'path'?\n  \
         6 |   pat = \"/api\"\n    \
         |   ^^^\n"
    );
    assert_eq!(check(&text), (2, expected));
}

/// A bad file, and the messages it gets, in order and none beside them.
pub type Case<'a> = (&'a str, &'a [&'a str]);

/// `@site` and `@route` stand for a site and a route with nothing wrong, on two lines each.
pub fn run(cases: &[Case<'_>]) {
    let mut wrong = String::new();
    for (text, expected) in cases {
        let text = text.replace("@site\n", SITE).replace("@route\n", ROUTE);
        let found = mistakes(&text);
        if found != *expected {
            wrong.push_str(&format!("{text}\nfound    {found:#?}\nexpected {expected:#?}\n\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_top_of_a_file() {
    run(&[
        (
            "user = \"no such user\"\nchroot = \"www\"\n@site\n[[site.route]]\npath = \"/x\"\nfiles = \"www\"\n[[site.route]]\n\
             respond = { file = \"users\" }\n",
            &[
                "1:1: user = \"no such user\": /etc/passwd has no such user; name one, or give its number",
                "9:20: 'DIR/users' is outside of chroot 'DIR/www'",
            ],
        ),
        (
            "group = \"root\"\nchroot = \"www\"\n@site\n[[site.route]]\nfiles = \"www\"\n",
            &["2:1: chroot needs user: root can leave a chroot"],
        ),
        (
            "group = \"root\"\n@site\n@route\n",
            &["1:1: group needs user: without it, the process stays root"],
        ),
        ("", &["1:1: there is no [[site]]: nothing would be served"]),
        (
            "worker = 2\n@site\n@route\n",
            &["1:1: unknown key 'worker' in the file; did you mean 'workers'?"],
        ),
        (
            "workers = 0\n@site\n@route\n",
            &["1:11: 'workers' must be a whole number from 1 to 1024, not the number 0"],
        ),
        (
            "workers = \"2\"\n@site\n@route\n",
            &["1:11: 'workers' must be a whole number from 1 to 1024, not \"2\""],
        ),
        (
            "memory = \"0\"\n@site\n@route\n",
            &[
                "1:10: 'memory' must be at least \"1MiB\", not \"0\"; leave it out for nine tenths of the system's memory",
            ],
        ),
        (
            "memory = 1048575\n@site\n@route\n",
            &[
                "1:10: 'memory' must be at least \"1MiB\", not the number 1048575; leave it out for nine tenths of the system's memory",
            ],
        ),
        (
            "user = 5\ndrain = \"10\"\n@site\n@route\n",
            &[
                "1:8: 'user' must be a string, not the number 5; write \"5\"",
                "2:9: 'drain' must be a duration like \"10s\", \"1m30s\" or \"500ms\", not \"10\"; write \"10s\"",
            ],
        ),
        (
            "chroot = \"none\"\nlog = \"xml\"\n@site\n@route\n",
            &[
                "1:10: there is no folder 'DIR/none'; make it first",
                "2:7: 'log' must be \"combined\", \"json\", \"off\", a template like \"$client $path $status\", or { file = \"access.log\" }, not \"xml\"",
            ],
        ),
        (
            "[log]\nfile = \"none/access.log\"\nformat = \"jsn\"\n@site\n@route\n",
            &[
                "2:8: there is no folder 'DIR/none'; make it first",
                "3:10: 'format' must be \"combined\", \"json\", or a template like \"$client $path $status\", not \"jsn\"; did you mean \"json\"?",
            ],
        ),
        (
            "[admin]\n@site\n@route\n",
            &[
                "1:1: [admin] lacks 'address': where /health, /metrics and /fibers are served, \"127.0.0.1:9090\" for example",
            ],
        ),
        (
            "[listen]\naddress = \"127.0.0.1:1\"\n@site\n@route\n",
            &["1:1: [listen] must be written [[listen]]: there may be several"],
        ),
        (
            "site = 1\n",
            &["1:8: 'site' must be tables, each begun by [[site]], not the number 1"],
        ),
    ]);
}

#[test]
fn not_toml_at_all() {
    run(&[
        (
            "a = \n[s]\nb = 1\nb = 2\n[[site]\n",
            &[
                "1:5: string values must be quoted, expected literal string",
                "4:1: 'b' is set twice; the first is in line 3",
                "5:8: unclosed array table, expected `]`",
            ],
        ),
        (
            "x = \"abc\n@site\n@route\n",
            &["1:9: invalid basic string, expected `\"`"],
        ),
        // A key that is there twice hides no other mistake.
        (
            "@site\n[[site.route]]\nfiles = \"www\"\nfiles = \"none\"\nfils = 1\n[[site.route]]\n",
            &[
                "5:1: 'files' is set twice; the first is in line 4",
                "6:1: unknown key 'fils' in [[site.route]]; did you mean 'files'?",
                &format!("7:1: [[site.route]] has no handler: give it one of {HANDLERS}"),
            ],
        ),
    ]);
    let twice = "auth = { users = { ada = \"secret\", ada = \"secret\" } }\n";
    // Alone, and with an error after which nothing else is read.
    for end in ["", "broken\n"] {
        let (status, said) = check(&format!("{SITE}{twice}{ROUTE}{end}"));
        assert_eq!(status, 2);
        assert!(
            said.contains("'ada' is set twice") && !said.contains("secret"),
            "{said}"
        );
    }
}

#[test]
fn listeners() {
    run(&[
        (
            "[[listen]]\nadress = \"127.0.0.1:1\"\n@site\n@route\n",
            &[
                "1:1: [[listen]] lacks 'address': \"127.0.0.1:8080\", \"unix:/run/osier.sock\" or \"systemd:NAME\"",
                "2:1: unknown key 'adress' in [[listen]]; did you mean 'address'?",
            ],
        ),
        (
            "[[listen]]\naddress = \"127.0.0.1:70000\"\n[[listen]]\naddress = \"unix:/nowhere/x\"\n@site\n@route\n",
            &[
                "2:11: 'address' cannot be \"127.0.0.1:70000\": 70000 is not a port (1 to 65535)",
                "4:11: 'address' cannot be \"unix:/nowhere/x\": there is no folder '/nowhere'; make it first",
            ],
        ),
        (
            "[[listen]]\naddress = \"unx:/run/x\"\n[[listen]]\naddress = \"systemd:\"\n@site\n@route\n",
            &[
                "2:11: 'address' cannot be \"unx:/run/x\": write HOST:PORT, [IPV6]:PORT, :PORT or PORT; or \"unix:PATH\", \
                 \"systemd:NAME\"; did you mean \"unix:\"?",
                "4:11: 'address' cannot be \"systemd:\": name the socket as its unit does (FileDescriptorName=)",
            ],
        ),
        (
            "[[listen]]\naddress = \"127.0.0.1:81\"\n[[listen]]\naddress = \":81\"\n@site\n@route\n",
            &["4:11: '0.0.0.0:81' is already in use by another [[listen]] (line 2)"],
        ),
        (
            "[[listen]]\nname = \"a\"\naddress = \"unix:x\"\n[[listen]]\naddress = \"unix:x\"\n[[listen]]\nname = \"a\"\n\
             address = \"81\"\n@site\n@route\n",
            &[
                "5:11: 'unix:DIR/x' is already in use by another [[listen]] (line 3)",
                "7:8: another [[listen]] is named 'a' (line 2)",
            ],
        ),
        (
            "[[listen]]\naddress = \"unix:x\"\n[[listen]]\naddress = \"unix:www/../x\"\n@site\n@route\n",
            &["4:11: 'unix:DIR/www/../x' is already in use by another [[listen]] (line 2)"],
        ),
        (
            "[[listen]]\naddress = \"127.0.0.1:81\"\n[[listen]]\naddress = \"[::ffff:127.0.0.1]:81\"\n@site\n@route\n",
            &["4:11: '[::ffff:127.0.0.1]:81' is already in use by another [[listen]] (line 2)"],
        ),
        (
            "[admin]\naddress = \"81\"\n[[listen]]\naddress = \"127.0.0.1:81\"\n@site\n@route\n",
            &["2:11: [admin] needs an address of its own: '127.0.0.1:81' is used by a [[listen]]"],
        ),
        (
            "[[listen]]\naddress = \"81\"\nmode = \"0660\"\nproxy_protocol = [\"10.0.0.1/8\", \"me\"]\nmax_connections = 0\n\
             timeouts = { idle = \"0s\", heder = \"1s\" }\nhead = { fields = 1000 }\n@site\n@route\n",
            &[
                "3:1: 'mode' is only for Unix sockets (address = \"unix:…\")",
                "4:19: 'proxy_protocol' cannot be \"10.0.0.1/8\": it has bits behind its prefix; did you mean \
                 \"10.0.0.0/8\"?",
                "4:33: 'proxy_protocol' cannot be \"me\": write an address or a network, \"10.0.0.0/8\" or \"::1\", or \"unix\" for clients of Unix sockets",
                "5:19: 'max_connections' must be a whole number from 1 to 10000000, not the number 0",
                "6:21: 'idle' must be longer than 0s",
                "6:27: unknown key 'heder' in [listen.timeouts]; did you mean 'header'?",
                "7:19: 'fields' must be a whole number from 1 to 100, not the number 1000",
            ],
        ),
        (
            "[[listen]]\naddress = \"81\"\nproxy_protocol = true\n@site\n@route\n",
            &[
                "3:18: 'proxy_protocol' names the balancers that send the header; write proxy_protocol = [\"10.0.0.0/8\"]",
            ],
        ),
        (
            "[[listen]]\nname = \"inner\"\naddress = \"81\"\n[[listen]]\naddress = \"82\"\n@site\nlisten = \"inner\"\n@route\n",
            &["5:11: no site uses the listener '127.0.0.1:82': name it in the 'listen' of a site"],
        ),
    ]);
}

#[test]
fn an_address_that_cannot_be_opened_is_a_warning() {
    let text = format!("[[listen]]\naddress = \"unix:users\"\n{SITE}{ROUTE}");
    let (status, printed) = check(&text);
    let warning = "site.toml:2:11: warning: 'DIR/users' is no socket; the server does not start while it is there";
    assert!(status == 0 && printed.starts_with(warning), "{printed}");
    // TEST-NET-1 of RFC 5737, and a link-local address without its interface.
    for address in ["192.0.2.1", "[fe80::1]", "[fe80::1%1]"] {
        let text = format!("[admin]\naddress = \"{address}:81\"\n{SITE}{ROUTE}");
        let (status, printed) = check(&text);
        let shown = address.trim_matches(['[', ']']);
        let warning = format!("site.toml:2:11: warning: this machine does not have the address {shown}; ");
        assert!(status == 0 && printed.starts_with(&warning), "{printed}");
    }
}

#[test]
fn link_local_addresses_of_two_interfaces_are_two() {
    let listen = |interface: u32| format!("[[listen]]\naddress = \"[fe80::1%{interface}]:81\"\n");
    let of = |first, second| format!("{}{}{SITE}{ROUTE}", listen(first), listen(second));
    let (status, printed) = check(&of(1, 2));
    assert!(status == 0 && !printed.contains("already in use"), "{printed}");
    let mistakes = mistakes(&of(1, 1));
    let is_told = |mistake: &String| mistake.contains("'[fe80::1%1]:81' is already in use");
    assert!(mistakes.iter().any(is_told), "{mistakes:?}");
}

#[test]
fn a_link_local_address_of_this_machine_is_no_warning() {
    let addresses = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    // Address, number of the interface, length of the prefix, scope, and so on; all in hexadecimal.
    let mut own = addresses.lines().filter_map(|line| {
        let mut parts = line.split_ascii_whitespace();
        let address = parts.next().filter(|address| address.starts_with("fe80"))?;
        let interface = u32::from_str_radix(parts.next()?, 16).ok()?;
        let address = std::net::Ipv6Addr::from(u128::from_str_radix(address, 16).ok()?);
        Some(format!("[{address}%{interface}]:81"))
    });
    let Some(own) = own.next() else {
        println!("skipped: no interface has a link-local address");
        return;
    };
    let (status, printed) = check(&format!("[admin]\naddress = \"{own}\"\n{SITE}{ROUTE}"));
    assert!(status == 0 && !printed.contains("does not have"), "{own}: {printed}");
}

#[test]
fn a_root_folder_needs_a_state_folder_inside() {
    let text = "user = \"65534\"\ngroup = \"65534\"\nchroot = \"www\"\n[[listen]]\naddress = \"81\"\ntls = true\n\
                [[site]]\nhost = \"a.test\"\ntls = \"internal\"\n[[site.route]]\nrespond = 204\n";
    // systemd sets it for the server, and the shell of the check may lack it.
    let checked = |text: &str, state: Option<&str>| {
        check_with(text, |command| {
            let folder = command.get_current_dir().unwrap().to_owned();
            match state {
                Some(state) => command.env("STATE_DIRECTORY", folder.join(state)),
                None => command.env_remove("STATE_DIRECTORY"),
            };
        })
    };
    let (status, printed) = checked(text, Some("outside"));
    let outside = "site.toml:3:1: the certificates need a state folder, and 'DIR/outside' is outside of chroot";
    assert!(status == 2 && printed.starts_with(outside), "{printed}");
    let (status, printed) = checked(text, None);
    let outside =
        "site.toml:3:1: warning: the certificates need a state folder, and '/var/lib/osier' is outside of chroot";
    assert!(status == 0 && printed.starts_with(outside), "{printed}");
    let with_state = format!("state = \"www/state\"\n{text}");
    for (text, state) in [(text, Some("www/state")), (&with_state, None)] {
        let (status, printed) = checked(text, state);
        assert!(status == 0 && !printed.contains("state folder"), "{printed}");
    }
}

#[test]
fn the_folder_of_a_cache_must_be_one_that_can_be_made() {
    let folder = Folder::new();
    std::os::unix::fs::symlink("nowhere", folder.join("link")).unwrap();
    let text = format!("{SITE}cache = {{ disk = \"link\" }}\n[[site.route]]\nproxy = \"127.0.0.1:9\"\n");
    folder.write("site.toml", text);
    let (status, printed) = crate::support::check(&folder, &["site.toml"]);
    assert_eq!(status, Some(2), "{printed}");
    assert!(printed.contains("there is no folder"), "{printed}");
}

#[test]
fn sites() {
    run(&[
        (
            "[[listen]]\naddress = \"81\"\nuser = \"nobody\"\n@site\nworkers = 2\npath = \"/x\"\n[[site.route]]\n\
             error_pages = { 404 = \"users\" }\nlog = \"access.log\"\nchat = true\n",
            &[
                "3:1: unknown key 'user' in [[listen]]; it belongs to the top of the file, before the first table",
                "6:1: unknown key 'workers' in [[site]]; it belongs to the top of the file, before the first table",
                "7:1: unknown key 'path' in [[site]]; it belongs to [[site.route]]",
                "9:1: unknown key 'error_pages' in [[site.route]]; it belongs to [[site]]",
                "10:7: 'log' must be \"combined\", \"json\", \"off\", a template like \"$client $path $status\", or { file = \"access.log\" }, not \"access.log\"",
            ],
        ),
        (
            "[[site]]\ndefault = false\n@route\n",
            &["1:1: [[site]] has no host: give it host = \"example.org\" or default = true"],
        ),
        (
            "[[site]]\n@route\n[[site]]\n@route\n",
            &[
                "1:1: [[site]] has no host: give it host = \"example.org\" or default = true",
                "4:1: [[site]] has no host: give it host = \"example.org\" or default = true",
            ],
        ),
        (
            "[[site]]\nhosts = \"example.org\"\n@route\n",
            &["2:1: unknown key 'hosts' in [[site]]; did you mean 'host'?"],
        ),
        (
            "@site\n",
            &["1:1: [[site]] has no [[site.route]]: it would answer every request with 404"],
        ),
        (
            "@site\n@route\n@site\n@route\n",
            &["6:1: there is a default site already (line 2)"],
        ),
        (
            "[[site]]\nhost = [\"Example.org\", \"*.example.org\"]\n@route\n[[site]]\nhost = [\"example.org\"]\n@route\n",
            &["6:9: host 'example.org' has a site already (line 2)"],
        ),
        (
            "[[site]]\nhost = [\"a.*.org\", \"http://x\", \"a b\", \"*\", \"[::1\", \"ü.de\", 5]\n@route\n",
            &[
                "2:9: 'host' cannot be \"a.*.org\": a '*' stands for whole labels in front: \"*.example.org\"",
                "2:20: 'host' cannot be \"http://x\": a host is a name alone, without port or scheme; did you mean \"x\"?",
                "2:32: 'host' cannot be \"a b\": it is not a host name (write international names in their ASCII form, \
                 \"xn--…\")",
                "2:39: 'host' cannot be \"*\": for every host write default = true",
                "2:44: 'host' cannot be \"[::1\": a host is a name alone, without port or scheme",
                "2:52: 'host' cannot be \"ü.de\": it is not a host name (write international names in their ASCII form, \
                 \"xn--…\")",
                "2:60: 'host' must be a string or a list of strings, not the number 5; write \"5\"",
            ],
        ),
        (
            "[[listen]]\nname = \"inner\"\naddress = \"81\"\n@site\nlisten = [\"iner\", \"inner\", \"www\"]\n@route\n",
            &[
                "6:11: no [[listen]] is called 'iner'; did you mean 'inner'?",
                "6:28: no [[listen]] is called 'www'; give one that name: [[listen]] name = \"…\"",
            ],
        ),
        (
            "@site\nheaders = { \"X A\" = \"1\", Date = \"x\", X-B = \"\\n\", X-C = 1 }\n\
             error_pages = { 200 = \"404.html\", 404 = \"none.html\", 500 = \"www\" }\n@route\n",
            &[
                "3:13: 'X A' is not a field name; write letters, digits and '-', \"X-Env\" for example",
                "3:26: Date is computed for each response and cannot be set",
                "3:38: the value of 'X-B' has control characters; write it on one line, without them",
                "3:56: 'X-C' must be a string, a list of strings, or false, not the number 1; write \"1\"",
                "4:17: '200' is not a status from 400 to 599",
                "4:41: warning: there is no file 'DIR/none.html'; the error keeps its short text until a reload finds the file",
                "4:60: 'DIR/www' is not a file",
            ],
        ),
    ]);
}

#[test]
fn routes() {
    let none = format!("[[site.route]] has no handler: give it one of {HANDLERS}");
    run(&[
        ("@site\n[[site.route]]\n", &[&format!("3:1: {none}")]),
        (
            "@site\n[[site.route]]\nfils = \"www\"\n",
            &[
                &format!("3:1: {none}"),
                "4:1: unknown key 'fils' in [[site.route]]; did you mean 'files'?",
            ],
        ),
        (
            "@site\n@route\nproxy = \"127.0.0.1:3000\"\n",
            &["5:1: 'proxy' beside 'files': a route has one handler; make two routes"],
        ),
        (
            "@site\n[[site.route]]\npath = \"api\"\nrespond = 404\n[[site.route]]\npath = \"/*.php\"\nrespond = 404\n\
             [[site.route]]\npath = \"/a/../b\"\nrespond = 404\n[[site.route]]\npath = \"/a%20b\"\nrespond = 404\n\
             [[site.route]]\npath = \"/api/*\"\nrespond = 404\n[[site.route]]\npath = \"/*\"\nrespond = 404\n",
            &[
                "4:8: 'path' cannot be \"api\": a path begins with '/'; did you mean \"/api\"?",
                "7:8: 'path' cannot be \"/*.php\": it is a pattern; write it as 'glob'",
                "10:8: 'path' cannot be \"/a/../b\": it has an empty, '.' or '..' segment, which no request path has",
                "13:8: 'path' cannot be \"/a%20b\": it is compared with the decoded path of a request, without query: write \
                 it without '?', '#', '%' and control characters",
                "16:8: 'path' cannot be \"/api/*\": write \"/api\", which matches what is below, too",
                "19:8: 'path' cannot be \"/*\": leave it out: without 'path', every path matches",
            ],
        ),
        (
            "@site\n[[site.route]]\npath = \"~ \\\\.php$\"\nfiles = { root = \"www\", cache = \"30d\" }\n",
            &[
                "4:8: 'path' cannot be \"~ \\\\.php$\": a path begins with '/'; write patterns as 'glob', and regular expressions as 'rewrite'",
                "5:33: 'cache' cannot be \"30d\": it is a value of Cache-Control; write \"max-age=2592000\"",
            ],
        ),
        (
            "@site\n[[site.route]]\nglob = [\"/a/**.php\", \"/a**\", \"***.php\", \"/a/**/*.php\", \"**/b\", \"{**,c/**}\", \"/d/**\"]\nrespond = 404\n",
            &[
                "4:9: 'glob' cannot be \"/a/**.php\": '**' stands for whole segments; did you mean \"/a/**/*.php\"?",
                "4:22: 'glob' cannot be \"/a**\": '**' stands for whole segments; did you mean \"/a*/**\"?",
                "4:30: 'glob' cannot be \"***.php\": '**' stands for whole segments; did you mean \"**/*.php\"?",
            ],
        ),
        (
            "@site\n[[site.route]]\nglob = \"~*.jpg\"\nrespond = 404\n",
            &[
                "4:8: 'glob' cannot be \"~*.jpg\": a pattern is the end of a path, \"*.php\", or a whole path, \"/img/*.png\"; write regular expressions as 'rewrite'",
            ],
        ),
        (
            "@site\n[[site.route]]\nrespond = { body = \"at $pth\" }\n",
            &[
                "4:20: 'body' cannot be \"at $pth\": '$pth' is unknown; there are $method, $host, $path, $query, $client, $user and $header_NAME; did you mean \
               '$path'?",
            ],
        ),
        (
            "@site\n[[site.route]]\nglob = [\"[a\", \"\"]\nmethods = [\"get\", \"G T\"]\nrespond = 404\n",
            &[
                "4:9: 'glob' cannot be \"[a\": unclosed character class; missing ']'",
                "4:15: 'glob' cannot be \"\": it is empty",
                "5:12: 'methods' cannot be \"get\": methods are case-sensitive; did you mean \"GET\"?",
                "5:19: 'methods' cannot be \"G T\": it is not a name that HTTP allows",
            ],
        ),
        (
            "@site\n[[site.route]]\npath = \"/a/\"\nmethods = [\"GET\", \"POST\"]\nrespond = 404\n\
             [[site.route]]\npath = \"/a\"\nmethods = [\"POST\", \"GET\"]\nfiles = \"www\"\n",
            &["7:1: duplicate route: the one in line 3 takes the same requests, and the first wins"],
        ),
        (
            "@site\n@route\n[[site.route]]\npath = \"/a\"\nrespond = 404\n",
            &["5:1: this route is never reached: the one in line 3 takes all of its requests; put this one first"],
        ),
    ]);
}

#[test]
fn what_is_no_duplicate() {
    for routes in [
        "[[site.route]]\npath = \"/a\"\nrespond = 404\n[[site.route]]\npath = \"/ab\"\nrespond = 404\n",
        "[[site.route]]\npath = \"/a\"\nmethods = \"GET\"\nrespond = 404\n[[site.route]]\npath = \"/a\"\nrespond = 404\n",
        "[[site.route]]\nglob = \"*.php\"\nrespond = 404\n[[site.route]]\nfiles = \"www\"\n",
        "[[site.route]]\nrewrite = { pattern = \"^/x$\", to = \"/y\" }\n[[site.route]]\nfiles = \"www\"\n",
    ] {
        let (status, printed) = check(&format!("{SITE}{routes}"));
        assert_eq!(status, 0, "{routes}\n{printed}");
    }
}

#[test]
fn variables_of_the_environment() {
    let text = "workers = \"${OSIER_TEST_WORKERS:-2}\"\n[[site]]\nhost = \"${OSIER_TEST_HOST}\"\n[[site.route]]\n\
                files = \"${OSIER_TEST_ROOT:-www}\"\n";
    let (status, printed) = check_with(text, |command| {
        command
            .env("OSIER_TEST_HOST", "example.org")
            .env_remove("OSIER_TEST_ROOT");
    });
    assert_eq!(status, 0, "{printed}");
    let (status, printed) = check_with(text, |command| {
        command
            .env_remove("OSIER_TEST_HOST")
            .env("OSIER_TEST_ROOT", "none")
            .env("OSIER_TEST_WORKERS", "many");
    });
    assert_eq!(status, 2);
    for line in [
        "site.toml:1:11: 'workers' must be a whole number from 1 to 1024, not \"${OSIER_TEST_WORKERS:-2}\"",
        "site.toml:3:8: 'host': environment variable 'OSIER_TEST_HOST' is not set; set it, or write \
         ${OSIER_TEST_HOST:-default}",
        "site.toml:5:9: warning: there is no folder 'DIR/${OSIER_TEST_ROOT}'; requests get 503 until it is there",
    ] {
        assert!(printed.lines().any(|shown| shown == line), "{line}\n{printed}");
    }
    let (status, printed) = check("[[site]]\nhost = \"$${x}\"\n[[site.route]]\nrespond = \"costs $$5 or $5\"\n");
    assert_eq!((status, printed.contains("cannot be \"${x}\"")), (2, true), "{printed}");
    let (_, printed) = check("user = \"${\"\n[[site]]\ndefault = true\n[[site.route]]\nrespond = 404\n");
    assert!(
        printed.starts_with("site.toml:1:8: 'user': '${' without '}'"),
        "{printed}"
    );
}

#[test]
fn every_address_of_ipv6_is_every_one_of_ipv4_too() {
    let only = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    if only.is_ok_and(|only| only.trim() == "1") {
        println!("skipped: this system keeps IPv4 out of sockets of IPv6 (net.ipv6.bindv6only)");
        return;
    }
    run(&[
        (
            "[[listen]]\naddress = \"[::]:81\"\n[[listen]]\naddress = \":81\"\n@site\n@route\n",
            &["4:11: '0.0.0.0:81' is already in use by another [[listen]] (line 2)"],
        ),
        (
            "[[listen]]\naddress = \"127.0.0.1:81\"\n[[listen]]\naddress = \"[::]:81\"\n@site\n@route\n",
            &["4:11: '[::]:81' is already in use by another [[listen]] (line 2)"],
        ),
    ]);
    let text = format!("[[listen]]\naddress = \":81\"\n[[listen]]\naddress = \"[::1]:81\"\n{SITE}{ROUTE}");
    assert_eq!(check(&text).0, 0);
}

#[test]
fn files_that_cannot_be_read() {
    let folder = Folder::new();
    std::fs::write(folder.join("latin1.toml"), b"[[site]]\nhost = \"\xe4\"\n").unwrap();
    for (name, expected) in [
        ("none.toml", "none.toml: there is no such file\n"),
        (
            ".",
            "osier: . is a folder; check takes a configuration file; see osier --help\n",
        ),
        (
            "latin1.toml",
            "latin1.toml:2:9: this is not UTF-8; save the file in that encoding\n  2 | host = \"\u{fffd}\"\n    |         ^\n",
        ),
    ] {
        let output = osier()
            .args(["check", name])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
    }
}

#[test]
fn a_mistake_is_reported_once() {
    run(&[
        (
            "[[listen]]\nname = \"web\"\naddress = \"127.0.0.1:1\"\n@site\nlisten = \"wep\"\n@route\n",
            &["6:10: no [[listen]] is called 'wep'; did you mean 'web'?"],
        ),
        (
            "[[site]]\ndefault = 1\n@route\n",
            &["2:11: 'default' must be true or false, not the number 1"],
        ),
    ]);
    // An empty line has nothing to underline.
    assert_eq!(
        check(""),
        (
            2,
            "site.toml:1:1: there is no [[site]]: nothing would be served\n".into()
        )
    );
    assert_eq!(
        check("# soon\n\n"),
        (
            2,
            "site.toml:1:1: there is no [[site]]: nothing would be served\n  1 | # soon\n    | ^\n".into()
        )
    );
}
