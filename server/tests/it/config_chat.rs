//! A `chat` route: visitors of one process, and of two processes over a real Redis server, read each other. A reload leaves their
//! connections open.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::metrics::{ADMIN, admin_of, wait_for_value};
use crate::support::sites::{Sites, wait_for};
use crate::support::{DEADLINE, Signal};
use testkit::Redis;

const CHAT: &str =
    "[[site]]\ndefault = true\n[[site.route]]\npath = \"/chat\"\nchat = { history = 2, message = 100 }\n";

/// A guest: its connection, what came of the next frames, and all that came.
struct Guest(TcpStream, Vec<u8>, Vec<u8>);

impl Guest {
    fn enter(addr: SocketAddr, query: &str, origin: &str) -> Result<Guest, String> {
        Guest::enter_at(addr, "x", query, origin)
    }

    fn enter_at(addr: SocketAddr, host: &str, query: &str, origin: &str) -> Result<Guest, String> {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let head = format!(
            "GET /chat?{query} HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        let answer = String::from_utf8(answer).unwrap();
        match answer.starts_with("HTTP/1.1 101 ") {
            true => Ok(Guest(stream, Vec::new(), Vec::new())),
            false => Err(answer),
        }
    }

    /// Enters, and reads the history of the room, which comes first.
    fn with_history(sites: &Sites, query: &str) -> (Guest, String) {
        let mut guest = Guest::enter(sites.addresses[0], query, "http://x").expect("a guest may come");
        guest.expect("\"lines\":[");
        guest.expect("]}");
        let history = String::from_utf8_lossy(&guest.2).into_owned();
        (guest, history)
    }

    fn say(&mut self, text: &str) {
        let json = format!("{{\"text\": \"{text}\"}}");
        // A mask of zeros leaves the bytes as they are.
        let mut frame = vec![0x81, 0x80 | u8::try_from(json.len()).expect("a short line"), 0, 0, 0, 0];
        frame.extend_from_slice(json.as_bytes());
        self.0.write_all(&frame).unwrap();
    }

    /// Reads until this has come.
    fn expect(&mut self, text: &str) {
        let mut piece = [0; 4096];
        loop {
            let got = String::from_utf8_lossy(&self.1).into_owned();
            if let Some(at) = got.find(text) {
                self.1 = got.as_bytes()[at + text.len()..].to_vec();
                return;
            }
            let count = self.0.read(&mut piece).unwrap_or(0);
            assert!(count > 0, "{text} has not come: {got:?}");
            self.1.extend_from_slice(&piece[..count]);
            self.2.extend_from_slice(&piece[..count]);
        }
    }
}

#[test]
fn guests_of_a_route_hear_each_other_and_stay_over_a_reload() {
    let sites = Sites::start(CHAT);
    let addr = sites.addresses[0];
    let enter = |query: &str| Guest::enter(addr, query, "http://x").expect("a guest may come");
    let (mut ada, mut bob) = (enter("name=Ada"), enter("name=Bob"));
    ada.expect("\"count\":2");
    ada.say("hello");
    bob.expect("\"text\":\"hello\"");
    let said = sites.reload(&format!("{CHAT}[[site.route]]\npath = \"/new\"\nrespond = \"new\"\n"));
    assert!(said.contains("reloaded"), "{said}");
    assert_eq!(sites.get("x", "/new").text(), "new");
    bob.say("still here");
    ada.expect("\"text\":\"still here\"");
    let mut late = enter("name=Late");
    late.expect("\"lines\":[");
    late.expect("\"text\":\"hello\"");
    late.expect("\"text\":\"still here\"");
    late.say(&"x".repeat(101));
    late.expect("at most 100 bytes");
    let refused = Guest::enter(addr, "", "http://elsewhere")
        .err()
        .expect("another site's page");
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
}

/// The history that a newcomer of a host gets.
fn history_of(addr: SocketAddr, host: &str) -> String {
    let mut guest = Guest::enter_at(addr, host, "name=Late", &format!("http://{host}")).expect("a guest may come");
    guest.expect("\"is\":\"history\"");
    guest.expect("\"count\":");
    String::from_utf8_lossy(&guest.2).into_owned()
}

#[test]
fn a_reload_gives_the_chat_of_a_site_to_no_other_site() {
    let site = |host: &str, path: &str| {
        format!("[[site]]\nhost = \"{host}\"\n[[site.route]]\npath = \"{path}\"\nchat = true\n")
    };
    let sites = Sites::start(&site("inner.example", "/chat"));
    let addr = sites.addresses[0];
    let enter =
        |host: &str| Guest::enter_at(addr, host, "name=Ada", &format!("http://{host}")).expect("a guest may come");
    let mut ada = enter("inner.example");
    ada.say("a secret");
    ada.expect("a secret");
    // The new site stands before the one that stays.
    sites.reload(&(site("public.example", "/chat") + &site("inner.example", "/chat")));
    let mut eve = enter("public.example");
    eve.expect("\"count\":1");
    ada.say("another secret");
    ada.expect("another secret");
    eve.say("is anybody there?");
    eve.expect("is anybody there?");
    let heard = String::from_utf8_lossy(&eve.2).into_owned();
    assert!(!heard.contains("secret"), "{heard}");
    let history = history_of(addr, "inner.example");
    assert!(
        history.contains("a secret") && history.contains("another secret"),
        "{history}"
    );
    // A site that takes the place of another one has an empty room.
    sites.reload(&site("other.example", "/chat"));
    let history = history_of(addr, "other.example");
    assert!(!history.contains("secret") && !history.contains("anybody"), "{history}");
}

#[test]
fn the_default_sites_of_two_listeners_keep_their_own_chats() {
    let text = |order: [&str; 2]| {
        let listen = |name: &str, address: &str| format!("[[listen]]\nname = \"{name}\"\naddress = \"{address}:0\"\n");
        let site = |name: &str| {
            format!("[[site]]\ndefault = true\nlisten = \"{name}\"\n[[site.route]]\npath = \"/chat\"\nchat = true\n")
        };
        listen("in", "127.0.0.1") + &listen("out", "127.0.0.2") + &order.map(site).concat()
    };
    let sites = Sites::start(&text(["in", "out"]));
    let [inner, outer] = [sites.addresses[0], sites.addresses[1]];
    let mut ada = Guest::enter(inner, "name=Ada", "http://x").expect("a guest may come");
    ada.say("a secret");
    ada.expect("a secret");
    let said = sites.reload(&text(["out", "in"]));
    assert!(said.contains("reloaded"), "{said}");
    assert!(!history_of(outer, "x").contains("a secret"));
    assert!(history_of(inner, "x").contains("a secret"));
}

#[test]
fn rooms_guests_and_lines_are_counted_and_stay_so_over_a_reload() {
    let file = format!("{ADMIN}{CHAT}");
    let sites = Sites::start(&file);
    let admin = admin_of(&sites);
    let is = |name: &str, count: f64| wait_for_value(admin, name, &[("site", "default"), ("route", "/chat")], count);
    is("osier_chat_guests", 0.0);
    let enter = |query: &str| Guest::enter(sites.addresses[0], query, "http://x").expect("a guest may come");
    let (mut ada, mut bob) = (enter("name=Ada"), enter("name=Bob"));
    let hall = enter("room=hall&name=Eve");
    ada.say("hello");
    bob.expect("hello");
    bob.say(&"x".repeat(101));
    bob.expect("at most 100 bytes");
    assert!(
        sites
            .reload(&format!("{file}[[site.route]]\nrespond = \"new\"\n"))
            .contains("reloaded")
    );
    is("osier_chat_rooms", 2.0);
    is("osier_chat_guests", 3.0);
    is("osier_chat_lines_total", 1.0);
    is("osier_chat_rejected_lines_total", 1.0);
    is("osier_chat_slow_guests_total", 0.0);
    drop(hall);
    is("osier_chat_rooms", 1.0);
}

#[test]
fn ctrl_c_with_a_guest_in_the_chat_ends_at_once_with_a_close_frame() {
    let mut sites = Sites::start(CHAT);
    let mut guest = Guest::enter(sites.addresses[0], "name=Ada", "http://x").expect("a guest may come");
    guest.expect("\"count\":1");
    let start = std::time::Instant::now();
    sites.server.signal(Signal::INT);
    // The close frame with its code, 1001, and its reason. The guest does not reply.
    let mut rest = Vec::new();
    guest.0.read_to_end(&mut rest).unwrap();
    rest.splice(..0, guest.1.iter().copied());
    let close = [&[0x88, 24, 0x03, 0xE9][..], b"the server is stopping"].concat();
    assert!(rest.ends_with(&close), "{rest:?}");
    assert_eq!(sites.server.wait().code(), Some(0));
    // The drain may take 10 s.
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}

#[test]
fn two_servers_are_one_house_over_redis() {
    let Some(broker) = Redis::start(&[]) else { return };
    let file = |more: &str| {
        let socket = broker.socket();
        format!(
            "[[site]]\ndefault = true\n[[site.route]]\npath = \"/chat\"\n\
             chat = {{ burst = 100, redis = \"redis+unix://{}\", channel = \"house\" }}\n{more}",
            socket.display()
        )
    };
    let (one, two) = (Sites::start(&file("")), Sites::start(&file("")));
    // Before there is a guest: what others say is remembered for those who come.
    broker.wait_for_listeners("house", 2);
    let enter =
        |sites: &Sites, query: &str| Guest::enter(sites.addresses[0], query, "http://x").expect("a guest may come");
    let mut ada = enter(&one, "room=hall&name=Ada");
    ada.say("is anybody there?");
    ada.expect("is anybody there?");
    let mut bob = testkit::wait_for("what was said before", || {
        let (bob, history) = Guest::with_history(&two, "room=hall&name=Bob");
        history.contains("is anybody there?").then_some(bob)
    });
    bob.say("I am");
    ada.expect("\"name\":\"Bob\"");
    ada.expect("\"text\":\"I am\"");
    // A reload that leaves the route alone leaves the house alone.
    assert!(
        one.reload(&file("[[site.route]]\nrespond = \"new\"\n"))
            .contains("reloaded")
    );
    bob.say("still here?");
    ada.expect("\"text\":\"still here?\"");
    ada.say("yes");
    bob.expect("\"text\":\"yes\"");
    // Each line once: nobody hears an echo of the own ones.
    ada.say("the end");
    ada.expect("the end");
    bob.say("over");
    ada.expect("over");
    assert_eq!(String::from_utf8_lossy(&ada.2).matches("\"the end\"").count(), 1);
    // What is no line of a chat is dropped, with a word to the operator.
    broker.ask("PUBLISH house nonsense");
    one.wait_until_said("in \"house\": it is not of the room's type");
    // The route is gone: so is the listener at the broker, when the last guest is.
    assert!(
        two.reload("[[site]]\ndefault = true\n[[site.route]]\nrespond = \"x\"\n")
            .contains("reloaded")
    );
    bob.say("not yet gone");
    ada.expect("not yet gone");
    drop(bob);
    broker.wait_for_listeners("house", 1);
}

#[test]
fn a_room_over_redis_leaves_with_its_last_guest_on_any_server() {
    let Some(broker) = Redis::start(&[]) else { return };
    let socket = broker.socket();
    let file = format!(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/chat\"\nchat = {{ redis = \"redis+unix://{}\", channel = \"house\" }}\n",
        socket.display()
    );
    let (one, two) = (Sites::start(&file), Sites::start(&file));
    broker.wait_for_listeners("house", 2);
    let remembers = |sites: &Sites| {
        let (_bob, history) = Guest::with_history(sites, "room=hall&name=Bob");
        history.contains("hello")
    };
    let (mut ada, _) = Guest::with_history(&one, "room=hall&name=Ada");
    ada.say("hello");
    ada.expect("\"text\":\"hello\"");
    wait_for("the other server hears it", || remembers(&two));
    // Nobody is in the room of the other server now, but Ada is in its room here.
    for _ in 0..3 {
        assert!(remembers(&two));
    }
    drop(ada);
    wait_for("the room leaves here", || !remembers(&one));
    wait_for("the room leaves there", || !remembers(&two));
}

#[test]
fn a_chat_goes_on_without_its_broker() {
    let sites = Sites::start(&CHAT.replace("history = 2", "history = 2, redis = \"redis://127.0.0.1:1\""));
    let enter = |query: &str| Guest::enter(sites.addresses[0], query, "http://x").expect("a guest may come");
    let (mut ada, mut bob) = (enter("name=Ada"), enter("name=Bob"));
    ada.expect("\"count\":2");
    ada.say("hello");
    bob.expect("\"text\":\"hello\"");
    sites.wait_until_said("osier: redis 127.0.0.1:1 is unreachable");
}
