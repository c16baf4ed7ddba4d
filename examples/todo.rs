//! A JSON API over SQLite.
//!
//! ```text
//! cargo run --release -p osier-examples --bin todo -- [ADDR [FILE]]
//!
//! curl localhost:8080/todos -H 'content-type: application/json' -d '{"title": "read the docs"}'
//! curl 'localhost:8080/todos?done=false'
//! curl 'localhost:8080/todos?after=100'
//! curl localhost:8080/todos/1 -X PATCH -H 'content-type: application/json' -d '{"done": true}'
//! curl localhost:8080/todos/1 -X DELETE
//! ```

use std::io;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use osier_web::{IntoResponse, Json, Rejection, Request, Response, Router, http::StatusCode};
use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};

mod start;

#[derive(Serialize)]
struct Todo {
    id: i64,
    title: String,
    done: bool,
}

impl Todo {
    fn of(row: &Row<'_>) -> rusqlite::Result<Todo> {
        Ok(Todo {
            id: row.get(0)?,
            title: row.get(1)?,
            done: row.get(2)?,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    title: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    title: Option<String>,
    done: Option<bool>,
}

#[derive(Deserialize)]
struct Filter {
    done: Option<bool>,
    /// The last todo of the page before.
    #[serde(default)]
    after: i64,
}

/// The most todos of a response.
const PAGE: u32 = 100;

/// One connection, used by one thread of the blocking pool at a time. SQLite has only one writer anyway.
struct Store(Arc<Mutex<Connection>>);

impl Store {
    fn open(file: Option<&str>) -> rusqlite::Result<Store> {
        let connection = match file {
            Some(file) => Connection::open(file)?,
            None => Connection::open_in_memory()?,
        };
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS todo (id INTEGER PRIMARY KEY, title TEXT NOT NULL, done BOOLEAN NOT NULL DEFAULT FALSE)",
        )?;
        Ok(Store(Arc::new(Mutex::new(connection))))
    }

    /// Runs `work` on the blocking pool while the fiber waits. A client that leaves meanwhile does not stop work that has begun.
    fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let connection = self.0.clone();
        let work = move || work(&connection.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(osier::shield(|| osier::unblock(work))?)
    }
}

/// Why a handler fails.
enum Failure {
    Request(Rejection),
    Store(rusqlite::Error),
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Failure::Request(rejection) => rejection.into_response(),
            Failure::Store(rusqlite::Error::QueryReturnedNoRows) => {
                (StatusCode::NOT_FOUND, "no such todo\n").into_response()
            }
            Failure::Store(error) => Response::internal_error(error),
        }
    }
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        Failure::Request(rejection)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Store(error)
    }
}

fn list(request: &mut Request<'_>) -> Result<Json<Vec<Todo>>, Failure> {
    let Filter { done, after } = request.query_as()?;
    let todos = request.state::<Store>()?.with(move |db| {
        let mut query = db.prepare_cached(
            "SELECT id, title, done FROM todo WHERE id > ?1 AND (?2 IS NULL OR done = ?2) ORDER BY id LIMIT ?3",
        )?;
        query.query_map(params![after, done, PAGE], Todo::of)?.collect()
    })?;
    Ok(Json(todos))
}

fn add(request: &mut Request<'_>) -> Result<Response, Failure> {
    let New { title } = request.json()?;
    if title.trim().is_empty() {
        return Err(Rejection::new(StatusCode::UNPROCESSABLE_ENTITY, "a todo needs a title").into());
    }
    let todo = request.state::<Store>()?.with(move |db| {
        let sql = "INSERT INTO todo (title) VALUES (?1) RETURNING id, title, done";
        db.query_row(sql, params![title], Todo::of)
    })?;
    let location = format!("/todos/{}", todo.id);
    let response = Json(todo).into_response().with_status(StatusCode::CREATED);
    Ok(response.header("location", location))
}

fn show(request: &mut Request<'_>) -> Result<Json<Todo>, Failure> {
    let id: i64 = request.params()?;
    let todo = request
        .state::<Store>()?
        .with(move |db| db.query_row("SELECT id, title, done FROM todo WHERE id = ?1", params![id], Todo::of))?;
    Ok(Json(todo))
}

fn change(request: &mut Request<'_>) -> Result<Json<Todo>, Failure> {
    let id: i64 = request.params()?;
    let Change { title, done } = request.json()?;
    let todo = request.state::<Store>()?.with(move |db| {
        let sql = "UPDATE todo SET title = coalesce(?2, title), done = coalesce(?3, done) WHERE id = ?1 RETURNING id, title, done";
        db.query_row(sql, params![id, title, done], Todo::of)
    })?;
    Ok(Json(todo))
}

fn remove(request: &mut Request<'_>) -> Result<StatusCode, Failure> {
    let id: i64 = request.params()?;
    let store = request.state::<Store>()?;
    match store.with(move |db| db.execute("DELETE FROM todo WHERE id = ?1", params![id]))? {
        0 => Err(rusqlite::Error::QueryReturnedNoRows.into()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

fn main() -> ExitCode {
    start::serve("todo", |args| {
        let store = Store::open(args.first().map(String::as_str)).map_err(io::Error::other)?;
        let router = Router::new()
            .get("/todos", list)
            .post("/todos", add)
            .get("/todos/{id}", show)
            .patch("/todos/{id}", change)
            .delete("/todos/{id}", remove);
        Ok(router.state(store))
    })
}
