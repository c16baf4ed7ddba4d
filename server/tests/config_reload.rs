//! SIGHUP: a new configuration takes the place of the old one, and nothing that has not changed notices.

mod support;
use std::io::Read;
use std::net::TcpStream;
use support::Client;
use support::sites::{Sites, send, wait_for};

const ROUTES: &str =
    "[[site]]\ndefault = true\n[[site.route]]\npath = \"/fixed\"\nrespond = \"@\"\n[[site.route]]\nfiles = \"www\"\n";

fn routes(answer: &str) -> String {
    ROUTES.replace('@', answer)
}

#[test]
fn a_new_route_appears_for_connections_that_are_open() {
    let sites = Sites::start("[[site]]\ndefault = true\n[[site.route]]\nfiles = \"www\"\n");
    let mut client = sites.connect();
    send(&mut client, "GET", "x", "/new", &[]);
    assert_eq!(client.receive("GET").status, 404);
    let said = sites.reload(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/new\"\nrespond = \"new\"\n[[site.route]]\nfiles = \"www\"\n",
    );
    assert!(
        said.contains("reloaded") && said.contains("(1 site, 2 routes, 1 listener)"),
        "{said}"
    );
    send(&mut client, "GET", "x", "/new", &[]);
    assert_eq!(client.receive("GET").text(), "new");
    send(&mut client, "GET", "x", "/a.txt", &[]);
    assert_eq!(client.receive("GET").text(), "the file a");
}

