//! The built-in site in a real browser: two tabs chat, charts move under load, and every fiber is listed. The page logs no error and
//! sends no request to another server, on a desktop and on a phone, light and dark.
//!
//! The screenshots are kept in `target/screenshots/`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::chromium::{Browser, Tab};
use crate::support::sites::Sites;
use crate::support::{Client, Server};
use serde_json::{Value, json};

/// One browser at a time: they are heavy.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn welcome(listen: &str) -> Server {
    let mut command = crate::support::osier();
    command.args(["-w", "2", "-l", listen]);
    Server::spawn(command)
}

fn origin(server: &Server) -> String {
    format!("http://{}", server.address)
}

/// A script that checks whether the tab shows a line of this guest.
fn shows(who: &str, text: &str) -> String {
    format!(
        "[...document.querySelectorAll('#lines li')].some(li => li.querySelector('b')?.textContent === {} \
         && li.querySelector('p').textContent === {})",
        json!(who),
        json!(text)
    )
}

fn is_open() -> &'static str {
    "document.querySelector('#status').dataset.state === 'open'"
}

#[test]
fn two_tabs_chat() {
    let _alone = alone();
    let Some(browser) = Browser::start() else { return };
    let server = welcome("127.0.0.1:0");
    let url = format!("{}/chat", origin(&server));
    let (ada, bob) = (browser.open(&url), browser.open(&url));
    for (tab, name) in [(&ada, "Ada"), (&bob, "Bob")] {
        tab.until(is_open());
        tab.enter("#name", name);
        tab.until("document.querySelector('#status').textContent === '2 are here'");
    }
    ada.enter("#text", "Hello, Bob <b>&amp;</b> \u{1f33f}");
    for tab in [&ada, &bob] {
        tab.until(&shows("Ada", "Hello, Bob <b>&amp;</b> \u{1f33f}"));
    }
    bob.enter("#text", "Hello, Ada");
    for tab in [&ada, &bob] {
        tab.until(&shows("Bob", "Hello, Ada"));
    }
    assert_eq!(ada.eval("document.querySelector('#text').value"), "");
    assert_eq!(ada.eval("document.querySelectorAll('#lines .own').length"), 1);

    ada.size(1280, 860, false);
    ada.eval("scrollTo(0, 0)");
    ada.screenshot("chat-two-tabs");

    // Another room hears nothing of it; who comes back reads what was said.
    bob.enter("#room", "Quiet Place!");
    bob.until("document.querySelector('#status').textContent === 'only you are here'");
    assert_eq!(bob.eval("document.querySelector('#room').value"), "quiet-place-");
    assert_eq!(bob.eval("document.querySelectorAll('#lines li').length"), 0);
    ada.until("document.querySelector('#status').textContent === 'only you are here'");
    bob.enter("#room", "lobby");
    bob.until(&shows("Ada", "Hello, Bob <b>&amp;</b> \u{1f33f}"));
    assert_eq!(bob.eval("document.querySelectorAll('#lines li').length"), 2);

    // Who goes to another page is gone, and is back with "back".
    bob.go(&format!("{}/docs", origin(&server)));
    ada.until("document.querySelector('#status').textContent === 'only you are here'");
    bob.eval("history.back()");
    ada.until("document.querySelector('#status').textContent === '2 are here'");
    bob.until(is_open());
    bob.until(&shows("Bob", "Hello, Ada"));

    // A guest who sends too many lines gets a notice, and the other guests do not get those lines.
    bob.eval("for (let i = 0; i < 30; i++) { text.value = `line ${i}`; compose.requestSubmit(); }");
    bob.until("[...document.querySelectorAll('#lines .notice')].some(li => li.textContent.includes('Not so fast'))");
    for tab in [&ada, &bob] {
        assert_eq!(tab.complaints(&origin(&server)), [""; 0]);
        assert!(tab.requests() > 0);
    }
    // The server goes and comes back: so do the tabs.
    let listen = server.address.to_string();
    drop(server);
    for tab in [&ada, &bob] {
        tab.until("document.querySelector('#status').dataset.state === 'closed'");
    }
    let _server = welcome(&listen);
    for tab in [&ada, &bob] {
        tab.until(is_open());
    }
    ada.enter("#text", "And again");
    bob.until(&shows("Ada", "And again"));
}

