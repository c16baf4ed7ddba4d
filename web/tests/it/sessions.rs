//! Sessions: their cookie, their end, and their stores.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{fmt, io, thread};

use osier::sync::Event;
use osier::time::VirtualClock;
use osier_web::test::{Client, Reply};
use osier_web::wrap::session::{Memory, Options, Redis, Session, Sessions, Store};
use osier_web::{Address, ForwardedBy, Next, Rejection, Request, Router, Server};
use testkit::{DEADLINE, Redis as Broker};

const HOUR: Duration = Duration::from_secs(3600);

/// A store that counts its calls and may fail.
#[derive(Clone)]
struct Counted(Arc<(Memory, [AtomicUsize; 3])>);

impl Counted {
    fn new() -> Counted {
        Counted(Arc::new((Memory::new(100), Default::default())))
    }

    /// Calls of `load`; of `save`, `replace` and `touch`; and of `remove`.
    fn calls(&self) -> [usize; 3] {
        self.0.1.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    fn count(&self, which: usize) -> &Memory {
        self.0.1[which].fetch_add(1, Ordering::Relaxed);
        &self.0.0
    }
}

impl Store for Counted {
    fn load(&self, id: &str) -> io::Result<Option<(Vec<u8>, Duration)>> {
        self.count(0).load(id)
    }

    fn save(&self, id: &str, data: &[u8], time: Duration) -> io::Result<()> {
        self.count(1).save(id, data, time)
    }

    fn replace(&self, id: &str, data: &[u8], time: Duration) -> io::Result<bool> {
        self.count(1).replace(id, data, time)
    }

    fn touch(&self, id: &str, time: Duration) -> io::Result<bool> {
        self.count(1).touch(id, time)
    }

