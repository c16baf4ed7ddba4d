//! The routes behind the gateway of the profile `production-stack`. The gateway has verified the user, and names it in a field.

use std::sync::Arc;
use std::time::Duration;

use osier_web::{Error, Request, Response, http::StatusCode};
use serde::Serialize;

use crate::cache::Cache;
use crate::crud::{self, cached};
use crate::items::Database;

/// How long a user is cached.
const CACHED: Duration = Duration::from_secs(30);

/// The cache of users. Clones share it.
#[derive(Clone, Default)]
pub struct Users(Arc<Cache>);

/// Changes an item, and responds without it.
pub fn update(request: &mut Request<'_>) -> Result<Response, Error> {
    let response = crud::update(request)?;
    Ok(match response.status() {
        StatusCode::OK => Response::new(StatusCode::NO_CONTENT),
        _ => response,
    })
}

#[derive(Serialize)]
struct User<'a> {
    id: i32,
    name: &'a str,
    email: &'a str,
    plan: &'a str,
}

/// Responds with the user that the gateway names.
pub fn me(request: &mut Request<'_>) -> Result<Response, Error> {
    const SQL: &str = "select id, name, email, plan from users where id = $1";
    let Some(id) = request.header_str("x-user-id").and_then(|id| id.parse::<i32>().ok()) else {
        return Ok(Response::plain(StatusCode::UNAUTHORIZED));
    };
    let Users(cache) = request.state()?;
    let ticket = match cache.find(id, osier::time::now()) {
        Ok(user) => return Ok(cached(user, "HIT")),
        Err(ticket) => ticket,
    };
    let Some(row) = Database::of(request)?.query_opt(SQL, &[&id])? else {
        return Ok(Response::plain(StatusCode::NOT_FOUND));
    };
    let user = User {
        id: row.get("id"),
        name: row.get("name"),
        email: row.get("email"),
        plan: row.get("plan"),
    };
    let user = Arc::new(serde_json::to_vec(&user)?);
    let now = osier::time::now();
    cache.keep(ticket, user.clone(), now, now + CACHED);
    Ok(cached(user, "MISS"))
}
