//! Tests of rewrite rules and conditions, with hostile requests and with loops.

use super::*;

struct Sent {
    method: &'static str,
    target: String,
    fields: Vec<(&'static str, &'static str)>,
    client: &'static str,
    form: Option<&'static [u8]>,
    http_10: bool,
    https: bool,
    proxied: bool,
}

fn get(target: &str) -> Sent {
    Sent {
        method: "GET",
        target: target.into(),
        fields: Vec::new(),
        client: "192.0.2.7",
        form: None,
        http_10: false,
        https: false,
        proxied: false,
    }
}

impl Sent {
    fn with(mut self, name: &'static str, value: &'static str) -> Sent {
        self.fields.push((name, value));
        self
    }
}

impl Facts for Sent {
    fn method(&self) -> &str {
        self.method
    }
    fn path(&self) -> &str {
        self.target.split('?').next().unwrap()
    }
    fn query(&self) -> Option<&str> {
        self.target.split_once('?').map(|(_, query)| query)
    }
    fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_bytes())
    }
    fn lines(&self, name: &str) -> Vec<&[u8]> {
        let fields = self.fields.iter();
        let lines = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        lines.map(|(_, value)| value.as_bytes()).collect()
    }
    fn host(&self) -> Option<&str> {
        self.header("host").map(|host| std::str::from_utf8(host).unwrap())
    }
    fn client(&self) -> Option<IpAddr> {
        (self.client != "unix").then(|| self.client.parse().unwrap())
    }
    fn form(&self) -> Option<&[u8]> {
        self.form
    }
    fn http_10(&self) -> bool {
        self.http_10
    }
    fn https(&self) -> bool {
        self.https
    }
    fn proxied(&self) -> bool {
        self.proxied
    }
}

fn rule(pattern: &str, to: To) -> Rule {
    Rule {
        pattern: pattern.into(),
        to,
        query: Query::Keep,
        conditions: Vec::new(),
    }
}

fn path(pattern: &str, to: &str) -> Rule {
    rule(pattern, To::Path(to.into()))
}

fn redirect(pattern: &str, to: &str) -> Rule {
    rule(pattern, To::Redirect(to.into(), 301))
}

fn when(mut rule: Rule, of: Subject, is: Test) -> Rule {
    rule.conditions.push(Condition { of, is, not: false });
    rule
}

fn unless(mut rule: Rule, of: Subject, is: Test) -> Rule {
    rule.conditions.push(Condition { of, is, not: true });
    rule
}

fn apply(rules: &[Rule], sent: &Sent) -> Verdict {
    Rewrite::compile(rules).unwrap().apply(sent)
}

fn again(target: &str) -> Verdict {
    Verdict::Again(target.into())
}

fn location(location: &str) -> Verdict {
    Verdict::Redirect(location.into(), 301)
}

fn equals(text: &str) -> Test {
    Test::Equals(text.into())
}

#[test]
fn captures_go_into_paths_and_locations() {
    let rules = [
        path(r"^/pattern/foo/(\d+)/(\w+)$", "/hello?name=$2-${1}"),
        redirect(r"^/pattern/foo/(\d+)$", "/new/$1"),
        path(r"^/(?<year>\d{4})/(?<slug>[^/]+)$", "/posts/${slug}/$year"),
        redirect("^/(.*)$", "https://example.org/$1?from=$0&cost=$$5"),
    ];
    for (target, expected) in [
        ("/pattern/foo/12/bar", again("/hello?name=bar-12")),
        ("/pattern/foo/12", location("/new/12")),
        ("/2026/on-willows", again("/posts/on-willows/2026")),
        ("/x/y", location("https://example.org/x/y?from=%2Fx%2Fy&cost=$5")),
        ("/", location("https://example.org/?from=%2F&cost=$5")),
    ] {
        assert_eq!(apply(&rules, &get(target)), expected, "{target}");
    }
    assert_eq!(apply(&rules[..3], &get("/x")), Verdict::Nothing);
}

#[test]
fn the_first_rule_that_holds_decides() {
    let rules = [
        when(
            path("^/style$", "/dark"),
            Subject::Cookie("style".into()),
            equals("dark"),
        ),
        path("^/style$", "/light"),
        path("^/style$", "/never"),
    ];
    for (cookie, expected) in [
        ("style=dark", "/dark"),
        ("a=b; style=dark; c=d", "/dark"),
        ("style=light", "/light"),
        ("style=darker", "/light"),
        ("xstyle=dark", "/light"),
        ("styles=dark", "/light"),
        ("style", "/light"),
        ("", "/light"),
    ] {
        assert_eq!(
            apply(&rules, &get("/style").with("Cookie", cookie)),
            again(expected),
            "{cookie}"
        );
    }
    assert_eq!(apply(&rules, &get("/style")), again("/light"));
}