    fn remove(&self, id: &str) -> io::Result<bool> {
        self.count(2).remove(id)
    }
}

fn app(sessions: Sessions) -> Client {
    app_with(Router::new(), sessions)
}

/// The same, with further routes.
fn app_with(routes: Router, sessions: Sessions) -> Client {
    let get = |request: &mut Request<'_>| -> Result<String, Rejection> {
        let user: Option<String> = request.session()?.get("user")?;
        Ok(user.unwrap_or("nobody".into()))
    };
    let login = |request: &mut Request<'_>| -> Result<(), Rejection> {
        let session = request.session()?;
        session.renew()?;
        session.set("user", request.query_param("user").unwrap_or("ada".into()))
    };
    let router = routes
        .get("/", get)
        .post("/login", login)
        .post("/note", |request: &mut Request<'_>| {
            request.session()?.set("note", [1, 2])
        })
        .post("/forget", |request: &mut Request<'_>| request.session()?.remove("note"))
        .post("/renew", |request: &mut Request<'_>| request.session()?.renew())
        .post("/logout", |request: &mut Request<'_>| request.session()?.destroy())
        .post("/large", |request: &mut Request<'_>| {
            request.session()?.set("large", "x".repeat(100_000))
        })
        .get("/static", |_: &mut Request<'_>| "text")
        .wrap(|request: &mut Request<'_>, next: Next<'_>| {
            request.trust_hops(ForwardedBy::XForwardedFor, |_| true);
            next.run(request)
        })
        .wrap(sessions.wrap());
    Client::new(router)
}

fn line(reply: &Reply) -> &str {
    reply.header("set-cookie").unwrap_or_default()
}

/// The cookie as a browser sends it back.
fn cookie(reply: &Reply) -> String {
    line(reply).split(';').next().unwrap_or_default().to_owned()
}

fn get(client: &Client, cookie: &str) -> String {
    client.get("/").header("cookie", cookie).send().text().to_owned()
}

fn post(client: &Client, path: &str, cookie: &str) -> Reply {
    let reply = client.post(path).header("cookie", cookie).send();
    assert_eq!(reply.status(), 200, "{path}");
    reply
}

#[test]
fn nothing_is_stored_or_sent_before_it_is_needed() {
    let store = Counted::new();
    let client = app(Sessions::new(store.clone()));
    for path in ["/static", "/"] {
        assert_eq!(client.get(path).send().header("set-cookie"), None, "{path}");
    }
    for path in ["/forget", "/renew", "/logout"] {
        assert_eq!(post(&client, path, "a=b").header("set-cookie"), None, "{path}");
    }
    assert_eq!(store.calls(), [0, 0, 0]);
    let cookie = cookie(&client.post("/note").send());
    assert_eq!(store.calls(), [0, 1, 0]);
    client.get("/static").header("cookie", &cookie).send();
    assert_eq!(store.calls(), [0, 1, 0]);
    assert_eq!(get(&client, &cookie), "nobody");
    assert_eq!(store.calls(), [1, 1, 0], "a read writes nothing");
}

#[test]
fn a_test_client_that_keeps_cookies_stays_logged_in() {
    let client = app(Sessions::new(Memory::new(10)));
    let (ada, bob) = (client.with_cookies(), client.with_cookies());
    let user = |client: &Client| client.get("/").send().text().to_owned();
    ada.post("/login").send();
    bob.post("/login?user=bob").send();
    ada.post("/renew").send();
    assert_eq!(
        (user(&ada), user(&bob), user(&client)),
        ("ada".into(), "bob".into(), "nobody".into())
    );
    assert_eq!(get(&ada, "session=none"), "nobody", "its own field");
    ada.post("/logout").send();
    assert_eq!((user(&ada), user(&bob)), ("nobody".into(), "bob".into()));
}

#[test]
fn a_login_has_an_id_that_nobody_knew_and_a_logout_ends_it() {
    let store = Counted::new();
    let client = app(Sessions::new(store.clone()));
    let first = cookie(&client.post("/note").send());
    let reply = post(&client, "/login", &first);
    let second = cookie(&reply);
    assert!(
        second.starts_with("session=") && second.len() == "session=".len() + 43 && second != first,
        "{second}"
    );
    assert_eq!(
        line(&reply).replace(&second, "session=ID"),
        "session=ID; HttpOnly; SameSite=Lax; Path=/; Max-Age=86400"
    );
    assert_eq!(
        (get(&client, &second), get(&client, &first)),
        ("ada".into(), "nobody".into())
    );
    // What was stored before is there, and the same id goes on.
    let reply = post(&client, "/forget", &second);
    assert_eq!(cookie(&reply), second);
    let reply = post(&client, "/logout", &second);
    assert!(
        line(&reply).starts_with("session=; HttpOnly; SameSite=Lax; Path=/; Max-Age=0"),
        "{}",
        line(&reply)
    );
    assert_eq!(get(&client, &second), "nobody");
    assert!(store.0.0.is_empty());
}

#[test]
fn a_slow_request_does_not_bring_back_a_session_that_has_ended() {
    for path in ["/late", "/late?renew=1"] {
        let store = Counted::new();
        let [loaded, ended] = [(); 2].map(|()| Arc::new(Event::new()));
        let (has_loaded, has_ended) = (loaded.clone(), ended.clone());
        let slow = move |request: &mut Request<'_>| -> Result<(), Rejection> {
            let session = request.session()?;
            let user: Option<String> = session.get("user")?;
            has_loaded.set();
            assert!(
                has_ended.wait_timeout(DEADLINE),
                "no other request has ended the session"
            );
            match request.query_param("renew") {
                Some(_) => session.renew(),
                None => session.set("user", user),
            }
        };
        let client = app_with(Router::new().post("/late", slow), Sessions::new(store.clone()));
        let session = cookie(&post(&client, "/login", ""));
        thread::scope(|scope| {
            let late = scope.spawn(|| client.post(path).header("cookie", &session).send());
            assert!(loaded.wait_timeout(DEADLINE), "the slow request has no values");
            post(&client, "/logout", &session);
            ended.set();
            let late = late.join().unwrap();
            assert_eq!(
                (late.status().as_u16(), late.header("set-cookie")),
                (200, None),
                "{path}"
            );
        });
        assert_eq!(get(&client, &session), "nobody", "{path}");
        assert!(store.0.0.is_empty(), "{path}");
    }
}

#[test]
fn a_login_that_overlaps_another_or_a_logout_is_kept() {
    let loads_note = |session: &Session| session.get::<[u8; 2]>("note");
    for (other, is_destroyed) in [
        ("/login", false),
        ("/logout", false),
        ("/login", true),
        ("/logout", true),
    ] {
        for sessions in [Sessions::new(Memory::new(10)), Sessions::new(Counted::new())] {
            let [loaded, ended] = [(); 2].map(|()| Arc::new(Event::new()));
            let (has_loaded, has_ended) = (loaded.clone(), ended.clone());
            let slow = move |request: &mut Request<'_>| -> Result<(), Rejection> {
                let session = request.session()?;
                assert_eq!(loads_note(&session)?, Some([1, 2]));
                has_loaded.set();
                assert!(has_ended.wait_timeout(DEADLINE), "no other request has come");
                if is_destroyed {
                    session.destroy()?
                } else {
                    session.renew()?
                }
                session.set("gone", 1)?;
                session.remove("gone")?;
                session.set("user", "bob")
            };
            let values = move |request: &mut Request<'_>| -> Result<String, Rejection> {
                let session = request.session()?;
                let (user, gone) = (session.get::<String>("user")?, session.get::<u8>("gone")?);
                Ok(format!("{user:?} {:?} {gone:?}", loads_note(&session)?))
            };
            let client = app_with(Router::new().post("/slow", slow).get("/values", values), sessions);
            let session = cookie(&client.post("/note").send());
            let (first, second) = thread::scope(|scope| {
                let second = scope.spawn(|| post(&client, "/slow", &session));
                assert!(loaded.wait_timeout(DEADLINE), "the slow request has no values");
                let first = cookie(&post(&client, other, &session));
                ended.set();
                (first, cookie(&second.join().unwrap()))
            });
            let values = |cookie: &str| client.get("/values").header("cookie", cookie).send().text().to_owned();
            assert_eq!(values(&second), "Some(\"bob\") None None", "{other} {is_destroyed}");
            assert_eq!(values(&session), "None None None", "{other} {is_destroyed}");
            if other == "/login" {
                assert_eq!(values(&first), "Some(\"ada\") Some([1, 2]) None", "{is_destroyed}");
            }
        }
    }
}

