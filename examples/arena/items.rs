//! The table `items`, and its pages by price.

use osier_postgres::types::Json as Jsonb;
use osier_postgres::{Pipeline, Row};
use osier_web::{Error, IntoResponse, Json, Request, Response, http::StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Most items of a page.
pub const PAGE: i64 = 50;

/// The database, if the environment names one.
#[derive(Clone)]
pub struct Database(pub Option<Pipeline>);

impl Database {
    /// The connections, or 503 without a database.
    pub fn of<'a>(request: &Request<'a>) -> Result<&'a Pipeline, Error> {
        let Database(open) = request.state()?;
        open.as_ref()
            .ok_or_else(|| Error::new("DATABASE_URL is not set").with_status(StatusCode::SERVICE_UNAVAILABLE))
    }
}

/// A row of the table, in the form of the benchmark. It borrows from the row, and its tags are JSON already.
#[derive(Serialize)]
pub struct Item<'a> {
    id: i32,
    name: &'a str,
    category: &'a str,
    price: i32,
    quantity: i32,
    active: bool,
    tags: &'a RawValue,
    rating: Rating,
}

#[derive(Serialize)]
struct Rating {
    score: i32,
    count: i32,
}

/// The columns that [`Item::of`] reads.
macro_rules! columns {
    () => {
        "id, name, category, price, quantity, active, tags, rating_score, rating_count"
    };
}
pub(crate) use columns;

impl<'a> Item<'a> {
    pub fn of(row: &'a Row) -> Item<'a> {
        let Jsonb(tags) = row.get("tags");
        Item {
            id: row.get("id"),
            name: row.get("name"),
            category: row.get("category"),
            price: row.get("price"),
            quantity: row.get("quantity"),
            active: row.get("active"),
            tags,
            rating: Rating {
                score: row.get("rating_score"),
                count: row.get("rating_count"),
            },
        }
    }
}

#[derive(Deserialize)]
#[serde(default)]
struct Prices {
    min: i32,
    max: i32,
    limit: i64,
}

impl Default for Prices {
    fn default() -> Self {
        Prices {
            min: 10,
            max: 50,
            limit: PAGE,
        }
    }
}

#[derive(Serialize)]
struct Page<'a> {
    items: Vec<Item<'a>>,
    count: usize,
}

/// Responds with items of these prices. Without a database there are none.
pub fn by_price(request: &mut Request<'_>) -> Result<Response, Error> {
    const SQL: &str = concat!(
        "select ",
        columns!(),
        " from items where price between $1 and $2 limit $3"
    );
    let Prices { min, max, limit } = request.query_as()?;
    let Database(open) = request.state()?;
    let rows = match open {
        Some(db) => match db.query(SQL, &[&min, &max, &limit.clamp(1, PAGE)]) {
            Err(error) if error.is_closed() => vec![],
            rows => rows?,
        },
        None => vec![],
    };
    let items: Vec<_> = rows.iter().map(Item::of).collect();
    let count = items.len();
    Ok(Json(Page { items, count }).into_response())
}
