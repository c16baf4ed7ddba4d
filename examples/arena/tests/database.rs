//! The routes with a database, against a real PostgreSQL. Without one the test prints that it is skipped.

use osier_peers::peer::Peer;
use osier_postgres::Pool;
use osier_web::test::Client;
use serde_json::{Value, json};

use super::Folder;
use crate::{App, router};

const TABLES: &str = r#"
create table items (id int primary key, name text not null, category text not null, price int not null, quantity int not null,
    active boolean not null, tags jsonb not null, rating_score int not null, rating_count int not null);
insert into items select n, 'Item "' || n || '"', case when n % 2 = 0 then 'electronics' else 'tools' end, n, 5, n % 3 = 0,
    '["fast", "grüße"]', 40, n * 10 from generate_series(1, 100) n;
create table users (id int primary key, name text not null, email text not null, plan text not null);
insert into users values (42, 'Ada', 'ada@example.org', 'pro');
create table world (id int primary key, randomnumber int not null);
insert into world select n, 1 from generate_series(1, 10000) n;
create table fortune (id int primary key, message text not null);
insert into fortune values (1, 'Zebra'), (2, '<script>alert("x");</script>'), (3, 'フレームワーク');
"#;

fn item(id: i64) -> Value {
    let category = if id % 2 == 0 { "electronics" } else { "tools" };
    json!({
        "id": id, "name": format!("Item \"{id}\""), "category": category, "price": id, "quantity": 5, "active": id % 3 == 0,
        "tags": ["fast", "grüße"], "rating": { "score": 40, "count": id * 10 },
    })
}

fn get(client: &Client, path: &str) -> Value {
    let reply = client.get(path).send();
    assert_eq!(
        (reply.status().as_u16(), reply.header("content-type")),
        (200, Some("application/json")),
        "{path}"
    );
    reply.json().unwrap()
}

#[test]
fn the_routes_with_a_database() {
    let server = match Peer::postgres() {
        Ok(server) => server,
        Err(why) => return println!("skipped: {why}"),
    };
    let folder = Folder::new();
    osier_peers::run(|| {
        let url = format!("host={} user=osier dbname=postgres", server.directory().display());
        let pool = Pool::connect(&url, 1).unwrap();
        pool.get().unwrap().batch_execute(TABLES).unwrap();
        let mut settings = folder.settings();
        settings.database = Some(url);
        let app = App::open(&settings).unwrap();
        let client = Client::new(router(&app).unwrap());
        items_by_price(&client);
        pages_of_a_category(&client);
        single_items_are_cached(&client);
        items_are_created_and_changed(&client);
        ports_share_their_cache(&client, &Client::new(router(&app).unwrap()));
        the_routes_behind_the_gateway(&client);
        fortunes(&client);
        updates(&client, &pool);
    });
}

fn items_by_price(client: &Client) {
    let items: Vec<_> = (10..=12).map(item).collect();
    assert_eq!(
        get(client, "/async-db?min=10&max=12&limit=7"),
        json!({ "items": items, "count": 3 })
    );
    for (path, count) in [
        ("/async-db?min=5&max=80&limit=7", 7),
        ("/async-db?min=1&max=100&limit=1000", 50),
        ("/async-db?min=1&max=100&limit=0", 1),
        ("/async-db", 41),
    ] {
        assert_eq!(get(client, path)["count"], count, "{path}");
    }
    assert_eq!(
        get(client, "/async-db?min=9999&max=9999"),
        json!({ "items": [], "count": 0 })
    );
    assert_eq!(client.get("/async-db?min=many").send().status(), 400);
}

fn pages_of_a_category(client: &Client) {
    let items: Vec<_> = [8, 10, 12].map(item).into();
    let page = json!({ "items": items, "total": 3, "page": 2, "limit": 3 });
    assert_eq!(get(client, "/crud/items?category=electronics&page=2&limit=3"), page);
    assert_eq!(get(client, "/crud/items")["limit"], 10);
    assert_eq!(get(client, "/crud/items?category=tools&limit=51")["total"], 50);
    assert_eq!(get(client, "/crud/items?category=none")["total"], 0);
}

/// The item, and whether it was in the cache.
fn read(client: &Client, path: &str) -> (Value, String) {
    let reply = client.get(path).send();
    (reply.json().unwrap(), reply.header("x-cache").unwrap().into())
}

/// Whether a read finds the copy that the one before has left. The copy lasts 200 ms, which a busy machine may need for a read.
fn is_soon_cached(client: &Client, path: &str, item: &Value) -> bool {
    let mut reads = (0..100).map(|_| read(client, path));
    reads.any(|(read, cache)| {
        assert_eq!(read, *item, "{path}");
        cache == "HIT"
    })
}

fn single_items_are_cached(client: &Client) {
    assert_eq!(read(client, "/crud/items/42"), (item(42), "MISS".into()));
    assert!(is_soon_cached(client, "/crud/items/42", &item(42)));
    assert_eq!(client.get("/crud/items/999999").send().status(), 404);
    assert_eq!(client.get("/crud/items/none").send().status(), 400);
}

