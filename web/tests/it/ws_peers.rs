//! WebSocket clients of other projects, Python's `websockets` and npm's `ws`, with both styles of
//! session.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Site, site_with};
use osier::pubsub::Topic;
use osier_web::{Request, Router, Server, ws};

struct Echo;

impl ws::Callbacks for Echo {
    fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
        match message.as_text() {
            Some("close me") => sender.close(4321, "as you like"),
            _ => drop(sender.send(message)),
        }
    }
}

struct Guest(Topic<ws::Frame>);

impl ws::Callbacks for Guest {
    fn on_open(&mut self, sender: &ws::Sender) {
        sender.join(&self.0);
        sender.send("welcome");
    }
    fn on_message(&mut self, message: ws::Message, _: &ws::Sender) {
        self.0.publish(message.into());
    }
}

fn options() -> ws::Options {
    ws::Options {
        message_bytes: 1 << 20,
        protocols: vec!["osier".into()],
        origins: ws::Origins::Any,
        ping_after: Duration::from_millis(200),
        ..ws::Options::default()
    }
}

/// `/fiber` and `/dormant` echo, and close with 4321 on command. `/room` sends everything to
/// everybody.
fn peers_site() -> Site {
    let fiber = |request: &mut Request<'_>| {
        options().upgrade(request, |socket| {
            while let Some(message) = socket.read()? {
                match message.as_text() {
                    Some("close me") => socket.close(4321, "as you like")?,
                    _ => socket.send(message)?,
                }
            }
            Ok(())
        })
    };
    let dormant = |request: &mut Request<'_>| options().upgrade_dormant(request, Echo);
    let room = Topic::new();
    let guest = move |request: &mut Request<'_>| options().upgrade_dormant(request, Guest(room.clone()));
    let router = Router::new()
        .get("/fiber", fiber)
        .get("/dormant", dormant)
        .get("/room", guest);
    site_with(2, Server::new(router), |server| server.bind("127.0.0.1:0"))
}

