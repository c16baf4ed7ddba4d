//! `welcome`: the built-in site, embedded in the binary. It shows what Osier is, a chat, the runtime at work, and the
//! documents.
//!
//! # Layout
//!
//! `guard` decides who may see live data, `live` sends it, `requests` counts for it, and `docs` holds the documents.
//! The pages are the HTML files of this folder, each put into `frame.html`. They load nothing from other servers; their
//! content security policy enforces that.

mod docs;
mod live;
mod requests;

use std::sync::{Arc, Mutex};

use osier_web::chat::{self, Chat};
use osier_web::files::{Files, Options};
use osier_web::{Connections, IntoResponse, Request, Response, Served};

use self::live::LiveData;

/// The content security policy of all pages.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Bytes of the longest chat line: the input field takes 1,000 characters of at most 4 bytes.
const LINE_BYTES: usize = 4000;

/// The frame of all pages, with placeholders in braces.
const FRAME: &str = include_str!("frame.html");

/// A page of the site.
struct Page {
    path: &'static str,
    title: &'static str,
    script: &'static str,
    main: &'static str,
}

const PAGES: [Page; 3] = [
    Page {
        path: "/",
        title: "Osier is running",
        script: "",
        main: include_str!("index.html"),
    },
    Page {
        path: "/chat",
        title: "Chat · Osier",
        script: "/chat.js",
        main: include_str!("chat.html"),
    },
    Page {
        path: "/runtime",
        title: "Runtime · Osier",
        script: "/runtime.js",
        main: include_str!("runtime.html"),
    },
];

/// Path, content type and content of each asset.
const ASSETS: [(&str, &str, &str); 5] = [
    ("/style.css", "text/css; charset=utf-8", include_str!("style.css")),
    ("/chat.js", "text/javascript; charset=utf-8", include_str!("chat.js")),
    (
        "/runtime.js",
        "text/javascript; charset=utf-8",
        include_str!("runtime.js"),
    ),
    ("/icon.svg", "image/svg+xml", include_str!("icon.svg")),
    // Browsers request it beside a plain text.
    ("/favicon.ico", "image/svg+xml", include_str!("icon.svg")),
];

/// The built-in site, for all listeners.
pub struct Welcome {
    files: Files,
    live: Arc<LiveData>,
    chat: Chat,
}

impl Welcome {
    /// Builds the site. With `live_for_all` it shows live data to other machines too.
    pub fn new(live_for_all: bool, workers: usize, connections: Arc<Mutex<Vec<Connections>>>) -> Welcome {
        let headers = [
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
        ];
        let mut pages: Vec<(String, &str, String)> = Vec::new();
        for page in &PAGES {
            pages.push((page.path.into(), "text/html; charset=utf-8", framed(page)));
        }
        let start = pages[0].2.clone();
        pages.push(("/index.html".into(), "text/html; charset=utf-8", start));
        pages.push(("/docs".into(), "text/html; charset=utf-8", table_of_docs()));
        for (path, mime, text) in ASSETS {
            pages.push((path.into(), mime, text.into()));
        }
        for doc in docs::GUIDE.iter().chain(&docs::DOCS) {
            let path = format!("/docs/{}", doc.path);
            pages.push((path, "text/plain; charset=utf-8", doc.text.into()));
        }
        let options = Options {
            headers: headers.map(|(name, value)| (name.into(), value.into())).into(),
            ..Options::default()
        };
        let pages = pages
            .iter()
            .map(|(path, mime, text)| (path.as_str(), *mime, text.as_bytes()));
        Welcome {
            files: Files::embedded_with(pages, options).expect("the fields are constants that HTTP allows"),
            live: Arc::new(LiveData::new(live_for_all, workers, connections)),
            chat: Chat::with(chat::Options {
                line_bytes: LINE_BYTES,
                ..chat::Options::default()
            }),
        }
    }

    /// Answers a request.
    ///
    /// # Suspends
    /// While a dump of the fibers, or a list of the connections, is made.
    pub fn answer(&self, request: &Request<'_>) -> Response {
        // Other methods go to `files`, which refuses them and lists the allowed ones.
        let is_read = matches!(request.method(), "GET" | "HEAD");
        let path = if is_read { request.path() } else { "" };
        match path {
            live::EVENTS => live::events(&self.live, request),
            "/live/connections" => self.live.list(request),
            "/live/fibers" => self.live.fibers(request),
            "/chat/socket" => self.chat.answer(request),
            "/hello" => "hello\n".into_response(),
            _ => self.files.answer(request),
        }
    }

    /// Returns the chat of the site.
    pub fn chat(&self) -> &Chat {
        &self.chat
    }

    /// Counts a served request. Called on the worker that has served it.
    pub fn record(&self, served: &Served<'_>) {
        if served.target() != live::EVENTS {
            self.live.requests.record(served.duration());
        }
    }

    /// Ends the event streams, which never end by themselves.
    pub fn stop(&self) {
        self.live.stop();
    }
}

/// Ends the event streams when a reload has removed the site.
impl Drop for Welcome {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A page in its frame.
fn framed(page: &Page) -> String {
    let mut html = FRAME
        .replace("{title}", page.title)
        .replace("{script}", &script(page.script))
        .replace(&format!("{{here:{}}}", page.path), " aria-current=\"page\"");
    for path in ["/", "/chat", "/runtime", "/docs"] {
        html = html.replace(&format!("{{here:{path}}}"), "");
    }
    // Replaced last, because a page may hold braces.
    html.replace("{main}", page.main)
}

/// The element that loads a script, if there is one.
fn script(path: &str) -> String {
    match path {
        "" => String::new(),
        path => format!("<script type=\"module\" src=\"{path}\"></script>"),
    }
}

/// The page that lists the documents.
fn table_of_docs() -> String {
    framed(&Page {
        path: "/docs",
        title: "Docs · Osier",
        script: "",
        main: "{docs}",
    })
    .replace("{docs}", &docs::table())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_stand_alone() {
        let mut pages: Vec<String> = PAGES.iter().map(framed).collect();
        pages.push(table_of_docs());
        for page in &pages {
            assert!(page.len() < 16 * 1024, "{} bytes", page.len());
            for outside in [
                "http://", "https://", "<iframe", "style=\"", "onclick", "{here", "{main}", "<script>",
            ] {
                assert!(!page.contains(outside), "{outside} in {page}");
            }
            for needed in ["<meta name=\"viewport\"", "<html lang=", "color-scheme", "<h1>"] {
                assert!(page.contains(needed), "{needed} is not in {page}");
            }
            assert_eq!(page.matches("aria-current").count(), 1, "{page}");
        }
        for (path, _, text) in ASSETS {
            assert!(!text.contains("url(") && !text.contains("@import"), "{path}");
            assert!(
                !text.replace("http://www.w3.org/2000/svg", "").contains("//www"),
                "{path}"
            );
        }
    }
}
