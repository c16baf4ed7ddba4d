//! Makes a table, fills it in a transaction, and asks from many fibers:
//! `cargo run --example items -- "host=/run/postgresql user=me dbname=me"`.

use osier_postgres::{Error, Pool};

fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "postgres://postgres@localhost".into());
    osier::run(|| {
        let pool = Pool::connect(&url, 4)?;
        let mut connection = pool.get()?;
        connection.batch_execute("create temporary table item (id int primary key, name text not null)")?;
        let transaction = connection.transaction()?;
        for (id, name) in [(1, "willow"), (2, "basket")] {
            transaction.execute("insert into item values ($1, $2)", &[&id, &name])?;
        }
        transaction.commit()?;
        for row in connection.query("select id, name from item order by id", &[])? {
            println!("{}: {}", row.get::<_, i32>(0), row.get::<_, &str>(1));
        }
        drop(connection);
        let fibers: Vec<_> = (0..8)
            .map(|n| {
                let pool = pool.clone();
                osier::spawn(move || {
                    pool.get()?
                        .query_one("select $1::int * 6", &[&n])
                        .map(|row| row.get::<_, i32>(0))
                })
            })
            .collect();
        for fiber in fibers {
            println!("{}", fiber.join().expect("no query panics")?);
        }
        Ok(())
    })
}
