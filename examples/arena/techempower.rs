//! The routes `fortunes` and `updates` of TechEmpower's benchmarks, on its tables `fortune` and `world`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use osier_web::{Error, IntoResponse, Json, Request, Response};
use serde::Serialize;

use crate::items::Database;

/// The rows of the table `world`.
const WORLDS: u64 = 10_000;

const ADDED: &str = "Additional fortune added at request time.";

/// Responds with a page of all fortunes and one more, in the order of their texts.
pub fn fortunes(request: &mut Request<'_>) -> Result<Response, Error> {
    let rows = Database::of(request)?.query("select id, message from fortune", &[])?;
    let mut fortunes: Vec<(i32, &str)> = rows.iter().map(|row| (row.get("id"), row.get("message"))).collect();
    fortunes.push((0, ADDED));
    fortunes.sort_unstable_by_key(|(_, message)| *message);

    let mut page = String::with_capacity(2048);
    page +=
        "<!DOCTYPE html><html><head><title>Fortunes</title></head><body><table><tr><th>id</th><th>message</th></tr>";
    for (id, message) in fortunes {
        write!(page, "<tr><td>{id}</td><td>{}</td></tr>", Escaped(message))?;
    }
    page += "</table></body></html>";
    Ok(page.into_response().content_type("text/html; charset=utf-8"))
}

/// Text in the body of an HTML page.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
            f.write_str(&rest[..at])?;
            f.write_str(match rest.as_bytes()[at] {
                b'&' => "&amp;",
                b'<' => "&lt;",
                b'>' => "&gt;",
                b'"' => "&quot;",
                _ => "&#39;",
            })?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}

#[derive(Serialize)]
struct World {
    id: i32,
    #[serde(rename = "randomNumber")]
    number: i32,
}

/// Reads rows of the table one by one, gives each a new number, and writes all of them. The rows are different ones and are written in
/// the order of their ids, so that two requests cannot wait for each other.
pub fn updates(request: &mut Request<'_>) -> Result<Response, Error> {
    let count = request
        .query_param("queries")
        .and_then(|count| count.parse::<i64>().ok());
    let count = count.unwrap_or(1).clamp(1, 500) as usize;
    let db = Database::of(request)?;
    let mut worlds = BTreeMap::new();
    while worlds.len() < count {
        let id = random();
        if worlds.contains_key(&id) {
            continue;
        }
        let row = db.query_one("select id, randomnumber from world where id = $1", &[&id])?;
        let before: i32 = row.get("randomnumber");
        // A number that changes nothing would spare the database the write.
        let number = std::iter::repeat_with(random).find(|number| *number != before);
        worlds.insert(id, number.unwrap_or(before));
    }
    let (ids, numbers): (Vec<i32>, Vec<i32>) = worlds.iter().unzip();
    db.execute(
        "update world set randomnumber = new.number from unnest($1::int[], $2::int[]) as new (id, number) where world.id = new.id",
        &[&ids, &numbers],
    )?;
    let worlds: Vec<World> = worlds.into_iter().map(|(id, number)| World { id, number }).collect();
    Ok(Json(worlds).into_response())
}

/// The id of a row, or a number for it.
fn random() -> i32 {
    (osier::random() % WORLDS) as i32 + 1
}