#[test]
fn a_capture_is_compared() {
    let backref = [when(
        path(r"^/(\d+)/backref$", "/found"),
        Subject::Capture("1".into()),
        equals("42"),
    )];
    assert_eq!(apply(&backref, &get("/42/backref")), again("/found"));
    assert_eq!(apply(&backref, &get("/420/backref")), Verdict::Nothing);
    // Another subject is compared with a capture.
    let own = [when(
        path("^/users/(?<name>[^/]+)$", "/me"),
        Subject::Cookie("user".into()),
        equals("$name"),
    )];
    assert_eq!(apply(&own, &get("/users/ali").with("cookie", "user=ali")), again("/me"));
    assert_eq!(
        apply(&own, &get("/users/bea").with("cookie", "user=ali")),
        Verdict::Nothing
    );
    // A group that did not match is absent.
    let optional = [when(
        path("^/a(/b)?$", "/both"),
        Subject::Capture("1".into()),
        Test::Present,
    )];
    assert_eq!(apply(&optional, &get("/a/b")), again("/both"));
    assert_eq!(apply(&optional, &get("/a")), Verdict::Nothing);
}

#[test]
fn every_condition_holds_and_fails() {
    let folder = testkit::Folder::new();
    folder.write("site/there/page.html", "x");
    let site = folder.path().join("site").display().to_string();
    let at = |rest: &str| format!("{site}/{rest}");
    let cargo = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let matches = |text: &str| Test::Matches(text.into());
    use Subject::*;
    let header = |name: &'static str, value: &'static str| get("/p").with(name, value);
    let changed = |change: fn(&mut Sent)| {
        let mut sent = get("/p");
        change(&mut sent);
        sent
    };
    let cases: Vec<(Subject, Test, Sent, Sent)> = vec![
        (Header("X-A".into()), Test::Present, header("x-a", ""), get("/p")),
        (
            Header("x-a".into()),
            equals("b"),
            header("X-A", "b"),
            header("X-A", "B"),
        ),
        (
            Header("user-agent".into()),
            matches("(?i)bot"),
            header("User-Agent", "GoodBot/1"),
            header("User-Agent", "curl"),
        ),
        (
            Cookie("a".into()),
            Test::Present,
            header("cookie", "b=1;a="),
            header("cookie", "b=a"),
        ),
        (Query("q".into()), Test::Present, get("/p?q"), get("/p?r=q")),
        (
            Query("q r".into()),
            equals("a b&"),
            get("/p?x=1&q+r=a%20b%26"),
            get("/p?q+r=a"),
        ),
        (
            Environment("CARGO_MANIFEST_DIR".into()),
            equals(&cargo),
            get("/p"),
            Sent {
                method: "GET",
                ..get("/none")
            },
        ),
        (Method, equals("POST"), changed(|sent| sent.method = "POST"), get("/p")),
        (
            Method,
            matches("^(PUT|DELETE)$"),
            changed(|sent| sent.method = "PUT"),
            get("/p"),
        ),
        (
            Host,
            equals("example.org"),
            header("host", "EXAMPLE.org:8080"),
            header("host", "www.example.org"),
        ),
        (
            Host,
            equals("[::1]"),
            header("host", "[::1]:80"),
            header("host", "[::2]:80"),
        ),
        (Path, matches(r"\.p$"), get("/p.p"), get("/p.q")),
        (
            Client,
            equals("192.0.2.0/24"),
            get("/p"),
            changed(|sent| sent.client = "198.51.100.1"),
        ),
        (
            Client,
            equals("192.0.2.7"),
            changed(|sent| sent.client = "::ffff:192.0.2.7"),
            changed(|sent| sent.client = "::1"),
        ),
        (Client, matches("^192"), get("/p"), changed(|sent| sent.client = "::1")),
        (
            Client,
            equals("0.0.0.0/0"),
            get("/p"),
            changed(|sent| sent.client = "unix"),
        ),
        (Client, equals("unix"), changed(|sent| sent.client = "unix"), get("/p")),
        (
            Post("a b".into()),
            equals("c&d"),
            changed(|sent| sent.form = Some(b"x=1&a+b=c%26d&a+b=2")),
            changed(|sent| sent.form = Some(b"a+b=d")),
        ),
        (
            Post("step".into()),
            equals("pay"),
            changed(|sent| sent.form = Some(b"name=caf\xe9&step=pay&\xff=1")),
            changed(|sent| sent.form = Some(b"name=caf\xe9&step=p\xe9y")),
        ),
        (
            Post("a".into()),
            Test::Present,
            changed(|sent| sent.form = Some(b"a")),
            get("/p?a"),
        ),
        (
            Encoding,
            equals("br"),
            header("accept-encoding", "gzip, BR;q=0.5"),
            header("accept-encoding", "gzip, br;q=0.000, brx"),
        ),
        (
            Encoding,
            equals("gzip"),
            header("accept-encoding", "br, X-Gzip;q=0.1"),
            header("accept-encoding", "br, gzip;q=2"),
        ),
        (
            Encoding,
            equals("zstd"),
            changed(|sent| sent.fields = vec![("Accept-Encoding", "br"), ("accept-encoding", "zstd")]),
            changed(|sent| sent.fields = vec![("Accept-Encoding", "br"), ("accept-encoding", "zstd;q=0")]),
        ),
        (QueryString, Test::Present, get("/p?"), get("/p")),
        (Http10, Test::Present, changed(|sent| sent.http_10 = true), get("/p")),
        (Https, Test::Present, changed(|sent| sent.https = true), get("/p")),
        (Proxied, Test::Present, changed(|sent| sent.proxied = true), get("/p")),
        (
            File(at("$1.html")),
            Test::Present,
            get("/there/page"),
            get("/there/none"),
        ),
        (File(at("$1")), Test::Present, get("/there/page.html"), get("/there")),
        (Folder(at("$1")), Test::Present, get("/there"), get("/there/page.html")),
        (Exists(at("$1")), Test::Present, get("/there"), get("/none")),
        (
            Exists(at("$1")),
            Test::Present,
            get("/there/page.html"),
            get("/there/%00"),
        ),
        (Exists(at("$1")), Test::Present, get("/there"), get("/there/../there")),
    ];
    let count = cases.len();
    for (of, is, yes, no) in cases {
        let name = format!("{of:?} {is:?}");
        let rule = || path("^/(.*)$", "/yes");
        // A request cannot change the environment. So that condition's counter-example is a path that the rule does not
        // match.
        let fits = if matches!(of, Environment(_)) {
            path("^/p$", "/yes")
        } else {
            rule()
        };
        let positive = [when(fits, of.clone(), is.clone())];
        assert_eq!(apply(&positive, &yes), again(&format!("/yes{}", kept(&yes))), "{name}");
        assert_eq!(apply(&positive, &no), Verdict::Nothing, "{name}");
        let negative = [unless(rule(), of.clone(), is)];
        assert_eq!(apply(&negative, &yes), Verdict::Nothing, "not {name}");
        if !matches!(of, Environment(_)) && crate::policy::path::text(no.path()).is_ok() {
            assert_eq!(
                apply(&negative, &no),
                again(&format!("/yes{}", kept(&no))),
                "not {name}"
            );
        }
    }
    println!("{count} conditions");
    let unset = [when(
        path("^/p$", "/yes"),
        Environment("OSIER_NOT_SET".into()),
        Test::Present,
    )];
    assert_eq!(apply(&unset, &get("/p")), Verdict::Nothing);
}

