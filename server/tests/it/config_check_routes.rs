//! `osier check`: the handlers and the policies of a route, and the backends of a proxy.

use crate::config_check::{SITE, check, mistakes, run};

/// The remedy for the address of an HTTP backend.
const PLACES: &str = "write HOST:PORT, http://HOST:PORT, https://HOST, h2c://HOST:PORT or unix:PATH";

#[test]
fn handlers() {
    run(&[
        (
            "@site\n[[site.route]]\nfiles = { rot = \"www\" }\n",
            &[
                "4:9: [site.route.files] lacks 'root': the folder that is served",
                "4:11: unknown key 'rot' in [site.route.files]; did you mean 'root'?",
            ],
        ),
        (
            "@site\n[[site.route]]\nfiles = \"${NO_SUCH_VARIABLE:-}\"\n[[site.route]]\nproxy = { to = [\"a:+1\", \"256.1.1.1:1\", \"[1]:1\", \"[::1]:1\"] }\n",
            &[
                "4:9: a path is empty; write \".\" for the folder of this file",
                &format!("6:17: 'to' cannot be \"a:+1\": '+1' is not a port; {PLACES}"),
                &format!("6:25: 'to' cannot be \"256.1.1.1:1\": '256.1.1.1' is not an address; {PLACES}"),
                &format!("6:40: 'to' cannot be \"[1]:1\": '[1]' is not an address; {PLACES}"),
            ],
        ),
        (
            "@site\n[[site.route]]\nfiles = \"none\"\n[[site.route]]\nfiles = \"users\"\n[[site.route]]\nfiles = 5\n",
            &[
                "4:9: warning: there is no folder 'DIR/none'; requests get 503 until it is there",
                "6:9: 'DIR/users' is not a folder; 'files' must be one",
                "8:9: 'files' must be a table, or the folder alone, not the number 5; write files = { root = \"www\" }",
            ],
        ),
        (
            "@site\n[[site.route]]\nfiles = { root = \"www\", index = \"a/b\", strip = true, listing = \"yes\" }\n",
            &[
                "4:33: 'index' cannot be \"a/b\": it must be the name of a file, without a folder",
                "4:48: 'strip' = true removes the 'path' of the route, but the route has none",
                "4:64: 'listing' must be true or false, not \"yes\"; write true",
            ],
        ),
        (
            "@site\n[[site.route]]\nfastcgi = { to = [\"unix:none.sock\", \"unix:fifo\", \"1\"], root = \"none\", keep = true }\n",
            &[
                "4:19: warning: there is no socket 'DIR/none.sock'; requests get 502 until the backend has made it",
                "4:37: 'to' cannot be \"unix:fifo\": 'DIR/fifo' is not a socket",
                "4:50: 'to' cannot be \"1\": the host is missing; did you mean \"127.0.0.1:1\"?",
                "4:63: warning: there is no folder 'DIR/none'; requests get 503 until it is there",
                "4:78: 'keep' must be a whole number from 0 to 100000, not true",
            ],
        ),
        (
            "@site\n[[site.route]]\nproxy = { to = [\"https://a\", \"b:1\"], ca = \"none\", verify = false, sni = \"a b\", key = \"none\" }\n\
             [[site.route]]\npath = \"/b\"\nproxy = { to = \"b:1\", sni = \"b\" }\n[[site.route]]\npath = \"/c\"\n\
             fastcgi = { to = \"https://c\", root = \".\" }\n",
            &[
                "4:30: some backends have https:// and others do not: write it before all addresses of 'to', or before none",
                "4:38: 'ca' has no effect with 'verify = false', which trusts every certificate",
                "4:43: 'ca': 'DIR/none' cannot be read: No such file or directory (os error 2)",
                "4:73: 'sni' cannot be \"a b\": write the name that the backend's certificate has, \"app.internal\" for example",
                "4:80: 'cert' and 'key' belong together: the certificate that backends ask for, and its private key",
                "4:86: 'key': 'DIR/none' cannot be read: No such file or directory (os error 2)",
                "7:23: this key is for TLS: write the address in 'to' with https://, or remove the key",
                "10:18: 'to' cannot be \"https://c\": only HTTP backends of 'proxy' speak TLS; write HOST:PORT or unix:PATH",
            ],
        ),
        (
            "@site\n[[site.route]]\nproxy = { to = [\"a:1\", \"h2c://b:1\"], http2 = true }\n[[site.route]]\npath = \"/b\"\n\
             proxy = \"h2c://b\"\n[[site.route]]\npath = \"/c\"\nfastcgi = { to = \"h2c://c:1\", root = \".\" }\n",
            &[
                "4:24: some backends have h2c:// and others do not: write it before all addresses of 'to', or before none",
                "4:38: 'http2' is for addresses with https://, whose backends choose the version; a backend that speaks HTTP/2 without \
                 TLS has the address h2c://HOST:PORT",
                &format!("7:9: 'proxy' cannot be \"h2c://b\": the port is missing; {PLACES}"),
                "10:18: 'to' cannot be \"h2c://c:1\": only backends of 'proxy' speak HTTP/2; write HOST:PORT or unix:PATH",
            ],
        ),
        (
            "@site\n[[site.route]]\nproxy = { to = \"a:1\", redirects = \"prefix\" }\n[[site.route]]\n\
             proxy = { to = \"a:1\", strip = \"/a\", redirects = \"all\" }\n[[site.route]]\nproxy = { to = \"a:1\", redirects = 1 }\n",
            &[
                "4:35: 'redirects' = \"prefix\" needs 'strip', which removes the prefix",
                "6:49: 'redirects' must be true, false or \"prefix\"",
                "8:35: 'redirects' must be true, false or \"prefix\", not the number 1",
            ],
        ),
        (
            "@site\n[[site.route]]\nproxy = \"https://127.0.0.1:443/x\"\n[[site.route]]\n\
             proxy = { to = [\"a:1\", \"a:1\", \"a:0\"], timeouts = { conect = \"1s\" }, health = { evry = \"1s\" } }\n",
            &[
                "4:9: 'proxy' cannot be \"https://127.0.0.1:443/x\": a backend has no path; remove '/x', and see 'strip' or 'rewrite'",
                "6:24: 'a:1' is named twice",
                &format!("6:31: 'to' cannot be \"a:0\": '0' is not a port; {PLACES}"),
                "6:52: unknown key 'conect' in [site.route.proxy.timeouts]; did you mean 'connect'?",
                "6:80: unknown key 'evry' in [site.route.proxy.health]; did you mean 'every'?",
            ],
        ),
        (
            "@site\n[[site.route]]\nproxy = { to = [{ address = \"a:1\", weight = 0 }, { address = \"a:2\", weight = 1001 },\n\
             { adress = \"a:3\" }, { address = \"a:1\", id = \"x y\" }, 5, { address = \"a:4\", id = \"x\" },\n\
             { address = \"a:5\", id = \"x\", backup = 1 }] }\n[[site.route]]\npath = \"/a\"\nproxy = { to = [] }\n\
             [[site.route]]\npath = \"/b\"\n\
             proxy = { to = [{ address = \"a:1\", backup = true }, { address = \"a:2\", backup = true }] }\n",
            &[
                "4:45: 'weight' must be a whole number from 1 to 1000, not the number 0; remove a backend that is to get no \
                 requests, or make it a backup with 'backup = true'",
                "4:78: 'weight' must be a whole number from 1 to 1000, not the number 1001",
                "5:1: [site.route.proxy.to] lacks 'address': where the backend listens, \"127.0.0.1:3000\" or \
                 \"unix:/run/app.sock\"",
                "5:3: unknown key 'adress' in [site.route.proxy.to]; did you mean 'address'?",
                "5:33: 'a:1' is named twice",
                "5:45: 'id' cannot be \"x y\": it is not a name that HTTP allows",
                "5:54: 'to' must be an address, a table with an 'address', or a list of them, not the number 5",
                "6:13: two backends have the 'id' \"x\"; give each its own",
                "6:39: 'backup' must be true or false, not the number 1",
                "9:16: 'to' is an empty list; leave it out, or name something",
                "12:16: every backend of 'to' is a backup; remove 'backup' from at least one",
            ],
        ),
        (
            "@site\n[[site.route]]\nredirect = { to = \"https://x/{pth}\", status = 200 }\n[[site.route]]\n\
             redirect = \"example.org\"\n[[site.route]]\nredirect = { to = \"/x\", status = 304 }\n[[site.route]]\n\
             redirect = \"https://$host$request_uri\"\n[[site.route]]\nredirect = \"/new/$1\"\n[[site.route]]\n\
             redirect = \"/new?$args\"\n[[site.route]]\nredirect = \"https://x$uri$is_args$args\"\n[[site.route]]\n\
             redirect = \"/new?{query}\"\n",
            &[
                "4:19: 'to' cannot be \"https://x/{pth}\": '{pth}' is unknown; there are {host}, {path}, {rest}, {query}",
                "4:47: 'status' must be 301, 302, 303, 307 or 308, not the number 200",
                "6:12: 'redirect' cannot be \"example.org\": it begins with '/', \"http://\", \"https://\", {path} or {rest}",
                "8:34: 'status' must be 301, 302, 303, 307 or 308, not the number 304",
                "10:12: 'redirect' cannot be \"https://$host$request_uri\": write {path}{query} for '$request_uri', {host} for '$host'",
                "12:12: 'redirect' cannot be \"/new/$1\": '$' and a number is a capture: write a rule of 'rewrite', or the sign as %24",
                "14:12: 'redirect' cannot be \"/new?$args\": write {query} for '?$args'",
                "16:12: 'redirect' cannot be \"https://x$uri$is_args$args\": write {path} for '$uri', {query} for '$is_args$args'",
                "18:12: 'redirect' cannot be \"/new?{query}\": {query} has its question mark: leave out the one in front of it",
            ],
        ),
        (
            "@site\n[[site.route]]\nrespond = 99\n[[site.route]]\nrespond = { body = \"x\", file = \"users\" }\n\
             [[site.route]]\nrespond = { file = \"none\", content_type = \"html\" }\n",
            &[
                "4:11: 'respond' must be a whole number from 200 to 599, not the number 99",
                "6:25: 'file' beside 'body': a response has one body",
                "8:20: warning: there is no file 'DIR/none'; requests get 503 until a reload finds it",
                "8:43: 'content_type' cannot be \"html\": it is not a media type, \"text/html; charset=utf-8\" for example",
            ],
        ),
        (
            "@site\n[[site.route]]\nrewrite = [{ pattern = \"(\", to = \"/\" }, { pattern = \"x\" }]\n@route\n",
            &[
                "4:24: 'pattern' cannot be \"(\": unclosed group",
                "4:41: [[site.route.rewrite]] lacks 'to': the new path, \"/new/$1\" for example",
            ],
        ),
        (
            "@site\n[[site.route]]\nrewrite = { pattern = \"x\", to = \"/\", if = [{ of = \"heder\" }, { of = \"query\" }] }\n\
             @route\n",
            &[
                "4:51: 'of' must be one of \"header\", \"cookie\", \"query\", \"post\", \"environment\", \"capture\", \"method\", \"host\", \
                 \"path\", \"client\", \"encoding\", \"query_string\", \"http_1.0\", \"https\", \"proxied\", \"file\", \"folder\", \
                 \"exists\", not \"heder\"; did you mean \"header\"?",
                "4:62: a condition of \"query\" needs a 'name'",
            ],
        ),
        (
            "@site\n[[site.route]]\nchat = { history = 5000 }\n",
            &["4:20: 'history' must be a whole number from 0 to 1000, not the number 5000"],
        ),
        (
            "@site\n[[site.route]]\nchat = { redis = \"127.0.0.1:6379\" }\n[[site.route]]\npath = \"/b\"\n\
             chat = { redis = \"rediss://a\", channel = \"\" }\n[[site.route]]\npath = \"/c\"\n\
             chat = { redis = \"redis://a\", ca = \"none\" }\n",
            &[
                "4:18: 'redis': write redis://HOST:PORT, redis://:PASSWORD@HOST:PORT, rediss:// for TLS, or redis+unix:///PATH",
                "7:42: 'channel' cannot be \"\": it is empty: name the channel that all servers of this chat share",
                "10:31: 'ca' is for TLS to Redis: redis = \"rediss://HOST:PORT\"",
                "10:36: 'ca': 'DIR/none' cannot be read: No such file or directory (os error 2)",
            ],
        ),
        (
            "@site\n[[site.route]]\npath = \"/a\"\nchat = { redis = \"redis://me:secret@a:1\" }\n[[site.route]]\npath = \"/b\"\n\
             chat = { redis = \"redis://:%zz@a\" }\n[[site.route]]\npath = \"/c\"\nchat = { redis = \"redis://a:0/0\" }\n\
             [[site.route]]\nchat = { channel = \"x\" }\n",
            &[
                "5:18: 'redis': Redis user names are not supported, only a password; write redis://HOST:PORT, redis://:PASSWORD@HOST:PORT, rediss:// for TLS, or redis+unix:///PATH",
                "8:18: 'redis': the password has a '%' without two hexadecimal digits; write '%' itself as '%25'",
                "11:18: 'redis': write redis://HOST:PORT, redis://:PASSWORD@HOST:PORT, rediss:// for TLS, or redis+unix:///PATH",
                "13:10: 'channel' is only for chats over Redis: redis = \"redis://127.0.0.1:6379\"",
            ],
        ),
        (
            "@site\n[[site.route]]\npath = \"/a\"\nwelcome = true\n[[site.route]]\nwelcome = { live_for = 1 }\n",
            &[
                "5:11: 'welcome' is a whole site with paths of its own: its route has no 'path' and no 'glob'",
                "7:13: unknown key 'live_for' in [site.route.welcome]; did you mean 'live_for_all'?",
            ],
        ),
    ]);
}