#[test]
fn a_page_its_events_and_its_websocket_come_over_one_connection_of_http2() {
    let _alone = alone();
    let Some(browser) = Browser::start_with(&["--ignore-certificate-errors"]) else {
        return;
    };
    // A browser on a busy machine takes its time between a handshake and a request.
    let sites = Sites::start(
        "state = \"state\"\n[[listen]]\naddress = \"127.0.0.1:0\"\ntls = true\ntimeouts = { handshake = \"5m\", header = \"5m\" }\n\
         [[site]]\ndefault = true\ntls = \"internal\"\n[[site.route]]\nwelcome = true\n",
    );
    let tab = browser.open(&format!("https://{}/chat", sites.addresses[0]));
    tab.until(is_open());
    assert_eq!(
        tab.eval("performance.getEntriesByType('navigation')[0].nextHopProtocol"),
        "h2"
    );
    tab.eval(
        "window.seen = null; new EventSource('/live/events').onmessage = (event) => { window.seen = event.data; }; 0",
    );
    tab.until("window.seen !== null");
    let seen = tab.eval("window.seen");
    let seen: Value = serde_json::from_str(seen.as_str().unwrap()).unwrap();
    assert_eq!(seen["protocol"], "HTTP/2, TLSv1.3");
    // The WebSocket is no HTTP/1.1 connection: it runs in a stream.
    let protocols: Vec<(&str, &str)> = seen["protocols"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one[0].as_str().unwrap(), one[1].as_str().unwrap()))
        .collect();
    assert!(protocols.contains(&("h2", "TLSv1.3")), "{protocols:?}");
    assert!(!protocols.contains(&("http/1.1", "TLSv1.3")), "{protocols:?}");
    let listed = "fetch('/live/connections').then(reply => reply.json()).then(table => { window.table = table; })";
    tab.eval(&format!("window.table = null; {listed}; 0"));
    tab.until("window.table !== null");
    // The event stream, the WebSocket and this request are streams of the one connection.
    let row = "window.table.rows.some(row => row.slice(1, 4).join() === 'h2,TLSv1.3,serving' && row[4] === 3)";
    assert_eq!(tab.eval(row), true, "{}", tab.eval("JSON.stringify(window.table)"));
    tab.enter("#text", "over HTTP/2");
    tab.until("[...document.querySelectorAll('#lines li')].some(li => li.textContent.includes('over HTTP/2'))");
}

