//! Headless Chromium, driven over its DevTools protocol: JSON messages on one WebSocket, read by the thread that waits.
//!
//! The browser also reports by itself (console, exceptions, requests). These reports are kept for [`Tab::complaints`] to check.
//! Every wait has a deadline far beyond what a loaded machine needs.

use std::cell::{Cell, RefCell};
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use crate::support::Folder;

/// The longest wait for a reply of the browser, and for a page to show what it should.
const PATIENCE: Duration = Duration::from_secs(90);

pub struct Browser {
    child: Child,
    socket: RefCell<WebSocket<TcpStream>>,
    /// Number of the last call.
    calls: Cell<u64>,
    events: RefCell<Vec<Value>>,
    // Removed after the process has ended.
    _profile: Folder,
}

impl Browser {
    /// None, with a line that says so, where there is no Chromium.
    pub fn start() -> Option<Browser> {
        Browser::start_with(&[])
    }

    /// As [`Browser::start`], with further arguments.
    pub fn start_with(more: &[&str]) -> Option<Browser> {
        let Some(program) = find("chromium").or_else(|| find("chromium-browser")) else {
            println!("skipped: there is no chromium");
            return None;
        };
        let profile = Folder::new();
        let mut command = Command::new(program);
        command
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-sync",
            ])
            .args([
                "--disable-dev-shm-usage",
                "--disable-extensions",
                "--disable-component-update",
            ])
            .args([
                "--disable-background-networking",
                "--hide-scrollbars",
                "--force-color-profile=srgb",
            ])
            .args(more)
            .arg("--remote-debugging-port=0")
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .env("HOME", profile.path())
            .env("XDG_CONFIG_HOME", profile.path())
            .env("XDG_CACHE_HOME", profile.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().expect("chromium starts");
        let mut child = EndOnPanic(Some(child));
        let (port, path) = testkit::wait_within(PATIENCE, "chromium's port", || {
            let text = fs::read_to_string(profile.join("DevToolsActivePort")).ok()?;
            let (port, path) = text.split_once('\n')?;
            Some((port.parse::<u16>().ok()?, path.trim().to_owned()))
        });
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("chromium listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
        let url = format!("ws://127.0.0.1:{port}{path}");
        let (socket, _) = tungstenite::client(url, stream).expect("chromium speaks WebSocket");
        Some(Browser {
            child: child.0.take().expect("put there above"),
            socket: RefCell::new(socket),
            calls: Cell::new(0),
            events: RefCell::default(),
            _profile: profile,
        })
    }

    /// One call, of the browser or of one of its tabs.
    fn call(&self, session: Option<&str>, method: &str, params: Value) -> Value {
        let id = self.calls.get() + 1;
        self.calls.set(id);
        let mut call = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = session {
            call["sessionId"] = session.into();
        }
        let mut socket = self.socket.borrow_mut();
        socket.send(Message::text(call.to_string())).expect("chromium listens");
        loop {
            let message = match socket.read() {
                // A signal may interrupt a read that has a time limit.
                Err(tungstenite::Error::Io(error)) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read.unwrap_or_else(|error| panic!("{method}: no answer: {error}")),
            };
            let Message::Text(text) = message else { continue };
            let mut message: Value = serde_json::from_str(&text).expect("chromium sends JSON");
            if message["id"] != id {
                self.events.borrow_mut().push(message);
                continue;
            }
            assert!(message.get("error").is_none(), "{method}: {message}");
            return message["result"].take();
        }
    }

    /// A new tab with this page, loaded.
    pub fn open(&self, url: &str) -> Tab<'_> {
        let target = self.call(None, "Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = self.call(None, "Target.attachToTarget", attach);
        let session = attached["sessionId"].as_str().expect("a session").to_owned();
        let tab = Tab { browser: self, session };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            tab.call(&format!("{domain}.enable"), json!({}));
        }
        tab.go(url);
        tab
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Asked first, so that its own children end and the profile can be removed.
        if !thread::panicking() {
            let close = json!({ "id": 0, "method": "Browser.close" });
            let _ = self.socket.get_mut().send(Message::text(close.to_string()));
            let asked = Instant::now();
            while asked.elapsed() < Duration::from_secs(10) && matches!(self.child.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(20)); // between two looks; a drop does not panic
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct EndOnPanic(Option<Child>);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub struct Tab<'b> {
    browser: &'b Browser,
    session: String,
}

impl Tab<'_> {
    pub fn call(&self, method: &str, params: Value) -> Value {
        self.browser.call(Some(&self.session), method, params)
    }

    /// Goes to a page and waits until it has loaded.
    pub fn go(&self, url: &str) {
        let went = self.call("Page.navigate", json!({ "url": url }));
        assert!(went.get("errorText").is_none(), "{url}: {went}");
        self.until(&format!(
            "document.readyState === 'complete' && location.href.startsWith({})",
            json!(url)
        ));
    }

    /// The value of an expression; of what a promise gives, if it is one.
    pub fn eval(&self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    pub fn text(&self, selector: &str) -> String {
        let text = self.eval(&format!("document.querySelector({}).textContent", json!(selector)));
        text.as_str().expect("there is such an element").to_owned()
    }

    /// Waits until the expression holds.
    pub fn until(&self, expression: &str) {
        let give_up = Instant::now() + PATIENCE;
        // A page that is being left has no context for a moment.
        let holds = format!("Boolean({expression})");
        loop {
            let params = json!({ "expression": holds, "returnByValue": true });
            let answer = self.call("Runtime.evaluate", params);
            if answer["result"]["value"] == true {
                return;
            }
            if Instant::now() > give_up {
                let page = self.eval("document.body.innerText");
                panic!("not in {PATIENCE:?}: {expression}; the last answer is {answer}; the page says {page}");
            }
            thread::sleep(Duration::from_millis(50)); // between two looks, each a message to the browser
        }
    }

    pub fn click(&self, selector: &str) {
        self.call("Page.bringToFront", json!({}));
        let place = self.eval(&format!(
            "(() => {{ const element = document.querySelector({}); element.scrollIntoView({{ block: 'center' }});
             const box = element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()",
            json!(selector)
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Replaces what is in a field, and presses Enter.
    pub fn enter(&self, selector: &str, text: &str) {
        self.click(selector);
        self.eval("document.activeElement.select()");
        self.call("Input.insertText", json!({ "text": text }));
        for kind in ["keyDown", "keyUp"] {
            let key =
                json!({ "type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r" });
            self.call("Input.dispatchKeyEvent", key);
        }
    }

    pub fn size(&self, width: u32, height: u32, is_phone: bool) {
        let scale = if is_phone { 2 } else { 1 };
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": is_phone });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    pub fn prefer(&self, feature: &str, value: &str) {
        let features = json!({ "features": [{ "name": feature, "value": value }] });
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Writes a picture of the tab to a file.
    pub fn screenshot(&self, name: &str) -> PathBuf {
        self.call("Page.bringToFront", json!({}));
        let answer = self.call(
            "Page.captureScreenshot",
            json!({ "format": "png", "optimizeForSpeed": false }),
        );
        let png = decode_base64(answer["data"].as_str().expect("a picture"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name).with_extension("png");
        fs::write(&path, png).unwrap();
        path
    }

    /// The complaints so far: errors on the console, exceptions, violations of a policy, requests to others than `origin`.
    pub fn complaints(&self, origin: &str) -> Vec<String> {
        self.eval("0"); // what has been reported comes before this answer
        let foreign = |url: &Value| {
            let url = url.as_str().unwrap_or_default().replacen("ws://", "http://", 1);
            !url.starts_with(origin) && !url.starts_with("about:")
        };
        let is_wrong = |event: &&Value| {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Log.entryAdded" => params["entry"]["level"] == "error" || params["entry"]["source"] == "security",
                "Runtime.exceptionThrown" => true,
                "Runtime.consoleAPICalled" => ["error", "assert", "warning"]
                    .iter()
                    .any(|kind| params["type"] == *kind),
                "Network.requestWillBeSent" => foreign(&params["request"]["url"]),
                "Network.webSocketCreated" => foreign(&params["url"]),
                _ => false,
            }
        };
        let events = self.browser.events.borrow();
        let of_here = events
            .iter()
            .filter(|event| event["sessionId"] == self.session.as_str());
        of_here.filter(is_wrong).map(Value::to_string).collect()
    }

    /// How many requests the tab has made.
    pub fn requests(&self) -> usize {
        let events = self.browser.events.borrow();
        let is_one = |event: &&Value| {
            event["sessionId"] == self.session.as_str() && event["method"] == "Network.requestWillBeSent"
        };
        events.iter().filter(is_one).count()
    }
}

impl Drop for Tab<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.call("Page.close", json!({}));
        }
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

fn decode_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{byte} in base64"),
    };
    let digits: Vec<u8> = text.trim_end_matches('=').bytes().map(digit).collect();
    let group = |digits: &[u8]| {
        let mut four = [0; 4];
        four[..digits.len()].copy_from_slice(digits);
        let bits = four.iter().fold(0, |bits, digit| bits << 6 | u32::from(*digit));
        bits.to_be_bytes()[1..digits.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}