fn items_are_created_and_changed(client: &Client) {
    let new = json!({ "id": 200_001, "name": "New", "category": "test", "price": 42, "quantity": 7 });
    let created = client.post("/crud/items").json(&new).send();
    assert_eq!(
        (created.status().as_u16(), created.header("location")),
        (201, Some("/crud/items/200001"))
    );
    let mut expected = new.clone();
    expected["active"] = true.into();
    expected["tags"] = json!([]);
    expected["rating"] = json!({ "score": 0, "count": 0 });
    assert_eq!(created.json::<Value>().unwrap(), expected);
    assert_eq!(read(client, "/crud/items/200001"), (expected.clone(), "MISS".into()));
    assert_eq!(
        client.post("/crud/items").json(&new).send().status(),
        201,
        "it is replaced"
    );

    assert_eq!(read(client, "/crud/items/200001").1, "MISS");
    let change = json!({ "name": "Changed", "category": "ignored", "price": 99, "quantity": 1 });
    let changed = client.put("/crud/items/200001").json(&change).send();
    assert_eq!(changed.status(), 200);
    for (key, value) in [("name", "Changed".into()), ("price", 99.into()), ("quantity", 1.into())] {
        expected[key] = value;
    }
    assert_eq!(changed.json::<Value>().unwrap(), expected);
    assert_eq!(read(client, "/crud/items/200001"), (expected, "MISS".into()));
    assert_eq!(client.put("/crud/items/999999").json(&change).send().status(), 404);
    assert_eq!(
        client.post("/crud/items").json(&json!({ "id": 1 })).send().status(),
        422
    );
}

fn ports_share_their_cache(one: &Client, other: &Client) {
    assert_eq!(read(one, "/crud/items/50").1, "MISS");
    assert!(is_soon_cached(other, "/crud/items/50", &item(50)));
    let change = json!({ "name": "Changed", "price": 1, "quantity": 2 });
    assert_eq!(other.put("/crud/items/50").json(&change).send().status(), 200);
    let (changed, cache) = read(one, "/crud/items/50");
    assert_eq!((&changed["name"], cache.as_str()), (&json!("Changed"), "MISS"));
}

fn the_routes_behind_the_gateway(client: &Client) {
    assert_eq!(client.get("/public/baseline?a=13&b=42").send().text(), "55");
    assert_eq!(get(client, "/public/json/25"), super::page(25, 1));
    assert_eq!(read(client, "/api/items/7"), (item(7), "MISS".into()));
    assert!(is_soon_cached(client, "/api/items/7", &item(7)));
    let change = json!({ "name": "Changed", "price": 7, "quantity": 8 });
    let changed = client.post("/api/items/7").json(&change).send();
    assert_eq!((changed.status().as_u16(), changed.text()), (204, ""));
    let (changed, cache) = read(client, "/api/items/7");
    assert_eq!((&changed["quantity"], cache.as_str()), (&json!(8), "MISS"));
    assert_eq!(client.get("/api/me").send().status(), 401);
    let me = client.get("/api/me").header("x-user-id", 42).send();
    let ada = json!({ "id": 42, "name": "Ada", "email": "ada@example.org", "plan": "pro" });
    assert_eq!(me.json::<Value>().unwrap(), ada);
    assert_eq!(client.get("/api/me").header("x-user-id", 43).send().status(), 404);
}

fn fortunes(client: &Client) {
    let page = client.get("/fortunes").send();
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(
        page.text(),
        "<!DOCTYPE html><html><head><title>Fortunes</title></head><body><table><tr><th>id</th><th>message</th></tr>\
         <tr><td>2</td><td>&lt;script&gt;alert(&quot;x&quot;);&lt;/script&gt;</td></tr>\
         <tr><td>0</td><td>Additional fortune added at request time.</td></tr>\
         <tr><td>1</td><td>Zebra</td></tr>\
         <tr><td>3</td><td>フレームワーク</td></tr></table></body></html>"
    );
}

fn updates(client: &Client, pool: &Pool) {
    for (path, count) in [
        ("/updates?queries=20", 20),
        ("/updates?queries=501", 500),
        ("/updates?queries=0", 1),
        ("/updates?queries=foo", 1),
        ("/updates", 1),
    ] {
        let worlds = get(client, path);
        let worlds = worlds.as_array().unwrap();
        assert_eq!(worlds.len(), count, "{path}");
        for world in worlds {
            let id = world["id"].as_i64().unwrap() as i32;
            let stored = pool.get().unwrap();
            let stored = stored
                .query_one("select randomnumber from world where id = $1", &[&id])
                .unwrap();
            assert_eq!(world["randomNumber"], stored.get::<_, i32>(0), "{world}");
            assert!((1..=10_000).contains(&stored.get::<_, i32>(0)), "{world}");
        }
    }
}