#[test]
fn charts_move_and_fibers_are_shown() {
    let _alone = alone();
    let Some(browser) = Browser::start() else { return };
    let server = welcome("127.0.0.1:0");
    let tab = browser.open(&format!("{}/runtime", origin(&server)));
    tab.size(1280, 1000, false);
    tab.until(is_open());
    tab.until("document.querySelectorAll('section.worker').length === 2");
    // Drawn twice, so at rest too: the grid moves with the time.
    tab.until("Number(document.querySelector('#connections').textContent) >= 1");
    let pictures = "[...document.querySelectorAll('section.worker canvas')].map(canvas => canvas.toDataURL())";
    // The requests for the page itself are no longer counted as recent, and their bars have shrunk to nothing.
    tab.until("document.querySelector('#p50').textContent === '–'");
    tab.eval(FRAMES);
    let idle_ink = ink(&tab);
    let idle = tab.eval(&format!("window.idle = {pictures}"));
    assert_eq!(
        idle.as_array().unwrap().len(),
        10,
        "five charts for each of two workers"
    );

    let load = Load::start(&server);
    tab.until(&format!("{RATE} >= 10"));
    for key in ["requests", "turns", "latency"] {
        // Both workers.
        tab.until(&format!(
            "[...document.querySelectorAll('figure[data-key={key}] b')].filter(b => /[1-9]/.test(b.textContent)).length === 2"
        ));
    }
    tab.until("document.querySelector('#p50').textContent.endsWith('s')");
    // No chart stands still; each is drawn anew when the browser gets to it.
    tab.until(&format!("{pictures}.every((picture, i) => picture !== window.idle[i])"));
    // And it is the load that shows: the area below the curve grows.
    tab.until(&format!("({INK})('requests') > {} * 1.5", idle_ink["requests"]));
    tab.until(&format!("({INK})('latency') > {}", idle_ink["latency"]));

    tab.click("#listed summary");
    tab.until(
        "[...document.querySelectorAll('#rows tr')].some(row => /http.1.1none(serving|idle)/.test(row.textContent))",
    );
    tab.click("#show");
    // A worker that has no processor for a second is missing in a dump, so another dump follows.
    tab.until(&pressed_until(
        "#show",
        &format!("{DUMP_PARTS}.every(part => document.querySelector('#dump').textContent.includes(part))"),
    ));
    assert_eq!(tab.eval("document.activeElement.id"), "dump");
    load.end();

    // A visitor without a load generator has a button.
    tab.until(&format!("{RATE} < 10"));
    tab.click("#load");
    // Its requests may be over between two looks.
    tab.until(&pressed_until("#load", &format!("{RATE} >= 10")));
    assert_eq!(tab.complaints(&origin(&server)), [""; 0]);
    assert!(tab.requests() > 0);

    // Who wants no motion gets a picture twice a second, with all that is in it.
    tab.prefer("prefers-reduced-motion", "reduce");
    tab.go(&format!("{}/runtime", origin(&server)));
    tab.until(is_open());
    tab.until(&format!("({INK})('fibers') > 0"));
    assert_eq!(tab.complaints(&origin(&server)), [""; 0]);
}

/// The requests per second that the page shows: `7,569`, `120 k` or `1.2 M`.
const RATE: &str = "(([number, unit]) => parseFloat(number.replaceAll(',', '')) * ({ k: 1e3, M: 1e6 }[unit] ?? 1)\
                    )(document.querySelector('#rate').textContent.split(' '))";

/// A promise that 60 further frames have been drawn. Each takes a fifth off a bar that shrinks.
const FRAMES: &str = "new Promise(done => { let left = 60; \
                      const next = () => left-- ? requestAnimationFrame(next) : done(0); next(); })";

/// Texts of a dump of all fibers.
const DUMP_PARTS: &str = r#"["worker 'osier-0'", "worker 'osier-1'", "fiber ", "welcome::live", "bytes of stack"]"#;

/// A condition that presses the button, whenever it may be pressed, until `condition` holds.
fn pressed_until(button: &str, condition: &str) -> String {
    format!("(button => {condition} || (button.click(), false))(document.querySelector('{button}'))")
}

/// How many pixels of the charts of one kind are painted.
const INK: &str = "key => [...document.querySelectorAll(`figure[data-key=${key}] canvas`)].map(canvas => { \
                   const bytes = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data; \
                   let ink = 0; for (let i = 3; i < bytes.length; i += 4) ink += bytes[i] > 0; return ink; \
                   }).reduce((sum, ink) => sum + ink, 0)";

fn ink(tab: &Tab<'_>) -> Value {
    tab.eval(&format!(
        "(ink => ({{ requests: ink('requests'), latency: ink('latency') }}))({INK})"
    ))
}