#[test]
fn a_bad_file_changes_nothing_and_is_explained() {
    let sites = Sites::start(&routes("old"));
    let said = sites.reload("workerz = 2\n[[site]]\ndefault = true\n[[site.route]]\nfilez = \"www\"\n");
    for part in [
        "has mistakes; the old configuration stays:",
        "site.toml:2:1: unknown key 'workerz' in the file; did you mean 'workers'?",
        "unknown key 'filez' in [[site.route]]; did you mean 'files'?",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert_eq!(sites.get("x", "/fixed").text(), "old");
    let said = sites.reload("[[site]\n");
    assert!(said.contains("unclosed array table"), "{said}");
    assert_eq!(sites.get("x", "/fixed").text(), "old");
    std::fs::remove_file(sites.folder.join("site.toml")).unwrap();
    let said = sites.hang_up();
    assert!(said.contains("there is no such file"), "{said}");
    assert_eq!(sites.get("x", "/a.txt").text(), "the file a");
    assert!(sites.reload(&routes("new")).contains("reloaded"));
    assert_eq!(sites.get("x", "/fixed").text(), "new");
}

#[test]
fn a_long_response_goes_on_over_reloads() {
    let folder = Sites::folder();
    let content = support::pattern(32 << 20);
    folder.write("www/large.bin", &content);
    let sites = Sites::start_in(folder, &routes("1"));
    let mut client = sites.connect();
    send(&mut client, "GET", "x", "/large.bin", &[]);
    let head = client.receive_head();
    assert_eq!(
        (head.status, head.field("content-length")),
        (200, Some(&*content.len().to_string()))
    );
    for number in 2..5 {
        assert!(sites.reload(&routes(&number.to_string())).contains("reloaded"));
        assert_eq!(sites.get("x", "/fixed").text(), number.to_string());
    }
    // The route itself is gone: what runs on it ends as it began.
    assert!(
        sites
            .reload("[[site]]\ndefault = true\n[[site.route]]\nrespond = \"all\"\n")
            .contains("reloaded")
    );
    let mut body = client.take_unread();
    let missing = content.len() - body.len();
    (&client.stream).take(missing as u64).read_to_end(&mut body).unwrap();
    assert!(body == content, "{} of {} bytes", body.len(), content.len());
    send(&mut client, "GET", "x", "/large.bin", &[]);
    assert_eq!(client.receive("GET").text(), "all");
}

#[test]
fn a_folder_that_was_replaced_is_opened_anew() {
    let sites = Sites::start(&routes("x"));
    assert_eq!(sites.get("x", "/").text(), "the index");
    std::fs::rename(sites.folder.join("www"), sites.folder.join("was")).unwrap();
    std::fs::rename(sites.folder.join("other"), sites.folder.join("www")).unwrap();
    assert!(sites.hang_up().contains("reloaded"));
    assert_eq!(sites.get("x", "/").text(), "the other index");
}

#[test]
fn what_a_client_has_used_of_its_rate_is_not_forgotten() {
    let file = |body: &str| {
        format!(
            "[[site]]\ndefault = true\n[[site.route]]\npath = \"/rated\"\nrate = {{ requests = 2, per = \"1h\" }}\n\
             respond = \"rated\"\n[[site.route]]\nrespond = \"{body}\"\n"
        )
    };
    let sites = Sites::start(&file("1"));
    assert_eq!(sites.get("x", "/rated").status, 200);
    assert_eq!(sites.get("x", "/rated").status, 200);
    assert_eq!(sites.get("x", "/rated").status, 429);
    assert!(sites.reload(&file("2")).contains("reloaded"));
    assert_eq!(sites.get("x", "/").text(), "2");
    assert_eq!(sites.get("x", "/rated").status, 429);
    // Another rate begins anew.
    assert!(
        sites
            .reload(&file("3").replace("requests = 2", "requests = 3"))
            .contains("reloaded")
    );
    assert_eq!(sites.get("x", "/rated").status, 200);
}

/// Two listeners of fixed ports; asked of the system a moment before.
fn two_ports() -> [u16; 2] {
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listeners = [free(), free()];
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

fn listeners(ports: &[u16], answer: &str) -> String {
    let listen = ports
        .iter()
        .map(|port| format!("[[listen]]\naddress = \"127.0.0.1:{port}\"\n"));
    let routes = routes(answer);
    format!("drain = \"20s\"\n{}{routes}", listen.collect::<String>())
}

#[test]
fn listeners_come_stay_and_go() {
    let ports @ [first, second] = two_ports();
    let folder = Sites::folder();
    let content = support::pattern(32 << 20);
    folder.write("www/large.bin", &content);
    let sites = Sites::start_in(folder, &listeners(&[first], "1"));
    let address = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    assert!(TcpStream::connect(address(second)).is_err());
    let mut stays = Client::new(address(first));
    send(&mut stays, "GET", "x", "/fixed", &[]);
    assert_eq!(stays.receive("GET").text(), "1");

    assert!(sites.reload(&listeners(&ports, "2")).contains("reloaded"));
    let mut busy = Client::new(address(second));
    send(&mut busy, "GET", "x", "/large.bin", &[]);
    assert_eq!(busy.receive_head().status, 200);
    let mut idle = Client::new(address(second));
    send(&mut idle, "GET", "x", "/fixed", &[]);
    assert_eq!(idle.receive("GET").text(), "2");

    assert!(sites.reload(&listeners(&[first], "3")).contains("reloaded"));
    // Nobody new, and who is idle is let go; who is busy is served to the end.
    wait_for("the end of the listener", || {
        TcpStream::connect(address(second)).is_err()
    });
    assert!(idle.receive_rest().is_empty());
    let body = busy.receive_rest();
    assert!(body == content, "{} of {} bytes", body.len(), content.len());
    // The other listener is the one it has been.
    send(&mut stays, "GET", "x", "/fixed", &[]);
    assert_eq!(stays.receive("GET").text(), "3");
}

#[test]
fn a_listener_that_cannot_be_bound_leaves_everything_as_it_was() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let [first, _] = two_ports();
    let sites = Sites::start(&listeners(&[first], "old"));
    let said = sites.reload(&listeners(&[first, port], "new"));
    assert!(
        said.contains("cannot be used") && said.contains(&port.to_string()),
        "{said}"
    );
    assert_eq!(sites.get("x", "/fixed").text(), "old");
}

#[test]
fn what_only_a_start_can_change_is_said() {
    let sites = Sites::start(&routes("1"));
    let said = sites.reload(&format!("workers = 1\n{}", routes("2")));
    assert!(
        said.contains("'workers' has changed: that counts from the next start on"),
        "{said}"
    );
    assert_eq!(sites.get("x", "/fixed").text(), "2");
}

#[test]
fn logs_are_opened_anew() {
    let log = "[[site]]\ndefault = true\nlog = { file = \"site.log\" }\n[[site.route]]\nrespond = \"x\"\n";
    let sites = Sites::start(log);
    let (path, rotated) = (sites.folder.join("site.log"), sites.folder.join("site.log.1"));
    let lines = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    sites.get("x", "/first");
    wait_for("the first line", || lines(&path).contains("/first"));
    std::fs::rename(&path, &rotated).unwrap();
    assert!(sites.hang_up().contains("reloaded"));
    sites.get("x", "/second");
    wait_for("the second line", || lines(&path).contains("/second"));
    assert!(!lines(&rotated).contains("/second"));
    // Another file: from the next request on.
    assert!(sites.reload(&log.replace("site.log", "other.log")).contains("reloaded"));
    sites.get("x", "/third");
    wait_for("the third line", || {
        lines(&sites.folder.join("other.log")).contains("/third")
    });
}