#[test]
fn policies() {
    run(&[
        (
            "@site\nauth = { realm = \"a\\\"b\", users = { bob = \"secret\", \"a:b\" = \"x\", \" c\" = \"x\" } }\n@route\nauth = {}\n",
            &[
                "3:42: user \"bob\": the password is not hashed with bcrypt, argon2, yescrypt, SHA-crypt, apr1 or {SHA}; make the line with 'htpasswd -B -C 12'",
                "3:60: the user has no name, or one with a colon or control characters",
                "3:72: the name of user \" c\" begins or ends with a space",
                "6:8: [site.route.auth] has no users: give it users = { NAME = \"HASH\" } or file = \"FILE\" with lines of \
                 NAME:HASH",
            ],
        ),
        (
            "@site\n@route\nauth = true\nrate = { requests = 0, per = \"1\" }\nlimits = { body = \"2M\", tim = \"1s\" }\n",
            &[
                "5:8: 'auth' must be a table or false, not true; write auth = { users = { NAME = \"HASH\" } }",
                "6:21: 'requests' must be a whole number from 1 to 1000000, not the number 0",
                "6:30: 'per' must be a duration like \"10s\", \"1m30s\" or \"500ms\", not \"1\"; write \"1s\"",
                "7:19: 'body' must be a size like \"64KiB\", \"10MiB\" or 4096 (bytes), not \"2M\"; write \"2MiB\"",
                "7:25: unknown key 'tim' in [site.route.limits]; did you mean 'time'?",
            ],
        ),
        (
            "@site\n@route\ncors = { origins = \"*\", credentials = true }\nallow = \"10.0.0.0/33\"\ndeny = []\n\
             compress = \"gzip\"\nlog = 1\n",
            &[
                "5:8: cors: credentials = true needs named origins, because browsers refuse \"*\" with it",
                "6:9: 'allow' cannot be \"10.0.0.0/33\": write an address or a network, \"10.0.0.0/8\" or \"::1\", or \"unix\" for clients of Unix sockets",
                "7:8: 'deny' is an empty list; leave it out, or name something",
                "8:12: 'compress' must be true, false or a table, not \"gzip\"; write compress = { codings = [\"gzip\"] }",
                "9:7: 'log' must be false, \"combined\", \"json\", a template or a table, not the number 1",
            ],
        ),
        (
            "@site\ncors = { origins = [\"example.org\", \"https://a/b\"] }\n@route\n",
            &[
                "3:21: 'origins' cannot be \"example.org\": write an origin as \"https://example.org\", without a path, or \
                 \"*\"",
                "3:36: 'origins' cannot be \"https://a/b\": write an origin as \"https://example.org\", without a path, or \
                 \"*\"",
            ],
        ),
    ]);
}