/// Runs a script of the client, which says `ok N` for N checks.
fn run(program: &str, option: &str, script: &str, missing: &str) -> Option<usize> {
    let started = Command::new(program)
        .args([option, script])
        .stdin(Stdio::null())
        .output();
    let output = match started {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {program} cannot be started: {error}");
            return None;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && complaint.contains(missing) {
        println!("skipped: {program} has no WebSocket library: {missing}");
        return None;
    }
    assert!(
        output.status.success(),
        "{program}: {}\n{said}\n{complaint}",
        output.status
    );
    let checks = said.lines().find_map(|line| line.strip_prefix("ok ")?.parse().ok());
    Some(checks.unwrap_or_else(|| panic!("{program} has not come to its end: {said:?} {complaint}")))
}

const PYTHON: &str = r#"
import asyncio
import websockets
base = "BASE"
checks = 0
def check(ok, what):
    global checks
    if not ok:
        raise SystemExit("failed: " + what)
    checks += 1
async def within(what):
    return await asyncio.wait_for(what, 20)
async def closed(socket):
    try:
        while True:
            await within(socket.recv())
    except websockets.ConnectionClosed:
        return (socket.close_code, socket.close_reason)
async def style(path):
    async with websockets.connect(base + path, subprotocols=["other", "osier"], max_size=None) as socket:
        check(socket.subprotocol == "osier", "subprotocol")
        for text in ["", "hello", "gr\u00fc\u00dfe \U0001F600", "x" * 70000]:
            await socket.send(text)
            check(await within(socket.recv()) == text, "text of %d" % len(text))
        for size in [0, 1, 125, 126, 65535, 65536, 1 << 20]:
            await socket.send(b"\xff" * size)
            check(await within(socket.recv()) == b"\xff" * size, "binary of %d" % size)
        await socket.send(["frag", "men", "", "ts"])
        check(await within(socket.recv()) == "fragments", "fragments")
        await within(await socket.ping(b"are you there"))
        check(True, "pong")
        await asyncio.sleep(0.7)  # the server pings; the library answers
        await socket.send("still")
        check(await within(socket.recv()) == "still", "after pings")
    check(socket.close_code == 1000, "close by the client: %r" % socket.close_code)
    socket = await websockets.connect(base + path)
    await socket.send("close me")
    check(await closed(socket) == (4321, "as you like"), "close by the server")
    socket = await websockets.connect(base + path)
    try:
        await socket.send(b"x" * ((1 << 20) + 1))
    except websockets.ConnectionClosed:
        pass
    check((await closed(socket))[0] == 1009, "too big: %r" % socket.close_code)
async def room():
    guests = [await websockets.connect(base + "/room") for _ in range(20)]
    for guest in guests:
        check(await within(guest.recv()) == "welcome", "welcome")
    for n, guest in enumerate(guests):
        await guest.send("guest %d" % n)
        for other in guests:
            check(await within(other.recv()) == "guest %d" % n, "broadcast")
    for guest in guests:
        await guest.close()
async def main():
    await style("/fiber")
    await style("/dormant")
    await room()
    print("ok", checks)
asyncio.run(main())
"#;

#[test]
fn python_websockets_agrees() {
    let site = peers_site();
    let script = PYTHON.replace("BASE", &format!("ws://{}", site.addr));
    // Debian's own Python has Debian's packages.
    let starts = |program: &&str| Command::new(program).arg("-V").output().is_ok();
    let program = ["/usr/bin/python3", "python3"]
        .into_iter()
        .find(starts)
        .unwrap_or("python3");
    if let Some(checks) = run(program, "-c", &script, "No module named 'websockets'") {
        println!("Python websockets: {checks} checks");
        assert!(checks > 400, "{checks}");
    }
}

const NODE: &str = r#"
const WebSocket = (() => {
  for (const name of ["ws", "/usr/share/nodejs/ws"]) try { return require(name); } catch {}
  console.error("no module ws");
  process.exit(1);
})();
const base = "BASE";
let checks = 0;
const check = (ok, what) => { if (!ok) { console.error("failed: " + what); process.exit(1); } checks++; };
setTimeout(() => check(false, "in time"), 30000).unref();
const open = (path, protocols) => new Promise((done, fail) => {
  const socket = new WebSocket(base + path, protocols);
  const inbox = [], waiting = [];
  socket.next = () => new Promise(done => inbox.length ? done(inbox.shift()) : waiting.push(done));
  socket.on("message", (data, isBinary) => {
    const message = isBinary ? data : data.toString();
    waiting.length ? waiting.shift()(message) : inbox.push(message);
  });
  socket.closed = new Promise(done => socket.on("close", (code, reason) => done([code, reason.toString()])));
  socket.on("open", () => done(socket));
  socket.on("error", fail);
});
const style = async path => {
  let socket = await open(path, ["other", "osier"]);
  check(socket.protocol === "osier", "subprotocol");
  check(!socket.extensions, "permessage-deflate is not agreed on");
  for (const text of ["", "hello", "gr\u00fc\u00dfe \u{1F600}", "x".repeat(70000)]) {
    socket.send(text);
    check(await socket.next() === text, "text of " + text.length);
  }
  for (const size of [0, 1, 125, 126, 65535, 65536, 1 << 20]) {
    const bytes = Buffer.alloc(size, 255);
    socket.send(bytes);
    check((await socket.next()).equals(bytes), "binary of " + size);
  }
  socket.send("frag", { fin: false });
  socket.send("ments");
  check(await socket.next() === "fragments", "fragments");
  const pong = new Promise(done => socket.on("pong", data => done(data.toString())));
  socket.ping("there?");
  check(await pong === "there?", "pong");
  await new Promise(done => socket.once("ping", done));
  check(true, "the server pings");
  socket.close(3456, "enough");
  check((await socket.closed)[0] === 3456, "close by the client");
  socket = await open(path);
  socket.send("close me");
  const [code, reason] = await socket.closed;
  check(code === 4321 && reason === "as you like", "close by the server");
  socket = await open(path);
  socket.on("error", () => {});
  socket.send(Buffer.alloc((1 << 20) + 1));
  const why = await socket.closed;
  check(why[0] === 1009, "too big: " + why);
};
(async () => {
  await style("/fiber");
  await style("/dormant");
  const guests = await Promise.all(Array.from({ length: 20 }, () => open("/room")));
  for (const guest of guests) check(await guest.next() === "welcome", "welcome");
  for (const [n, guest] of guests.entries()) {
    guest.send("guest " + n);
    for (const other of guests) check(await other.next() === "guest " + n, "broadcast");
  }
  guests.forEach(guest => guest.terminate());
  console.log("ok " + checks);
  process.exit(0);
})();
"#;

#[test]
fn npm_ws_agrees() {
    let site = peers_site();
    let script = NODE.replace("BASE", &format!("ws://{}", site.addr));
    if let Some(checks) = run("node", "-e", &script, "no module ws") {
        println!("npm ws: {checks} checks");
        assert!(checks > 400, "{checks}");
    }
}