fn kept(sent: &Sent) -> String {
    sent.query()
        .filter(|query| !query.is_empty())
        .map_or(String::new(), |query| format!("?{query}"))
}

#[test]
fn all_conditions_of_a_rule_have_to_hold() {
    let rule = when(path("^/a$", "/b"), Subject::Method, equals("GET"));
    let rules = [unless(rule, Subject::QueryString, Test::Present)];
    assert_eq!(apply(&rules, &get("/a")), again("/b"));
    assert_eq!(apply(&rules, &get("/a?x")), Verdict::Nothing);
}

#[test]
fn the_query_is_kept_or_dropped() {
    let with = |to: &str, query| Rule {
        query,
        ..path("^/a$", to)
    };
    for (to, query, target, expected) in [
        ("/b", Query::Keep, "/a?x=1", "/b?x=1"),
        ("/b?y=2", Query::Keep, "/a?x=1", "/b?y=2&x=1"),
        ("/b?y=2", Query::Keep, "/a", "/b?y=2"),
        ("/b?", Query::Keep, "/a?x=1", "/b?x=1"),
        ("/b", Query::Drop, "/a?x=1", "/b"),
        ("/b?y=2", Query::Drop, "/a?x=1", "/b?y=2"),
        ("/b", Query::Keep, "/a?", "/b"),
    ] {
        assert_eq!(
            apply(&[with(to, query)], &get(target)),
            again(expected),
            "{to} {target}"
        );
    }
}