#[test]
fn a_login_keeps_its_place_in_a_full_store() {
    let client = app(Sessions::new(Memory::new(1)));
    let first = cookie(&client.post("/note").send());
    let second = cookie(&post(&client, "/login", &first));
    let third = cookie(&post(&client, "/renew", &second));
    assert_eq!(
        [&first, &second, &third].map(|sent| get(&client, sent)),
        ["nobody", "nobody", "ada"]
    );
}

#[test]
fn a_slow_request_that_only_reads_undoes_no_change() {
    let runtime = osier::Runtime::builder().workers(1).clock(VirtualClock::new());
    runtime.build().unwrap().run(|| {
        let [loaded, changed] = [(); 2].map(|()| Arc::new(Event::new()));
        let (has_loaded, has_changed) = (loaded.clone(), changed.clone());
        let note = move |request: &mut Request<'_>| -> Result<String, Rejection> {
            let note: Option<[u8; 2]> = request.session()?.get("note")?;
            if request.query_param("slow").is_some() {
                has_loaded.set();
                assert!(has_changed.wait_timeout(DEADLINE), "no other request has come");
            }
            Ok(format!("{note:?}"))
        };
        let options = Options {
            idle: HOUR,
            ..Options::default()
        };
        let store = Counted::new();
        let client = app_with(Router::new().get("/note", note), Sessions::with(store.clone(), options));
        let session = cookie(&post(&client, "/login", ""));
        post(&client, "/note", &session);
        // A read renews the session from now on.
        osier::sleep(HOUR.mul_f64(0.6));
        osier::scope(|scope| {
            scope.spawn_local(|| {
                let reply = client.get("/note?slow=1").header("cookie", &session).send();
                assert_eq!(reply.text(), "Some([1, 2])");
                assert!(line(&reply).contains("Max-Age=3600"), "{}", line(&reply));
            });
            loaded.wait();
            post(&client, "/forget", &session);
            changed.set();
        });
        let reply = client.get("/note").header("cookie", &session).send();
        assert_eq!(reply.text(), "None");
    });
}

/// A store that keeps no session for longer.
struct Fixed(Memory);

