//! Starts each web example as a reader would, and sends it the requests that its header shows.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::{Folder, Redis, php};
use tungstenite::Message;

use crate::common::{Running, connect};

/// Sends one request on a new connection. Returns the status, the head and the body.
fn ask(addr: &str, method: &str, path: &str, kind: &str, body: &str) -> (u16, String, String) {
    let mut client = connect(addr);
    write!(
        client,
        "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

fn get(addr: &str, path: &str) -> (u16, String) {
    let (status, _, body) = ask(addr, "GET", path, "text/plain", "");
    (status, body)
}

#[test]
fn todos_live_in_sqlite() {
    let folder = Folder::new();
    let start = || {
        Running::start(
            env!("CARGO_BIN_EXE_todo"),
            &["127.0.0.1:0", &folder.join("todo.db").display().to_string()],
        )
    };
    let mut todo = start();
    let addr = todo.addr("todo on http://");
    let json = |method: &str, path: &str, body: Value| {
        let (status, head, body) = ask(&addr, method, path, "application/json", &body.to_string());
        (status, head, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    };
    let (status, head, made) = json("POST", "/todos", json!({"title": "read the docs"}));
    assert_eq!(
        (status, made),
        (201, json!({"id": 1, "title": "read the docs", "done": false}))
    );
    assert!(head.contains("location: /todos/1"), "{head}");
    json("POST", "/todos", json!({"title": "write some"}));
    let (_, _, changed) = json("PATCH", "/todos/1", json!({"done": true}));
    assert_eq!(changed, json!({"id": 1, "title": "read the docs", "done": true}));
    let (_, open) = get(&addr, "/todos?done=false");
    let open: Value = serde_json::from_str(&open).unwrap();
    assert_eq!(open, json!([{"id": 2, "title": "write some", "done": false}]));
    let (_, after) = get(&addr, "/todos?after=1");
    assert!(
        after.contains("write some") && !after.contains("read the docs"),
        "{after}"
    );
    for (method, path, body, status) in [
        ("POST", "/todos", json!({"title": "  "}), 422),
        ("POST", "/todos", json!({"name": "x"}), 422),
        ("GET", "/todos/9", json!(null), 404),
        ("PATCH", "/todos/9", json!({}), 404),
        ("DELETE", "/todos/9", json!(null), 404),
        ("GET", "/todos/x", json!(null), 400),
        ("DELETE", "/todos/1", json!(null), 204),
    ] {
        assert_eq!(json(method, path, body).0, status, "{method} {path}");
    }
    drop(todo);
    let mut again = start();
    let (_, kept) = get(&again.addr("todo on http://"), "/todos");
    assert!(kept.contains("write some") && !kept.contains("read the docs"), "{kept}");
}

/// Sends a form with a cookie. Returns the status, the cookie that is set, and the body.
fn visit(addr: &str, method: &str, path: &str, cookie: &str, form: &str) -> (u16, Option<String>, String) {
    let kind = format!("application/x-www-form-urlencoded\r\nAccept: text/html\r\nCookie: {cookie}");
    let (status, head, body) = ask(addr, method, path, &kind, form);
    let set = head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: ")?.split(';').next());
    (status, set.map(str::to_owned), body)
}

#[test]
fn a_login_is_a_session_that_ends_with_the_logout() {
    let redis = Redis::start(&[]);
    let shared = redis.as_ref().map(|redis| format!("unix:{}", redis.socket().display()));
    for store in [None, shared.as_deref()]
        .into_iter()
        .take(1 + usize::from(shared.is_some()))
    {
        let args: Vec<&str> = ["127.0.0.1:0"].into_iter().chain(store).collect();
        let mut login = Running::start(env!("CARGO_BIN_EXE_login"), &args);
        let addr = login.addr("login on http://");
        let (status, none, form) = visit(&addr, "GET", "/", "", "");
        assert!(status == 200 && none.is_none() && form.contains("<form"), "{form}");
        let (status, none, page) = visit(&addr, "POST", "/login", "", "user=ada&password=wrong");
        assert!(
            status == 403 && none.is_none() && page.contains("<h1>403 Forbidden</h1>"),
            "{page}"
        );
        let (status, cookie, _) = visit(&addr, "POST", "/login", "", "user=ada&password=open+sesame");
        let cookie = cookie.expect("a session");
        assert_eq!(status, 303);
        assert!(visit(&addr, "GET", "/", &cookie, "").2.contains("here 0 times"));
        assert!(visit(&addr, "GET", "/", &cookie, "").2.contains("here 1 times"));
        assert_eq!(
            visit(&addr, "POST", "/logout", &cookie, "").1.as_deref(),
            Some("session=")
        );
        assert!(visit(&addr, "GET", "/", &cookie, "").2.contains("<form"));
        let guess = || visit(&addr, "POST", "/login", "", "user=ada&password=wrong").0;
        assert!((0..20).any(|_| guess() == 429), "passwords can be guessed");
    }
}

#[test]
fn uploads_are_files_afterwards() {
    let folder = Folder::new();
    let mut upload = Running::start(
        env!("CARGO_BIN_EXE_upload"),
        &["127.0.0.1:0", &folder.join("uploads").display().to_string()],
    );
    let addr = upload.addr("upload on http://");
    assert!(get(&addr, "/").1.contains("multipart/form-data"));
    let content = "0123456789".repeat(100_000);
    let body = format!(
        "--cut\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\nnumbers\r\n--cut\r\n\
         Content-Disposition: form-data; name=\"files\"; filename=\"../n.txt\"\r\n\r\n{content}\r\n--cut--\r\n"
    );
    let (status, _, said) = ask(&addr, "POST", "/upload", "multipart/form-data; boundary=cut", &body);
    let said: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!((status, &said[0]["text"]["text"]), (200, &json!("numbers")));
    let file = &said[1]["file"];
    assert_eq!((&file["name"], &file["bytes"]), (&json!("../n.txt"), &json!(1_000_000)));
    let saved_as = file["saved_as"].as_str().unwrap();
    assert!(!saved_as.contains('/'), "{saved_as}");
    assert!(fs::read_to_string(folder.join("uploads").join(saved_as)).unwrap() == content);
    // A form that breaks off leaves nothing.
    let broken = body.replace("\r\n--cut--", "\r\n--cut\r\nX");
    let (status, ..) = ask(&addr, "POST", "/upload", "multipart/form-data; boundary=cut", &broken);
    assert_eq!(status, 400);
    assert_eq!(fs::read_dir(folder.join("uploads")).unwrap().count(), 1);
}

#[test]
fn guests_of_the_chat_hear_each_other() {
    let mut chat = Running::start(env!("CARGO_BIN_EXE_chat"), &["127.0.0.1:0"]);
    let addr = chat.addr("chat on http://");
    assert!(get(&addr, "/").1.contains("WebSocket"));
    let guest = || {
        tungstenite::client(format!("ws://{addr}/room"), connect(&addr))
            .unwrap()
            .0
    };
    let (mut ada, mut bob) = (guest(), guest());
    // A guest that hears itself is in the room and hears everybody from then on. Before that it may miss some messages.
    for (guest, name) in [(&mut ada, "ada is here"), (&mut bob, "bob is here")] {
        guest.send(Message::text(name)).unwrap();
        while guest.read().unwrap() != Message::text(name) {}
    }
    assert_eq!(ada.read().unwrap(), Message::text("bob is here"));
    bob.send(Message::text("is anybody there?")).unwrap();
    assert_eq!(ada.read().unwrap(), Message::text("is anybody there?"));
    ada.send(Message::text("yes")).unwrap();
    assert_eq!(bob.read().unwrap(), Message::text("is anybody there?"));
    assert_eq!(bob.read().unwrap(), Message::text("yes"));
    ada.close(None).unwrap();
    assert_eq!(get(&addr, "/room").0, 400, "no WebSocket");
}

#[test]
fn the_proxy_stands_in_front_of_another_example() {
    let mut hello = Running::start(env!("CARGO_BIN_EXE_hello"), &["127.0.0.1:0", "1"]);
    let backend = hello.addr("hello on http://");
    let mut proxy = Running::start(env!("CARGO_BIN_EXE_proxy"), &["127.0.0.1:0", &backend]);
    let addr = proxy.addr("proxy on http://");
    let (status, head, body) = ask(&addr, "GET", "/Ada", "text/plain", "");
    assert_eq!((status, body.as_str()), (200, "Hello, Ada!\n"));
    assert!(head.contains("x-request-id: "), "{head}");
    assert_eq!(get(&addr, "/proxy"), (200, format!("in front of {backend}\n")));
    drop(hello);
    assert_eq!(get(&addr, "/Ada").0, 502);
}

#[test]
fn php_answers_beside_files() {
    if php::program().is_none() {
        return;
    }
    let folder = Folder::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_php_site"));
    command
        .arg("127.0.0.1:0")
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped());
    let mut site = Running(command.spawn().unwrap());
    let addr = site.addr("php_site on http://");
    let (status, body) = get(&addr, "/?name=A%26B");
    assert!(status == 200 && body.contains("<h1>Hello, A&amp;B!</h1>"), "{body}");
    let form = "application/x-www-form-urlencoded";
    let (_, head, body) = ask(&addr, "POST", "/index.php", form, "text=hi+there");
    assert!(
        body.contains("<q>hi there</q>") && !head.to_lowercase().contains("x-powered-by"),
        "{head}{body}"
    );
    let (status, head, _) = ask(&addr, "GET", "/style.css", "text/plain", "");
    assert!(status == 200 && head.contains("text/css"), "{head}");
    assert_eq!(get(&addr, "/none.php").0, 404);
    // After SIGTERM the example also ends its php-fpm.
    let pid = site.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(site.0.wait().unwrap().success());
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "the socket and its folder are gone"
    );
}

#[test]
fn wrong_arguments_are_named() {
    for (program, args) in [
        (env!("CARGO_BIN_EXE_todo"), &["127.0.0.1:0", "/none/todo.db"][..]),
        (env!("CARGO_BIN_EXE_upload"), &["127.0.0.1:0", "/dev/null/x"]),
        (env!("CARGO_BIN_EXE_chat"), &["nowhere"]),
        (env!("CARGO_BIN_EXE_login"), &["127.0.0.1:0", "nowhere"]),
        (env!("CARGO_BIN_EXE_proxy"), &["127.0.0.1:0", "nowhere"]),
        (env!("CARGO_BIN_EXE_php_site"), &["127.0.0.1:0", "/none", "127.0.0.1:9"]),
        (env!("CARGO_BIN_EXE_php_site"), &["127.0.0.1:0", "/tmp", "nowhere"]),
    ] {
        let output = Command::new(program).args(args).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{program} {args:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