#[test]
fn nothing_a_client_sends_makes_a_line_a_host_or_a_parameter() {
    let everything = [redirect("(?s-u)^/(.*)$", "/$1")];
    for (target, expected) in [
        ("/Set-Cookie:%20a=b", "/Set-Cookie%3A%20a%3Db"),
        ("/a%2fb%252F", "/a%2Fb%252F"),
        ("//evil.example", "/evil.example"),
        ("///evil.example/x", "/evil.example/x"),
        ("/%5cevil.example", "/%5Cevil.example"),
        ("/a%3fb%23c%26d", "/a%3Fb%23c%26d"),
        ("/%c3%a4/%ff", "/%C3%A4/%FF"),
        ("/%25%32%65", "/%252e"),
    ] {
        assert_eq!(apply(&everything, &get(target)), location(expected), "{target}");
    }
    let parameter = [path("(?s)^/(.*)$", "/search?q=$1")];
    assert_eq!(
        apply(&parameter, &get("/a%26b=c+d%2f/")),
        again("/search?q=a%26b%3Dc%2Bd%2F%2F")
    );
    // Two captures that make a dot segment together.
    let dots = [path("^/(.*),(.*)$", "/data/$1$2/x")];
    assert_eq!(apply(&dots, &get("/.,.")), again("/x"));
    // Captures that begin with slashes or a backslash, and dots that would leave two slashes in front.
    let bare = [redirect("(?s-u)^/out(.*)$", "/$1")];
    for (target, expected) in [
        ("/out//evil.example", "/evil.example"),
        ("/out///evil.example", "/evil.example"),
        ("/out/%2Fevil.example", "/%2Fevil.example"),
        ("/out%5cevil.example", "/%5Cevil.example"),
        ("/out%5c%5cevil.example", "/%5C%5Cevil.example"),
        ("/out/%5cevil.example", "/%5Cevil.example"),
    ] {
        assert_eq!(apply(&bare, &get(target)), location(expected), "{target}");
    }
    let dots = [redirect("^/(.*),(.*),(.*)$", "/$1$2/$3")];
    assert_eq!(apply(&dots, &get("/.,.,/evil.example")), location("/evil.example"));
    assert_eq!(apply(&dots, &get("/a/.,.,/evil.example")), location("/evil.example"));
    // Spellings that routes read as one path are one path for rules.
    let guard = [path("^/admin(/|$)", "/login")];
    for target in ["/admin/x", "//admin/x", "/admin//x", "/%61dmin//x"] {
        assert_eq!(apply(&guard, &get(target)), again("/login"), "{target}");
    }
    // The site refuses a path whose two readings of an encoded slash take different routes.
    let guard = Rewrite::compile(&guard).unwrap();
    assert!(guard.tells_apart(b"/admin%2Fx", b"/admin/x") && !guard.tells_apart(b"/a%2Fx", b"/a/x"));
    for target in [
        "/../x",
        "/a/./b",
        "/%2e%2E/x",
        "/a%0d%0ab",
        "/a%00",
        "/a%",
        "/a%2f..%2fb",
    ] {
        assert_eq!(apply(&everything, &get(target)), Verdict::Nothing, "{target}");
    }
}