impl Store for Fixed {
    fn load(&self, id: &str) -> io::Result<Option<(Vec<u8>, Duration)>> {
        self.0.load(id)
    }

    fn save(&self, id: &str, data: &[u8], time: Duration) -> io::Result<()> {
        self.0.save(id, data, time)
    }

    fn replace(&self, id: &str, data: &[u8], time: Duration) -> io::Result<bool> {
        self.0.replace(id, data, time)
    }

    fn touch(&self, _: &str, _: Duration) -> io::Result<bool> {
        Err(io::Error::other(NoConnection(io::Error::other("the host is down"))))
    }

    fn remove(&self, id: &str) -> io::Result<bool> {
        self.0.remove(id)
    }
}

#[test]
fn a_store_that_renews_no_session_costs_nobody_a_page() {
    let runtime = osier::Runtime::builder().workers(1).clock(VirtualClock::new());
    runtime.build().unwrap().run(|| {
        let (told, hears) = mpsc::channel();
        let options = Options {
            idle: HOUR,
            ..Options::default()
        };
        let router = Router::new()
            .post("/login", |request: &mut Request<'_>| {
                request.session()?.set("user", "ada")
            })
            .get("/", |request: &mut Request<'_>| -> Result<String, Rejection> {
                let user: Option<String> = request.session()?.get("user")?;
                Ok(user.unwrap_or_default())
            })
            .wrap(Sessions::with(Fixed(Memory::new(10)), options).wrap());
        let server = Server::new(router).on_log(move |record| told.send(record.to_string()).unwrap());
        let client = Client::of(server);
        let session = cookie(&client.post("/login").send());
        osier::sleep(HOUR.mul_f64(0.6));
        // The log has a line, though not for each request.
        for (seconds, is_logged) in [(0, true), (0, false), (4, false), (1, true), (0, false)] {
            osier::sleep(Duration::from_secs(seconds));
            let reply = client.get("/").header("cookie", &session).send();
            assert_eq!((reply.status().as_u16(), reply.text()), (200, "ada"));
            assert_eq!(reply.header("set-cookie"), None);
            assert_eq!(
                hears.try_recv().ok().as_deref(),
                is_logged.then_some("GET /: the session cannot be renewed: no connection: the host is down")
            );
        }
    });
}

#[test]
fn a_handler_that_panics_changes_no_session() {
    let broken = |request: &mut Request<'_>| -> Result<(), Rejection> {
        request.session()?.set("user", "half")?;
        panic!("on purpose")
    };
    let store = Counted::new();
    let client = app_with(Router::new().post("/broken", broken), Sessions::new(store.clone()));
    let session = cookie(&post(&client, "/login", ""));
    for sent in [&*session, ""] {
        let reply = client.post("/broken").header("cookie", sent).send();
        assert_eq!((reply.status().as_u16(), reply.header("set-cookie")), (500, None));
    }
    assert_eq!(get(&client, &session), "ada");
    assert_eq!(store.calls(), [2, 1, 0]);
}

#[test]
fn a_client_cannot_choose_an_id() {
    let client = app(Sessions::new(Memory::new(10)));
    let chosen = format!("session={}", "A".repeat(43));
    for sent in [
        &chosen,
        "session=",
        "session=x",
        "session=\"\"",
        "session=../../etc/passwd",
    ] {
        let given = cookie(&post(&client, "/login", sent));
        assert!(given.len() == chosen.len() && given != chosen, "{sent}: {given}");
        assert_eq!(get(&client, sent), "nobody", "{sent}");
    }
    // A cookie of another host that comes first does not hide ours if it is no id.
    let ours = cookie(&client.post("/login").send());
    assert_eq!(get(&client, &format!("session=x; {ours}")), "ada");
    // Nor if it is one, but of no session.
    assert_eq!(get(&client, &format!("{chosen}; {ours}")), "ada");
    let moved = cookie(&post(&client, "/renew", &format!("{chosen}; {ours}")));
    assert_eq!(
        (get(&client, &ours), get(&client, &moved)),
        ("nobody".into(), "ada".into())
    );
}