#[test]
fn a_proxy_may_be_written_as_a_url_without_a_path() {
    for url in ["http://127.0.0.1:1", "http://127.0.0.1:1/"] {
        let text = format!(
            "{SITE}[[site.route]]\npath = \"/a\"\nproxy = \"{url}\"\n[[site.route]]\nproxy = {{ to = \"{url}\" }}\n"
        );
        assert_eq!(check(&text).0, 0, "{url}");
    }
    let text = format!("{SITE}[[site.route]]\nproxy = \"http://127.0.0.1:1/x\"\n");
    assert_eq!(check(&text).0, 2);
}

#[test]
fn balances() {
    const HASHES: &str = "{ hash = \"client\" }, { hash = { cookie = \"NAME\" } } or { hash = { header = \"NAME\" } }";
    const KEYS: &str = "\"client\", { cookie = \"NAME\" } or { header = \"NAME\" }";
    const NAMES: &str = "\"least_connections\", \"round_robin\", \"random_two\"";
    for (keys, expected) in [
        (
            "balance = \"roundrobin\"",
            vec!["33: 'balance' cannot be \"roundrobin\"; did you mean \"round_robin\"?".to_string()],
        ),
        (
            "balance = \"xyz\"",
            vec![format!(
                "33: 'balance' cannot be \"xyz\"; write {NAMES} or a hash, {HASHES}"
            )],
        ),
        (
            "balance = \"ip_hash\"",
            vec![format!("33: 'balance' cannot be \"ip_hash\"; write {HASHES}")],
        ),
        (
            "balance = 1",
            vec![format!(
                "33: 'balance' must be {NAMES} or a hash, {HASHES}, not the number 1"
            )],
        ),
        (
            "balance = { hsh = \"client\" }",
            vec![
                format!("33: [site.route.proxy.balance] lacks 'hash': {KEYS}"),
                "35: unknown key 'hsh' in [site.route.proxy.balance]; did you mean 'hash'?".into(),
            ],
        ),
        (
            "balance = { hash = \"clent\" }",
            vec![format!("42: 'hash' must be {KEYS}, not \"clent\"")],
        ),
        (
            "balance = { hash = { cookie = \"a b\" } }",
            vec!["53: 'cookie' cannot be \"a b\": it is not a name that HTTP allows".into()],
        ),
        (
            "balance = { hash = {} }",
            vec![
                "42: [site.route.proxy.balance.hash] lacks 'cookie': name a cookie, or a header field with 'header'"
                    .into(),
            ],
        ),
        (
            "balance = { hash = { cookie = \"a\", header = \"b\" } }",
            vec!["42: 'cookie' beside 'header': a hash has one key; remove one of them".into()],
        ),
        (
            "balance = { hash = \"client\" }, sticky = \"backend\"",
            vec![
                "54: 'sticky' beside a 'balance' by a hash: both choose the backend of a client; remove one of them"
                    .into(),
            ],
        ),
        (
            "sticky = \"a;b\"",
            vec!["32: 'sticky' cannot be \"a;b\": it is not a name that HTTP allows".into()],
        ),
        (
            "sticky = { cokie = \"a\" }, slow_start = \"0s\"",
            vec![
                "34: unknown key 'cokie' in [site.route.proxy.sticky]; did you mean 'cookie'?".into(),
                "62: 'slow_start' must be longer than 0s".into(),
            ],
        ),
        (
            "ejection = { failures = 0, window = \"1ms\", time = \"1m\", max_time = \"1s\" }",
            vec![
                "47: 'failures' must be a whole number from 1 to 1000000, not the number 0".into(),
                "59: 'window' must be at least \"1s\": failed requests count only after a second without a response"
                    .into(),
                "90: 'max_time' is shorter than 'time', the first time out of service; make it at least as long".into(),
            ],
        ),
    ] {
        let text = format!("{SITE}[[site.route]]\nproxy = {{ to = \"a:1\", {keys} }}\n");
        let expected: Vec<String> = expected.iter().map(|line| format!("4:{line}")).collect();
        assert_eq!(mistakes(&text), expected, "{keys}");
    }
    for keys in [
        "balance = \"least_connections\", slow_start = \"30s\", ejection = { failures = 5, window = \"30s\", time = \"1s\" }",
        "balance = \"random_two\", sticky = {}",
        "balance = { hash = { header = \"X-User\" } }, ejection = { max_time = \"1m\" }",
        "balance = { hash = { cookie = \"sid\" } }",
    ] {
        for handler in ["proxy = {", "fastcgi = { root = \"www\","] {
            let to =
                "to = [\"a:1\", { address = \"a:2\", weight = 3, id = \"b\" }, { address = \"a:3\", backup = true }]";
            let text = format!("{SITE}[[site.route]]\n{handler} {to}, {keys} }}\n");
            let (status, printed) = check(&text);
            assert_eq!(status, 0, "{text}\n{printed}");
        }
    }
}
