//! The items of a JSON file. Each response is made anew, because the totals depend on the request.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::Arc;

use osier_web::{IntoResponse, Json, Rejection, Request, Response};
use serde::{Deserialize, Serialize};

/// The items of the file, read once. Clones share them.
#[derive(Clone)]
pub struct Dataset(Arc<[Item]>);

#[derive(Deserialize, Serialize)]
struct Item {
    id: i64,
    name: String,
    category: String,
    price: i32,
    quantity: i32,
    active: bool,
    tags: Vec<String>,
    rating: Rating,
}

#[derive(Deserialize, Serialize)]
struct Rating {
    score: i64,
    count: i64,
}

#[derive(Serialize)]
struct Priced<'a> {
    #[serde(flatten)]
    item: &'a Item,
    total: i64,
}

impl Priced<'_> {
    fn of(item: &Item, multiplier: i64) -> Priced<'_> {
        Priced {
            item,
            total: i64::from(item.price) * i64::from(item.quantity) * multiplier,
        }
    }
}

#[derive(Serialize)]
struct Page<'a> {
    items: Vec<Priced<'a>>,
    count: usize,
}

#[derive(Deserialize)]
struct Multiplier {
    #[serde(default = "once")]
    m: i32,
}

fn once() -> i32 {
    1
}

impl Dataset {
    pub fn read(path: &Path) -> io::Result<Dataset> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = BufReader::new(File::open(path).map_err(named)?);
        let items: Vec<Item> = serde_json::from_reader(file).map_err(|error| named(error.into()))?;
        Ok(Dataset(items.into()))
    }
}

/// Responds with the first items, as many as the path says, and their totals.
pub fn page(request: &mut Request<'_>) -> Result<Response, Rejection> {
    let (count,): (usize,) = request.params()?;
    let Multiplier { m } = request.query_as()?;
    let Dataset(all) = request.state()?;
    let priced = |item| Priced::of(item, m.into());
    let items: Vec<_> = all.iter().take(count).map(priced).collect();
    let count = items.len();
    Ok(Json(Page { items, count }).into_response())
}