#[test]
fn the_cookie_is_secure_when_the_client_came_over_https() {
    let client = app(Sessions::new(Memory::new(10)));
    let https = client
        .post("/login")
        .header("x-forwarded-for", "10.0.0.1")
        .header("x-forwarded-proto", "https");
    assert!(line(&https.send()).contains("; Secure"));
    assert!(!line(&client.post("/login").send()).contains("Secure"));
    let options = Options {
        name: "__Host-id".into(),
        secure: Some(true),
        ..Options::default()
    };
    let client = app(Sessions::with(Memory::new(10), options));
    let reply = client.post("/login").send();
    assert!(
        line(&reply).starts_with("__Host-id=") && line(&reply).contains("; Secure; Path=/"),
        "{}",
        line(&reply)
    );
}

#[test]
fn a_session_ends_when_it_is_idle_and_goes_on_while_it_is_used() {
    let runtime = osier::Runtime::builder().workers(1).clock(VirtualClock::new());
    runtime.build().unwrap().run(|| {
        let store = Counted::new();
        let options = Options {
            idle: HOUR,
            ..Options::default()
        };
        let client = app(Sessions::with(store.clone(), options));
        let sent = cookie(&client.post("/login").send());
        let step = |part: f64| {
            osier::sleep(HOUR.mul_f64(part));
            let reply = client.get("/").header("cookie", &sent).send();
            (reply.text().to_owned(), line(&reply).contains("Max-Age=3600"))
        };
        let ada = |is_renewed| ("ada".to_owned(), is_renewed);
        // The first half changes nothing, the second one renews store and cookie.
        assert_eq!(step(0.3), ada(false));
        assert_eq!(step(0.3), ada(true));
        assert_eq!(step(0.9), ada(true));
        assert_eq!(step(0.4), ada(false));
        assert_eq!(
            step(0.7),
            ("nobody".to_owned(), false),
            "idle for more than an hour since it was renewed"
        );
        assert_eq!(store.calls(), [5, 3, 0]);
    });
}

#[test]
fn what_cannot_be_stored_is_a_failure_of_the_server() {
    let client = app(Sessions::new(Memory::new(10)));
    let reply = client.post("/large").send();
    assert_eq!((reply.status().as_u16(), reply.header("set-cookie")), (500, None));
    let bare = Client::new(Router::new().get("/", |request: &mut Request<'_>| request.session().map(drop)));
    assert_eq!(bare.get("/").send().status(), 500);
}

/// An error whose text leaves out its source.
#[derive(Debug)]
struct NoConnection(io::Error);

impl fmt::Display for NoConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection")
    }
}

impl Error for NoConnection {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

/// A store that is away.
struct Away;

impl Store for Away {
    fn load(&self, _: &str) -> io::Result<Option<(Vec<u8>, Duration)>> {
        Err(io::ErrorKind::ConnectionRefused.into())
    }

    fn save(&self, _: &str, _: &[u8], _: Duration) -> io::Result<()> {
        Err(io::Error::other(NoConnection(io::Error::other("the host is down"))))
    }

    fn replace(&self, _: &str, _: &[u8], _: Duration) -> io::Result<bool> {
        unreachable!("nothing was loaded")
    }

    fn touch(&self, _: &str, _: Duration) -> io::Result<bool> {
        unreachable!("nothing was loaded")
    }

    fn remove(&self, _: &str) -> io::Result<bool> {
        unreachable!("nothing was loaded")
    }
}

#[test]
fn a_store_that_is_away_makes_the_service_unavailable() {
    let (told, hears) = mpsc::channel();
    let passes_on = |request: &mut Request<'_>| -> io::Result<()> {
        request.session()?.get::<String>("user")?;
        Ok(())
    };
    let router = Router::new()
        .post("/login", |request: &mut Request<'_>| {
            request.session()?.set("user", "ada")
        })
        .get("/", |request: &mut Request<'_>| {
            let user = request.session()?.get::<String>("user");
            user.inspect_err(|error| assert_eq!(error.status(), 503))
        })
        .get("/io", passes_on)
        .wrap(Sessions::new(Away).wrap());
    let server = Server::new(router).on_log(move |record| told.send(record.to_string()).unwrap());
    let client = Client::of(server);
    let sent = format!("session={}", "A".repeat(43));
    let requests = [
        (
            client.get("/").header("cookie", &sent),
            "GET / failed: the session cannot be loaded: connection refused",
        ),
        (
            client.get("/io").header("cookie", &sent),
            "GET /io failed: the session cannot be loaded: connection refused",
        ),
        (
            client.post("/login"),
            "POST /login failed: the session cannot be stored: no connection: the host is down",
        ),
    ];
    for (request, line) in requests {
        let reply = request.send();
        assert_eq!(
            (reply.status().as_u16(), reply.header("retry-after")),
            (503, Some("1")),
            "{line}"
        );
        assert_eq!(reply.text(), "503 Service Unavailable\n");
        assert_eq!(reply.header("set-cookie"), None, "{line}");
        assert_eq!(hears.recv().unwrap(), line);
    }
}

