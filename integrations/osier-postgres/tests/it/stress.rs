//! Eight fibers do to four connections what programs do, while the server is started anew. Whatever a user leaves, the next one gets a
//! clean connection.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use osier_peers::peer::Peer;
use osier_postgres::types::Type;
use osier_postgres::{Connection, Error, Pool, SqlState};
use tokio_postgres::binary_copy::BinaryCopyInWriter;

use super::{eventually, url};

const FIBERS: usize = 8;
const SIZE: usize = 4;

/// The uses of connections, and those after which the server is started anew.
const USES: usize = 2400;
const RESTARTS: [usize; 2] = [800, 1600];

/// A statement in whose middle fibers are stopped. The test is over before it is.
const SLEEPS: &str = "select pg_sleep(600)";

const INSERT: &str = "insert into ledger values ($1)";

/// The numbers of the rows that were inserted.
#[derive(Default)]
struct Books {
    next: AtomicI32,
    uses: AtomicUsize,
    /// Rows that must be there, and rows that may be.
    kept: Mutex<HashSet<i32>>,
    unknown: Mutex<HashSet<i32>>,
}

impl Books {
    /// A number for a row.
    fn number(&self) -> i32 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Keeps a row if `commit` says so. It is unknown whether a row is there whose connection ends meanwhile.
    fn note(&self, number: i32, commit: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let lock =
            |rows: &Mutex<HashSet<i32>>, number| rows.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
        lock(&self.unknown, number);
        commit()?;
        lock(&self.kept, number);
        Ok(())
    }
}

/// Numbers that look random, the same in each run.
struct Draws(u64);

impl Draws {
    fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % count
    }
}

#[test]
fn every_user_of_a_pool_gets_a_clean_connection() {
    let mut server = match Peer::postgres() {
        Ok(server) => server,
        Err(why) => return println!("skipped: {why}"),
    };
    let (url, books) = (url(&server), Books::default());
    std::thread::scope(|scope| {
        let users = scope.spawn(|| {
            let runtime = osier::Runtime::builder().workers(2).build().unwrap();
            runtime
                .run(|| osier::timeout(Duration::from_secs(240), || use_pool(&url, &books)).expect("the test hangs"));
        });
        for uses in RESTARTS {
            while books.uses.load(Relaxed) < uses && !users.is_finished() {
                std::thread::sleep(Duration::from_millis(5));
            }
            server.restart();
        }
        users.join().unwrap();
    });
}

fn use_pool(url: &str, books: &Books) {
    let pool = Pool::connect(url, SIZE).unwrap();
    let connection = pool.get().unwrap();
    let tables = "create table ledger (n int primary key); create table parents (n int primary key); \
        create table children (n int references parents deferrable initially deferred)";
    connection.batch_execute(tables).unwrap();
    drop(connection);
    osier::scope(|scope| {
        for fiber in 0..FIBERS as u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut draws = Draws(0x9E37_79B9 + fiber);
                while books.uses.load(Relaxed) < USES {
                    match use_once(pool, books, &mut draws) {
                        Ok(()) => {
                            books.uses.fetch_add(1, Relaxed);
                        }
                        // The server is away: errors are not to use up the test.
                        Err(error) => {
                            while_restarting(&error);
                            osier::sleep(Duration::from_millis(20));
                        }
                    }
                }
            });
        }
    });
    // All permits are back, no backend is left behind, and none still runs a statement.
    let all = || (0..SIZE).map(|_| pool.get().unwrap()).collect::<Vec<_>>();
    let mut connections = osier::timeout(Duration::from_secs(60), all).expect("permits are lost");
    for connection in &connections {
        check(connection, books.number()).unwrap();
    }
    let admin = connections.pop().unwrap();
    let backends = "select count(*), count(*) filter (where state <> 'idle' and pid <> pg_backend_pid()) \
        from pg_stat_activity where backend_type = 'client backend'";
    eventually("there are as many backends as connections", || {
        let row = admin.query_one(backends, &[]).unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1)) == (SIZE as i64, 0)
    });
    let rows = admin.query("select n from ledger", &[]).unwrap();
    let rows: HashSet<i32> = rows.iter().map(|row| row.get(0)).collect();
    let [kept, unknown] = [&books.kept, &books.unknown].map(|rows| rows.lock().unwrap());
    assert!(kept.is_subset(&rows), "lost: {:?}", kept.difference(&rows));
    assert!(
        rows.is_subset(&unknown),
        "not rolled back: {:?}",
        rows.difference(&unknown)
    );
    assert!(kept.len() > USES / 20, "{}", kept.len());
}

/// Takes a connection, finds it clean, and does something to it.
fn use_once(pool: &Pool, books: &Books, draws: &mut Draws) -> Result<(), Error> {
    let connection = pool.get()?;
    check(&connection, books.number())?;
    let (kind, number) = (draws.below(16), books.number());
    let act = || act(kind, connection, books, number);
    // Stopped anywhere.
    if kind == 15 || draws.below(4) == 0 {
        let limit = Duration::from_micros(draws.below(20_000));
        return osier::timeout(limit, act).unwrap_or(Ok(()));
    }
    act()
}

