//! Logs users in: a form, a session, and a page that only members see. Start it and open <http://127.0.0.1:8080/>.
//!
//! ```text
//! cargo run --release -p osier-examples --bin login -- [ADDR [REDIS]]
//! ```
//!
//! REDIS is the address of a Redis that keeps the sessions, such as 127.0.0.1:6379. Without it they are in memory.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use osier_web::http::StatusCode;
use osier_web::wrap::rate::{self, Rate};
use osier_web::wrap::session::{Memory, Redis, Sessions};
use osier_web::wrap::{html_errors, same_secret};
use osier_web::{Body, Rejection, Request, Response, Route, Router};

mod start;

/// Passwords that a client may try in a minute.
const TRIES: u32 = 10;

#[derive(serde::Deserialize)]
struct Login {
    user: String,
    password: String,
}

fn page(body: &str) -> Response {
    Response::new(StatusCode::OK)
        .content_type("text/html; charset=utf-8")
        // A page of one member is not for another one, nor for the button "back" after the logout.
        .header("cache-control", "no-store")
        .body(Body::from(format!("<!doctype html><meta charset=utf-8>{body}")))
}

fn home(request: &mut Request<'_>) -> Result<Response, Rejection> {
    let visits: u32 = request.session()?.get("visits")?.unwrap_or(0);
    Ok(match request.session()?.get::<String>("user")? {
        None => page(
            "<form method=post action=/login><input name=user placeholder=user> \
             <input name=password type=password placeholder='open sesame'> <button>log in</button></form>",
        ),
        Some(_) => {
            request.session()?.set("visits", visits + 1)?;
            page(&format!(
                "<p>Welcome. You were here {visits} times before.</p><form method=post action=/logout><button>log out</button></form>"
            ))
        }
    })
}

fn login(request: &mut Request<'_>) -> Result<Response, Rejection> {
    let Login { user, password } = request.form()?;
    // An application keeps hashes, and compares them by `osier::unblock`.
    if !same_secret(&password, "open sesame") {
        return Err(Rejection::new(StatusCode::FORBIDDEN, "this is not the password"));
    }
    let session = request.session()?;
    session.renew()?;
    session.set("user", user)?;
    Ok(Response::redirect(StatusCode::SEE_OTHER, "/"))
}

fn logout(request: &mut Request<'_>) -> Result<Response, Rejection> {
    request.session()?.destroy()?;
    Ok(Response::redirect(StatusCode::SEE_OTHER, "/"))
}

fn main() -> ExitCode {
    start::serve("login", |args| {
        let sessions = match args.first() {
            None => Sessions::new(Memory::new(10_000)),
            Some(redis) => {
                let address = redis.parse().map_err(|error| {
                    let what = format!("{redis}: {error}");
                    io::Error::new(io::ErrorKind::InvalidInput, what)
                })?;
                Sessions::new(Redis::new(address))
            }
        };
        let tries = Rate::new(&rate::Options {
            requests: TRIES,
            per: Duration::from_secs(60),
            burst: TRIES,
            ..rate::Options::default()
        });
        let router = Router::new()
            .get("/", home)
            .route("/login", Route::new().post(login).wrap(tries.wrap()))
            .post("/logout", logout);
        Ok(router.wrap(html_errors::wrap()).wrap(sessions.wrap()))
    })
}