#[test]
fn sessions_in_redis_need_the_commands_that_are_documented() {
    let Some(broker) = Broker::start(&[]) else {
        return;
    };
    // Redis 5 has no ACL, and allows everything.
    broker.ask("ACL SETUSER default -@all +ping +get +pttl +set +pexpire +del +acl");
    let (store, time) = (Redis::new(Address::Unix(broker.socket())), HOUR);
    store.save("a", b"1", time).unwrap();
    assert!(store.replace("a", b"2", time).unwrap() && store.touch("a", time).unwrap());
    assert!(store.rename("a", "b", b"3", time).unwrap());
    assert!(!store.rename("a", "c", b"4", time).unwrap(), "it has moved");
    let data = |id: &str| store.load(id).unwrap().map(|(data, _)| data);
    assert_eq!([data("a"), data("b"), data("c")], [None, Some(b"3".to_vec()), None]);
    assert!(store.remove("b").unwrap() && !store.remove("b").unwrap());
}

#[test]
fn servers_share_sessions_in_redis() {
    let Some(mut broker) = Broker::start(&["--requirepass", "secret"]) else {
        return;
    };
    let address = Address::Unix(broker.socket());
    let ask = |broker: &Broker, command: &str| broker.ask(&format!("AUTH secret\r\n{command}"));
    let options = || Options {
        idle: HOUR,
        ..Options::default()
    };
    let server = || {
        app(Sessions::with(
            Redis::new(address.clone()).password("secret").prefix("app:"),
            options(),
        ))
    };
    let (one, other) = (server(), server());
    let first = cookie(&one.post("/login?user=b%C3%A9a%0d%0a").send());
    assert_eq!(get(&other, &first), "b\u{e9}a\r\n");
    let id = first.strip_prefix("session=").unwrap();
    let keys = ask(&broker, "KEYS *");
    assert!(
        keys.contains("app:") && !keys.contains(id),
        "the id itself is not stored: {keys}"
    );
    let second = cookie(&post(&other, "/renew", &first));
    assert_eq!(
        (get(&one, &first), get(&one, &second)),
        ("nobody".into(), "b\u{e9}a\r\n".into())
    );
    // Redis ends it.
    let key = ask(&broker, "KEYS *")
        .lines()
        .find(|line| line.starts_with("app:"))
        .unwrap()
        .to_owned();
    assert!(
        ask(&broker, &format!("PTTL {key}"))
            .lines()
            .any(|line| line.len() > 6 && line.starts_with(":3"))
    );
    ask(&broker, &format!("PEXPIRE {key} 1000000"));
    assert!(
        line(&one.get("/").header("cookie", &second).send()).contains("Max-Age=3600"),
        "renewed after half its time"
    );
    post(&one, "/logout", &second);
    assert!(!ask(&broker, "KEYS *").contains("app:"));

    // Many at once: more than the connections that are kept.
    let third = cookie(&one.post("/login").send());
    thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| assert_eq!(get(&one, &third), "ada"));
        }
    });
    // A server that has restarted: the kept connections are replaced. Its sessions are gone.
    broker.restart();
    assert_eq!(get(&one, &third), "nobody");
    broker.kill();
    assert_eq!(one.get("/").header("cookie", &third).send().status(), 503);
    assert_eq!(one.get("/static").header("cookie", &third).send().status(), 200);
    broker.restart();
    let fourth = cookie(&one.post("/login").send());
    assert_eq!(get(&other, &fourth), "ada");
}