#[test]
fn rules_that_cannot_be_are_named_all_at_once() {
    let bad = [
        (path("(", "/a"), "pattern \"(\": "),
        (path(r"(a)\1", "/a"), "backreferences are not supported"),
        (path("(a{1000}){1000}", "/a"), "size limit"),
        (path("^/(.*)$", "/$2"), "'$2' is not captured"),
        (path("^/(.*)$", "/$name"), "'$name' is not captured"),
        (path("^/a$", "/a$"), "a dollar sign is written '$$$$'"),
        (path("^/(.*)$", "/${1"), "'${' without its '}'"),
        (path("^/(.*)$", "$1"), "must begin with one '/'"),
        (path("^/(.*)$", "//host/$1"), "must begin with one '/'"),
        (
            path("^/(.*)$", "https://example.org/"),
            "reached by a redirect or a proxy",
        ),
        (path("^/a$", "/a b"), "holds a space"),
        (path("^/a$", "/a\r\nb"), "holds a space"),
        (
            redirect("^(/.*)$", "https://example.org$1"),
            "write a '/' before the first capture",
        ),
        (redirect("^/(.*)$", "https://$1/"), "hold no capture"),
        (redirect("^/(.*)$", "https:///x"), "must be there"),
        (redirect("^/a$", "https://example.org:65536/"), "'65536' is not a port"),
        (redirect("^/a$", "https://example.org:/"), "'' is not a port"),
        (redirect("^/a$", "https://[::1/"), "'[::1' is not a host: write a name"),
        (
            redirect("^/a$", "https://{host}/"),
            "'{host}' is not a host: write a name",
        ),
        (redirect("^/a$", "https://exämple.org/"), "write its ASCII form"),
        (redirect("^/(.*)$", "javascript:alert(1)"), "must begin with one '/'"),
        (
            rule("^/a$", To::Redirect("/b".into(), 200)),
            "301, 302, 303, 307 or 308",
        ),
        (
            when(path("^/a$", "/b"), Subject::File("rel".into()), Test::Present),
            "must be absolute",
        ),
        (
            when(path("^/a$", "/b"), Subject::Client, equals("example")),
            "write an address or a network",
        ),
        (when(path("^/a$", "/b"), Subject::Https, equals("on")), "true or false"),
        (
            when(path("^/a$", "/b"), Subject::Capture("1".into()), Test::Present),
            "is not captured",
        ),
        (
            when(path("^/a$", "/b"), Subject::Cookie("".into()), Test::Present),
            "needs the name",
        ),
        (
            when(path("^/a$", "/b"), Subject::Host, Test::Matches("[".into())),
            "pattern \"[\"",
        ),
    ];
    let rules: Vec<Rule> = bad.iter().map(|(rule, _)| rule.clone()).collect();
    let troubles = Rewrite::compile(&rules).unwrap_err();
    assert_eq!(troubles.len(), bad.len(), "{troubles:?}");
    for ((index, what), (rule, expected)) in troubles.iter().zip(&bad) {
        assert_eq!(&rules[*index], rule);
        assert!(what.contains(expected), "{what} / {expected}");
    }
}

#[test]
fn patterns_that_would_explode_do_not() {
    let rules = [path("^/(a*)*(a*)*b$", "/b")];
    let long = format!("/{}", "a".repeat(8000));
    let started = std::time::Instant::now();
    assert_eq!(apply(&rules, &get(&long)), Verdict::Nothing);
    assert!(started.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn a_loop_ends_with_500_and_a_line() {
    let rules = Rewrite::compile(&[path("^/(.*)$", "/x$1")]).unwrap();
    let mut turns = 0;
    let response = follow("/", |target| {
        turns += 1;
        match rules.apply(&get(target.unwrap_or("/"))) {
            Verdict::Again(target) => Routed::Again(target),
            verdict => panic!("{verdict:?}"),
        }
    });
    let response = response.ready().unwrap();
    assert_eq!((response.status().as_u16(), turns), (500, RESTARTS + 1));

    // Four rewrites are not a loop.
    let response = follow("/", |target| match target {
        Some("/xxxx") => Routed::Answer(Response::new(osier_web::http::StatusCode::OK).into()),
        target => Routed::Again(format!("{}x", target.unwrap_or("/"))),
    });
    assert_eq!(response.ready().unwrap().status().as_u16(), 200);
}

/// Expressions that are deep, huge, or take exponential time elsewhere.
#[test]
fn hostile_patterns_are_refused_and_match_in_linear_time() {
    assert!(regex(&"(".repeat(100_000)).is_err());
    assert!(regex(&("(".repeat(5000) + &")".repeat(5000))).is_err(), "too deep");
    assert!(regex("(a{1000}){1000}").is_err(), "too large");
    let pattern = regex("^/(a+)+$").unwrap();
    let path = format!("/{}!", "a".repeat(1 << 20));
    let begun = std::time::Instant::now();
    assert!(!pattern.is_match(path.as_bytes()));
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn words_name_subjects() {
    for (word, named) in SUBJECTS {
        assert_eq!(Subject::by_word(word, Some("x")).is_some(), named, "{word}");
        assert_eq!(Subject::by_word(word, None).is_some(), !named, "{word}");
    }
    assert_eq!(Subject::by_word("lua", None), None);
}

#[test]
fn a_condition_on_the_client_names_somebody() {
    let pattern = Regex::new("").unwrap();
    for (text, expected) in [
        ("::ffff:10.0.0.1", "did you mean \"10.0.0.1/32\"?"),
        ("::ffff:10.0.0.0/104", "did you mean \"10.0.0.0/8\"?"),
        ("10.1.2.3/8", "did you mean \"10.0.0.0/8\"?"),
        ("10", "write an address or a network"),
    ] {
        let condition = Condition {
            of: Subject::Client,
            is: Test::Equals(text.into()),
            not: true,
        };
        let error = Check::compile(&condition, &pattern).unwrap_err();
        assert!(error.contains(text) && error.contains(expected), "{error}");
    }
}
