//! The answer of the JSON rows: 1 KiB as JSON, made anew for each request.
#![forbid(unsafe_code)]

use serde::Serialize;

#[derive(Serialize)]
pub struct Page {
    number: u32,
    is_last: bool,
    items: Vec<Item>,
}

#[derive(Serialize)]
struct Item {
    id: u64,
    name: String,
    price: f64,
    tags: [&'static str; 3],
    stock: Option<u32>,
}

/// A page of nine items.
pub fn page() -> Page {
    let item = |id: u64| Item {
        id: 1_000_003 * id,
        name: format!("An item with the number {id}"),
        price: 9.75 + id as f64,
        tags: ["small", "green", "on \"sale\""],
        stock: (!id.is_multiple_of(3)).then_some(40 + id as u32),
    };
    Page {
        number: 7,
        is_last: false,
        items: (1..=9).map(item).collect(),
    }
}
