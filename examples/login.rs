//! Logs users in: a form, a session, and a page that only members see. `cargo run --bin login`, then
//! open http://127.0.0.1:8080/. `cargo run --bin login 127.0.0.1:8080 127.0.0.1:6379` keeps the sessions in Redis.

use osier_web::http::StatusCode;
use osier_web::wrap::session::{Memory, Redis, Sessions};
use osier_web::wrap::{html_errors, same_secret};
use osier_web::{Body, Rejection, Request, Response, Router};

#[path = "start/mod.rs"]
mod start;

#[derive(serde::Deserialize)]
struct Login {
    user: String,
    password: String,
}

fn page(body: &str) -> Response {
    Response::new(StatusCode::OK)
        .content_type("text/html; charset=utf-8")
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

fn main() -> std::process::ExitCode {
    start::serve("login", |args| {
        // The second argument is the address of Redis.
        let sessions = match args.first() {
            None => Sessions::new(Memory::new(10_000)),
            Some(address) => Sessions::new(Redis::new(address.parse().map_err(std::io::Error::other)?)),
        };
        let router = Router::new()
            .get("/", home)
            .post("/login", login)
            .post("/logout", logout);
        Ok(router.wrap(html_errors::wrap()).wrap(sessions.wrap()))
    })
}
