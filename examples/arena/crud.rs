//! Items that clients list, read, create and change. Reads of single items are cached for a short time.

use std::sync::Arc;
use std::time::Duration;

use osier_web::{Body, Error, IntoResponse, Json, Request, Response, http::StatusCode};
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::items::{Database, Item, PAGE, columns};

/// How long an item is cached.
const CACHED: Duration = Duration::from_millis(200);

/// The cache of items. Clones share it.
#[derive(Clone, Default)]
pub struct Items(Arc<Cache>);

#[derive(Deserialize)]
#[serde(default)]
struct Wanted {
    category: String,
    page: i64,
    limit: i64,
}

impl Default for Wanted {
    fn default() -> Self {
        Wanted {
            category: "electronics".into(),
            page: 1,
            limit: 10,
        }
    }
}

#[derive(Serialize)]
struct Page<'a> {
    items: Vec<Item<'a>>,
    total: usize,
    page: i64,
    limit: i64,
}

/// Responds with one page of a category.
pub fn list(request: &mut Request<'_>) -> Result<Response, Error> {
    const SQL: &str = concat!(
        "select ",
        columns!(),
        " from items where category = $1 order by id limit $2 offset $3"
    );
    let Wanted { category, page, limit } = request.query_as()?;
    let (page, limit) = (page.clamp(1, i32::MAX.into()), limit.clamp(1, PAGE));
    let rows = Database::of(request)?.query(SQL, &[&category, &limit, &((page - 1) * limit)])?;
    let items: Vec<_> = rows.iter().map(Item::of).collect();
    let total = items.len();
    let page = Page {
        items,
        total,
        page,
        limit,
    };
    Ok(Json(page).into_response())
}

/// Responds with one item, and says whether it comes from the cache.
pub fn read(request: &mut Request<'_>) -> Result<Response, Error> {
    const SQL: &str = concat!("select ", columns!(), " from items where id = $1");
    let (id,): (i32,) = request.params()?;
    let Items(cache) = request.state()?;
    let ticket = match cache.find(id, osier::time::now()) {
        Ok(item) => return Ok(cached(item, "HIT")),
        Err(ticket) => ticket,
    };
    let Some(row) = Database::of(request)?.query_opt(SQL, &[&id])? else {
        return Ok(Response::plain(StatusCode::NOT_FOUND));
    };
    let item = Arc::new(serde_json::to_vec(&Item::of(&row))?);
    let now = osier::time::now();
    cache.keep(ticket, item.clone(), now, now + CACHED);
    Ok(cached(item, "MISS"))
}

/// The response with an item, or with anything else from a cache.
pub fn cached(json: Arc<Vec<u8>>, how: &str) -> Response {
    Response::new(StatusCode::OK)
        .content_type("application/json")
        .header("x-cache", how)
        .body(Body::shared(json))
}

#[derive(Deserialize)]
struct New {
    id: i32,
    name: String,
    category: String,
    price: i32,
    quantity: i32,
}

/// Makes an item, or replaces the one that has its number.
pub fn create(request: &mut Request<'_>) -> Result<Response, Error> {
    const SQL: &str = concat!(
        "insert into items (",
        columns!(),
        ") values ($1, $2, $3, $4, $5, true, '[]', 0, 0) on conflict (id) do update set name = excluded.name, \
         category = excluded.category, price = excluded.price, quantity = excluded.quantity returning ",
        columns!()
    );
    let new: New = request.json()?;
    let values: [&(dyn osier_postgres::types::ToSql + Sync); 5] =
        [&new.id, &new.name, &new.category, &new.price, &new.quantity];
    let row = Database::of(request)?.query_one(SQL, &values)?;
    let Items(cache) = request.state()?;
    cache.forget(new.id);
    let created = Json(Item::of(&row)).into_response();
    Ok(created
        .with_status(StatusCode::CREATED)
        .header("location", format!("/crud/items/{}", new.id)))
}

#[derive(Deserialize)]
struct Change {
    name: String,
    price: i32,
    quantity: i32,
}

/// Changes an item and forgets its copy in the cache.
pub fn update(request: &mut Request<'_>) -> Result<Response, Error> {
    const SQL: &str = concat!(
        "update items set name = $2, price = $3, quantity = $4 where id = $1 returning ",
        columns!()
    );
    let (id,): (i32,) = request.params()?;
    let Change { name, price, quantity } = request.json()?;
    let row = Database::of(request)?.query_opt(SQL, &[&id, &name, &price, &quantity])?;
    let Items(cache) = request.state()?;
    cache.forget(id);
    Ok(row.map(|row| Json(Item::of(&row)).into_response()).into_response())
}