#[test]
fn every_page_fits_a_phone_and_a_desktop_in_light_and_dark() {
    let _alone = alone();
    let Some(browser) = Browser::start() else { return };
    let server = welcome("127.0.0.1:0");
    let load = Load::start(&server);
    let tab = browser.open(&origin(&server));
    let mut papers = Vec::new();
    for scheme in ["light", "dark"] {
        tab.prefer("prefers-color-scheme", scheme);
        for (path, name) in [
            ("/", "about"),
            ("/chat", "chat"),
            ("/runtime", "runtime"),
            ("/docs", "docs"),
        ] {
            tab.size(1280, 1000, false);
            tab.go(&format!("{}{path}", origin(&server)));
            for (width, height) in [(1280, 1000), (768, 1024), (375, 812), (320, 640)] {
                tab.size(width, height, width < 700);
                let wide = tab.eval(TOO_WIDE);
                assert_eq!(wide, json!([]), "{path} at {width} in {scheme}");
                if width == 1280 && path == "/runtime" {
                    tab.until(is_open());
                    // Curves have begun: a listener of ours counts the samples that the page gets too.
                    tab.eval("(() => { window.seen = 0; new EventSource('/live/events').onmessage = () => window.seen++; return 0 })()");
                    tab.until("window.seen >= 4");
                }
                match width {
                    1280 => drop(tab.screenshot(&format!("{name}-{scheme}"))),
                    375 => drop(tab.screenshot(&format!("{name}-phone-{scheme}"))),
                    _ => {}
                }
            }
            let faint = tab.eval(FAINT);
            assert_eq!(faint, json!([]), "{path} in {scheme}: text that is hard to read");
            let unnamed = "[...document.querySelectorAll('input')].filter(input => !input.labels.length).length";
            assert_eq!(tab.eval(unnamed), 0, "{path}: inputs without a label");
        }
        papers.push(tab.eval("getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(papers[0], papers[1], "light and dark are the same");
    load.end();
    for name in ["README.md", "ARCHITECTURE.md"] {
        tab.go(&format!("{}/docs/{name}", origin(&server)));
        tab.until("document.body.innerText.includes('# ')");
        assert_eq!(tab.eval("document.contentType"), "text/plain");
    }
    assert_eq!(tab.complaints(&origin(&server)), [""; 0]);
}

/// A script that lists elements that stick out on the right, unless something around them scrolls or hides them.
const TOO_WIDE: &str = "(() => { const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    return ['page ' + document.documentElement.scrollWidth, ...[...document.querySelectorAll('body *')]
        .filter(e => e.getBoundingClientRect().right > width + 0.5).map(e => e.tagName + '#' + e.id + '.' + e.className)]; })()";

/// Texts whose contrast to what is behind them is below 4.5, as WCAG counts it.
const FAINT: &str = "(() => {
    const parse = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => { const [x, y, z] = [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z; };
    const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
        if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
    const faint = [];
    for (const e of document.querySelectorAll('body *')) {
        const says = [...e.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        if (!says || !e.getClientRects().length || e.disabled) continue;
        const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) faint.push(`${e.tagName} ${e.textContent.slice(0, 20)} ${contrast.toFixed(2)}`);
    }
    return faint; })()";

#[test]
fn who_may_not_see_is_told_so() {
    let _alone = alone();
    let Some(browser) = Browser::start() else { return };
    let server = welcome("127.0.0.1:0");
    let tab = browser.open("about:blank");
    // As through a proxy on this machine.
    tab.call(
        "Network.setExtraHTTPHeaders",
        json!({ "headers": { "X-Forwarded-For": "127.0.0.1" } }),
    );
    tab.go(&format!("{}/runtime", origin(&server)));
    tab.until("!document.querySelector('#blocked').hidden && document.querySelector('#show').disabled");
    assert_eq!(tab.text("#status"), "not shown here");
    assert_eq!(tab.eval("document.querySelectorAll('section.worker').length"), 0);
}

/// Requests as a busy site gets them, which the charts show. Without a pause between them, client and server would keep all cores busy for as
/// long as the browser takes.
struct Load {
    stop: Arc<AtomicBool>,
    asking: Option<JoinHandle<()>>,
}

impl Load {
    fn start(server: &Server) -> Load {
        // So many that each worker has some.
        let mut clients: Vec<Client> = (0..16).map(|_| server.connect()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let ask = move || {
            while !stopped.load(Ordering::Relaxed) {
                for client in &mut clients {
                    client.send("GET", "/hello", &[]);
                    client.receive("GET");
                    thread::sleep(Duration::from_millis(3)); // the pause
                }
            }
        };
        Load {
            stop,
            asking: Some(thread::spawn(ask)),
        }
    }

    fn end(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.asking.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop();
    }
}
