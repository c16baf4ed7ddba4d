//! A misuse panics at the line of the program that makes it, and says what to do.
//!
//! The tests share a process with no others, because they set its panic hook.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;

use osier_web::{Request, Route, Router, Server, serve};

thread_local! {
    /// The place and the text of the last panic of this thread.
    static LAST: RefCell<(String, String)> = RefCell::default();
}

/// Runs `body`, which must panic at a place in this file with a text that contains `words`.
#[track_caller]
fn misuse<T>(words: &str, body: impl FnOnce() -> T) {
    static SET: Once = Once::new();
    SET.call_once(|| {
        std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let text = info.payload_as_str().unwrap_or_default().to_owned();
            eprintln!("{place}: {text}");
            LAST.set((place, text));
        }));
    });
    assert!(catch_unwind(AssertUnwindSafe(body)).is_err(), "{words}");
    let (place, text) = LAST.take();
    assert!(place.starts_with(file!()), "{text:?} at {place}");
    assert!(text.contains(words), "{text:?}");
}

fn handler(_: &mut Request<'_>) -> &'static str {
    ""
}

#[test]
fn a_wrong_route_points_at_the_line_that_adds_it() {
    let router = || Router::new().get("/", handler);
    misuse("a handler for GET already", || router().get("/", handler));
    misuse("a handler for GET already", || Route::new().get(handler).get(handler));
    misuse("a handler for PURGE already", || {
        let purge = || http::Method::from_bytes(b"PURGE").unwrap();
        Route::new().on(purge(), handler).on(purge(), handler)
    });
    misuse("but \"{id}\" is", || router().get("/:id", handler));
    misuse("but \"{*rest}\" is", || router().nest("/*rest", Router::new()));
    misuse("must begin with '/'", || router().get("a", handler));
    misuse("must begin with '/'", || router().nest("a", Router::new()));
    misuse("cannot be added", || router().get("/%zz", handler));
    misuse("cannot be added", || router().get("/{a}/{b", handler));
    misuse("is literal", || router().mount("/{a}", handler));
    misuse("cannot be", || router().mount("/%zz", handler));
    misuse("has a handler already", || {
        router().mount("/a", handler).mount("/a", handler)
    });
    misuse("has a handler already", || router().fallback(handler).fallback(handler));
    misuse("a state of type u8 already", || router().state(1_u8).state(2_u8));
}

#[test]
fn a_server_outside_of_a_runtime_points_at_the_caller() {
    let remedy = "no runtime for the server: call this inside osier::run";
    let server = || Server::new(Router::new());
    misuse(remedy, || serve("127.0.0.1:0", Router::new()));
    misuse(remedy, || server().bind("127.0.0.1:0"));
    misuse(remedy, || server().bind_unix(std::env::temp_dir().join("osier-misuse")));
    let listener = || osier::net::TcpListener::bind("127.0.0.1:0").unwrap();
    misuse(remedy, || server().listener(listener()));
    misuse(remedy, || server().listeners(vec![listener().into()]));
}