/// Finds that the connection answers this question and no other one, at once, and that it is in no transaction.
fn check(connection: &Connection, number: i32) -> Result<(), Error> {
    let asked = osier::timeout(Duration::from_secs(30), || {
        let row = connection.query_one("select $1::int", &[&number])?;
        assert_eq!(row.get::<_, i32>(0), number, "the answer to another question");
        connection.batch_execute("savepoint none")
    });
    let asked = asked.expect("the connection is busy with the statement of somebody else");
    match asked.expect_err("it is in a transaction") {
        error if error.code() == Some(&SqlState::NO_ACTIVE_SQL_TRANSACTION) => Ok(()),
        error => Err(error),
    }
}

/// Errors are those of a server that goes, or comes. A cancellation of somebody else's statement is none of them.
fn while_restarting(error: &Error) {
    assert!(error.is_closed(), "{error:?}");
}

/// Does to a connection one of the things that users do.
fn act(kind: u64, mut connection: Connection, books: &Books, number: i32) -> Result<(), Error> {
    let is_code = |error: &Error, code: &SqlState| error.code() == Some(code);
    match kind {
        0 => books.note(number, || connection.execute(INSERT, &[&number]).map(drop)),
        1 => {
            let error = connection.query("select 1 / $1::int", &[&0]).unwrap_err();
            if is_code(&error, &SqlState::DIVISION_BY_ZERO) {
                Ok(())
            } else {
                Err(error)
            }
        }
        2 => {
            let transaction = connection.transaction()?;
            transaction.execute(INSERT, &[&number])?;
            books.note(number, || transaction.commit())
        }
        3 => {
            let transaction = connection.transaction()?;
            transaction.execute(INSERT, &[&number])?;
            transaction.rollback()
        }
        // Dropped in the middle, after a failure, with a savepoint.
        4 => {
            let mut transaction = connection.transaction()?;
            transaction.execute(INSERT, &[&number])?;
            let savepoint = transaction.transaction()?;
            drop(savepoint.execute(INSERT, &[&number]));
            Ok(())
        }
        // A failure that nobody looks at.
        5 => {
            let transaction = connection.transaction()?;
            transaction.execute(INSERT, &[&number])?;
            drop(transaction.execute(INSERT, &[&number]));
            match transaction.commit() {
                Ok(()) => panic!("a commit that has kept nothing"),
                Err(error) if is_code(&error, &SqlState::IN_FAILED_SQL_TRANSACTION) => Ok(()),
                Err(error) => Err(error),
            }
        }
        // The commit itself fails.
        6 => {
            let transaction = connection.transaction()?;
            transaction.execute("insert into children values ($1)", &[&number])?;
            match transaction.commit() {
                Err(error) if is_code(&error, &SqlState::FOREIGN_KEY_VIOLATION) => Ok(()),
                other => other.map(|()| panic!("a commit without the parent")),
            }
        }
        7 => {
            let panicked = catch_unwind(AssertUnwindSafe(|| -> Result<(), Error> {
                let transaction = connection.transaction()?;
                transaction.execute(INSERT, &[&number])?;
                resume_unwind(Box::new("on purpose"))
            }));
            match panicked {
                Ok(failed) => failed,
                Err(panic) if panic.is::<&str>() => Ok(()),
                // The fiber is stopped.
                Err(stop) => resume_unwind(stop),
            }
        }
        8..=10 => copy(kind, &connection, books, number),
        // A reader that has seen enough.
        11 => connection.call(|client| async move {
            drop(
                client
                    .copy_out("copy (select generate_series(1, 20000)) to stdout")
                    .await?,
            );
            drop(client.query_raw("select generate_series(1, 20000)", [0_i32; 0]).await?);
            Ok(())
        }),
        12 => {
            connection.batch_execute("listen news")?;
            connection.batch_execute("notify news, 'of the day'")?;
            connection.batch_execute("unlisten *")
        }
        13 => {
            let ended = connection.query("select pg_terminate_backend(pg_backend_pid())", &[]);
            assert!(ended.as_ref().is_err_and(Error::is_closed), "{:?}", ended.err());
            Ok(())
        }
        // Two fibers use one connection. One of them is stopped in any case.
        14 => {
            let ask = |sql: &str| {
                let asked = osier::timeout(Duration::from_millis(5), || connection.query(sql, &[]).map(drop));
                asked.unwrap_or(Ok(()))
            };
            osier::scope(|scope| {
                let other = scope.spawn_local(|| ask("select 1"));
                ask(SLEEPS).and(other.join().unwrap())
            })
        }
        // Whoever calls this stops it.
        15 => {
            let transaction = connection.transaction()?;
            transaction.execute(INSERT, &[&number])?;
            transaction.query(SLEEPS, &[]).map(drop)
        }
        _ => unreachable!("there are no more"),
    }
}

/// A COPY to the server that ends well, is broken off, or fails.
fn copy(kind: u64, connection: &Connection, books: &Books, number: i32) -> Result<(), Error> {
    let copied = || {
        connection.call(|client| async move {
            let sink = client.copy_in("copy ledger from stdin binary").await?;
            let mut writer = pin!(BinaryCopyInWriter::new(sink, &[Type::INT4]));
            writer.as_mut().write(&[&number]).await?;
            match kind {
                8 => writer.finish().await.map(drop),
                9 => Ok(()),
                _ => {
                    writer.as_mut().write(&[&number]).await?;
                    writer.finish().await.map(drop)
                }
            }
        })
    };
    match kind {
        8 => books.note(number, copied),
        9 => copied(),
        _ => match copied() {
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => Ok(()),
            other => other.map(|()| panic!("two rows with one key")),
        },
    }
}
