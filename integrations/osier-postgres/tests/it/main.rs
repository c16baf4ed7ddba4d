//! The pool against a real PostgreSQL, which is started once. Without one the test prints why it is skipped.

mod stress;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use osier_peers::peer::Peer;
use osier_postgres::{Config, Connection, Error, Pipeline, Pool, SqlState, Transaction, types::Type};

fn url(server: &Peer) -> String {
    format!("host={} user=osier dbname=postgres", server.directory().display())
}

fn open(server: &Peer, size: usize) -> Pool {
    Pool::connect(&url(server), size).unwrap()
}

/// Looks until the condition holds.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "not in 20 s: {what}");
        osier::sleep(Duration::from_millis(5)); // between two looks at another process
    }
}

fn pid(connection: &Connection) -> i32 {
    connection.query_one("select pg_backend_pid()", &[]).unwrap().get(0)
}

#[test]
fn a_pool_over_a_real_server() {
    let server = match Peer::postgres() {
        Ok(server) => server,
        Err(why) => return println!("skipped: {why}"),
    };
    for test in [
        rows_values_and_errors,
        statements_are_prepared_once,
        transactions_commit_and_roll_back,
        a_commit_tells_of_a_failure_that_was_ignored,
        a_copy_leaves_no_connection_out_of_step,
        a_connection_may_end_on_a_plain_thread,
        fibers_of_one_thread_share_the_connections,
        a_dead_backend_is_replaced,
        a_query_that_is_given_up_is_cancelled,
        fibers_use_a_pipeline_at_once,
        a_dead_connection_of_a_pipeline_is_replaced,
    ] {
        // One worker: a call that blocked it would stop the test.
        let runtime = osier::Runtime::builder().workers(1).build().unwrap();
        runtime.run(|| osier::timeout(Duration::from_secs(60), || test(&server)).expect("the test hangs"));
    }
}

/// The next message of a client: its kind, or 0 for the first one, which has none.
fn message(client: &mut TcpStream, is_first: bool) -> Option<u8> {
    let mut kind = [0];
    if !is_first {
        client.read_exact(&mut kind).ok()?;
    }
    let mut length = [0; 4];
    client.read_exact(&mut length).ok()?;
    let mut rest = vec![0; u32::from_be_bytes(length) as usize - 4];
    client.read_exact(&mut rest).ok()?;
    Some(kind[0])
}

/// A message of the server.
fn say(client: &mut TcpStream, kind: u8, body: &[u8]) {
    let length = (body.len() as u32 + 4).to_be_bytes();
    client.write_all(&[&[kind][..], &length, body].concat()).unwrap();
}

/// A server that refuses the first thing it is asked, and leaves the socket open.
fn refuse(client: &mut TcpStream, report: &str) {
    message(client, true).unwrap();
    say(client, b'R', &[0; 4]);
    say(client, b'Z', b"I");
    // The end of a question.
    while message(client, false).unwrap() != b'S' {}
    say(client, b'E', report.as_bytes());
}

#[test]
fn a_prepare_with_which_the_server_ends_the_session_ends_the_connection_of_a_pipeline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let calling = std::thread::spawn(move || {
        osier::run(|| {
            let db = Pipeline::connect(&format!("host=127.0.0.1 port={port} user=osier"), 1).unwrap();
            let code = || {
                let error = db.query("select 1", &[]).unwrap_err();
                error.code().map(|code| code.code().to_owned())
            };
            [code(), code()]
        })
    });
    let mut first = listener.accept().unwrap().0;
    refuse(&mut first, "SFATAL\0VFATAL\0C57P01\0Mit ends\0\0");
    // The next statement goes to another connection. A server that has ended a session answers nothing more there.
    let mut second = listener.accept().unwrap().0;
    refuse(&mut second, "SERROR\0VERROR\0C42601\0Mno\0\0");
    say(&mut second, b'Z', b"I");
    let codes = calling.join().unwrap();
    assert_eq!(codes.each_ref().map(Option::as_deref), [Some("57P01"), Some("42601")]);
    assert_eq!(message(&mut first, false), None, "it is closed");
}

/// Where the network is cut after a statement was acknowledged, nothing but this timer ends the call.
#[test]
fn the_kernel_probes_a_silent_server_as_the_configuration_says() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("host=127.0.0.1 port={port} user=osier keepalives_idle=30");
    let connecting = std::thread::spawn(move || osier::run(|| Pipeline::connect(&url, 1).is_err()));
    let (mut server, client) = listener.accept().unwrap();
    server.read_exact(&mut [0; 8]).unwrap();
    let ends = [client.port(), port].map(|port| format!(":{port:04X}"));
    // The timer of the client's socket, `02` for probes, and the hundredths of seconds that are left.
    let timer = || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row[1].ends_with(&ends[0]) && row[2].ends_with(&ends[1]));
        let (timer, left) = row.expect("the connection")[5].split_once(':').unwrap();
        (timer.to_owned(), u32::from_str_radix(left, 16).unwrap())
    };
    eventually("the probes are due within half a minute", || {
        let (timer, left) = timer();
        timer == "02" && left <= 3000
    });
    drop(server);
    assert!(connecting.join().unwrap());
}

fn rows_values_and_errors(server: &Peer) {
    let pool = open(server, 2);
    let connection = pool.get().unwrap();
    let row = connection
        .query_one("select $1::int + 1, $2::text || '!'", &[&41, &"grüße"])
        .unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, &str>(1)), (42, "grüße!"));
    assert!(connection.query_opt("select 1 where false", &[]).unwrap().is_none());
    assert_eq!(
        connection.query("select generate_series(1, 1000)", &[]).unwrap().len(),
        1000
    );
    connection
        .batch_execute("create table item (id int primary key); insert into item values (1), (2)")
        .unwrap();
    assert_eq!(connection.execute("update item set id = id + 10", &[]).unwrap(), 2);

    let twice = connection.execute("insert into item values (11)", &[]).unwrap_err();
    assert_eq!(twice.code().map(|code| code.code()), Some("23505"), "{twice}");
    assert!(twice.to_string().contains("duplicate key") && !twice.is_closed());
    assert!(
        std::error::Error::source(&twice).is_none(),
        "a chain would say it twice"
    );
    assert_eq!(format!("{twice:?}"), format!("{twice} (SQLSTATE 23505)"));
    assert!(format!("{twice:#?}").contains("item_pkey"), "{twice:#?}");
    let wrong = connection.query("select nonsense", &[]).unwrap_err();
    assert_eq!(wrong.code().map(|code| code.code()), Some("42703"));
    assert_eq!(
        connection.query_one("select 7", &[]).unwrap().get::<_, i32>(0),
        7,
        "it goes on"
    );
    drop(connection);

    let mut nobody = Config::new();
    nobody
        .host_path("/nowhere")
        .user("osier")
        .connect_timeout(Duration::from_secs(1));
    let refused: Error = Pool::with(nobody, 1).unwrap_err();
    assert!(
        refused.is_closed() && refused.to_string().contains("/nowhere/.s.PGSQL.5432"),
        "{refused}"
    );
    let shown = format!("{refused:?}");
    assert_eq!(
        shown,
        "cannot connect to postgres at /nowhere/.s.PGSQL.5432: No such file or directory (os error 2)"
    );
    let nonsense = format!("{:?}", Pool::connect("nonsense", 1).unwrap_err());
    assert!(
        nonsense.starts_with("postgres: invalid connection string: "),
        "{nonsense}"
    );
}

fn statements_are_prepared_once(server: &Peer) {
    let pool = open(server, 1);
    let connection = pool.get().unwrap();
    for n in 0..5 {
        connection.query_one("select $1::int * 2", &[&n]).unwrap();
    }
    let statement = connection.prepare("select $1::int * 2").unwrap();
    assert_eq!(statement.params(), [Type::INT4]);
    drop(connection);
    // The next user of the connection has them too.
    let connection = pool.get().unwrap();
    connection.query_one("select $1::int * 2", &[&1]).unwrap();
    let prepared = "select count(*) from pg_prepared_statements where statement like 'select $1::int%'";
    assert_eq!(connection.query_one(prepared, &[]).unwrap().get::<_, i64>(0), 1);
    // A table that changes makes a statement stale: one error, and then it is prepared anew.
    connection
        .batch_execute("create table grows (a int); insert into grows values (1)")
        .unwrap();
    assert_eq!(connection.query_one("select * from grows", &[]).unwrap().len(), 1);
    connection.batch_execute("alter table grows add column b int").unwrap();
    assert!(connection.query_one("select * from grows", &[]).is_err());
    assert_eq!(connection.query_one("select * from grows", &[]).unwrap().len(), 2);
}

fn transactions_commit_and_roll_back(server: &Peer) {
    let pool = open(server, 2);
    let (mut connection, other) = (pool.get().unwrap(), pool.get().unwrap());
    connection.batch_execute("create table account (n int)").unwrap();
    let count = || {
        other
            .query_one("select count(*) from account", &[])
            .unwrap()
            .get::<_, i64>(0)
    };
    let insert = "insert into account values ($1)";

    let transaction = connection.transaction().unwrap();
    transaction.execute(insert, &[&1]).unwrap();
    assert_eq!(count(), 0, "not before the end");
    transaction.commit().unwrap();
    assert_eq!(count(), 1);

    let transaction = connection.transaction().unwrap();
    transaction.execute(insert, &[&2]).unwrap();
    transaction.rollback().unwrap();
    drop(
        connection
            .transaction()
            .map(|transaction| transaction.execute(insert, &[&3]).unwrap()),
    );
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let transaction = connection.transaction().unwrap();
        transaction.execute(insert, &[&4]).unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(panics.is_err());
    assert_eq!(
        connection.query("select 1 from account", &[]).unwrap().len(),
        1,
        "the others are rolled back"
    );

    let mut transaction = connection.transaction().unwrap();
    transaction.execute(insert, &[&5]).unwrap();
    let savepoint = transaction.transaction().unwrap();
    assert!(savepoint.execute("insert into nowhere values (1)", &[]).is_err());
    savepoint.rollback().unwrap();
    transaction.execute(insert, &[&6]).unwrap();
    transaction.commit().unwrap();
    assert_eq!(count(), 3);
}

/// The server answers such a commit as any other, so nothing told that nothing was kept.
fn a_commit_tells_of_a_failure_that_was_ignored(server: &Peer) {
    let pool = open(server, 1);
    let mut connection = pool.get().unwrap();
    connection
        .batch_execute("create table kept (n int primary key)")
        .unwrap();
    let insert = |transaction: &Transaction<'_>, n: i32| transaction.execute("insert into kept values ($1)", &[&n]);
    let rows = |connection: &Connection| connection.query("select n from kept", &[]).unwrap().len();

    let transaction = connection.transaction().unwrap();
    insert(&transaction, 1).unwrap();
    assert!(insert(&transaction, 1).is_err());
    let aborted = transaction.commit().unwrap_err();
    assert_eq!(aborted.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION), "{aborted}");
    assert_eq!(rows(&connection), 0);

    // A failure that a savepoint has taken back is none, nor is that of an earlier transaction.
    let mut transaction = connection.transaction().unwrap();
    insert(&transaction, 1).unwrap();
    let savepoint = transaction.transaction().unwrap();
    assert!(insert(&savepoint, 1).is_err());
    let aborted = savepoint.commit().unwrap_err();
    assert_eq!(aborted.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION), "{aborted}");
    insert(&transaction, 2).unwrap();
    assert!(transaction.query_one("select n from kept", &[]).is_err(), "two rows");
    transaction.commit().unwrap();
    let transaction = connection.transaction().unwrap();
    insert(&transaction, 3).unwrap();
    transaction.commit().unwrap();
    assert_eq!(rows(&connection), 3);

    // A statement that is given up fails later.
    let transaction = connection.transaction().unwrap();
    insert(&transaction, 4).unwrap();
    let late = "do $$ begin perform pg_sleep(0.5); raise 'late'; end $$";
    let given_up = osier::timeout(Duration::from_millis(50), || transaction.batch_execute(late));
    assert!(given_up.is_err());
    let aborted = transaction.commit().unwrap_err();
    assert_eq!(aborted.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION), "{aborted}");
    assert_eq!(rows(&connection), 3);
}

/// The server waited for data, and ended the session at the next statement, which was somebody else's.
fn a_copy_leaves_no_connection_out_of_step(server: &Peer) {
    let (pool, pipeline) = (open(server, 1), Pipeline::connect(&url(server), 1).unwrap());
    let connection = pool.get().unwrap();
    connection.batch_execute("create table copied (n int)").unwrap();
    for sql in [
        "copy copied from stdin",
        "\n-- a comment\n; /* and /* one */ more */COPY (SELECT 1) TO STDOUT",
        "Copy copied(n)from Stdin with (format csv)",
    ] {
        for refused in [
            connection.query(sql, &[]).map(drop),
            connection.execute(sql, &[]).map(drop),
            pipeline.execute(sql, &[]).map(drop),
        ] {
            let refused = refused.unwrap_err();
            assert!(
                refused.to_string().contains("copy_in") && !refused.is_closed(),
                "{refused}"
            );
        }
    }
    // A table, a file of the server.
    for sql in [
        "select 1 as copy",
        "copy (select 1 as \"from stdin\") to '/dev/null'",
        "copy copied from '/dev/null'",
    ] {
        connection.execute(sql, &[]).unwrap();
        pipeline.execute(sql, &[]).unwrap();
    }
    drop(connection);
    // One that is not seen ends its connection.
    type Way = fn(&Connection) -> Result<(), Error>;
    let hidden: [Way; 2] = [
        |connection| connection.batch_execute("select 1; copy copied from stdin"),
        |connection| connection.query("copy copied from /* hidden */ stdin", &[]).map(drop),
    ];
    for way in hidden {
        let connection = pool.get().unwrap();
        let before = pid(&connection);
        let error = way(&connection).unwrap_err();
        assert!(error.is_closed(), "{error:?}");
        drop(connection);
        let connection = pool.get().unwrap();
        assert_ne!(pid(&connection), before);
        let there = "select count(*) from pg_stat_activity where pid = $1";
        eventually("its backend ends", || {
            connection.query_one(there, &[&before]).unwrap().get::<_, i64>(0) == 0
        });
    }
    assert!(
        pipeline
            .query("copy copied from /* hidden */ stdin", &[])
            .unwrap_err()
            .is_closed()
    );
    assert_eq!(pipeline.query_one("select 7", &[]).unwrap().get::<_, i32>(0), 7);
}

/// The drop panicked there: it started a fiber.
fn a_connection_may_end_on_a_plain_thread(server: &Peer) {
    let pool = open(server, 1);
    for _ in 0..2 {
        let connection = pool.get().unwrap();
        let thread = std::thread::spawn(move || {
            let ended = connection.query("select pg_terminate_backend(pg_backend_pid())", &[]);
            assert!(ended.unwrap_err().is_closed());
        });
        osier::unblock(|| thread.join().unwrap());
    }
    assert_eq!(
        pool.get().unwrap().query_one("select 7", &[]).unwrap().get::<_, i32>(0),
        7
    );
}

fn fibers_of_one_thread_share_the_connections(server: &Peer) {
    let pool = open(server, 4);
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let start = Instant::now();
    let fibers: Vec<_> = (0..20)
        .map(|n| {
            let (pool, inside, most) = (pool.clone(), Arc::clone(&inside), Arc::clone(&most));
            osier::spawn(move || {
                let connection = pool.get().unwrap();
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let row = connection
                    .query_one("select $1::int from pg_sleep(0.05)", &[&n])
                    .unwrap();
                inside.fetch_sub(1, Ordering::SeqCst);
                (row.get::<_, i32>(0), pid(&connection))
            })
        })
        .collect();
    let mut backends = Vec::new();
    for (n, fiber) in fibers.into_iter().enumerate() {
        let (row, backend) = fiber.join().unwrap();
        assert_eq!(usize::try_from(row), Ok(n));
        backends.push(backend);
    }
    backends.sort_unstable();
    backends.dedup();
    assert_eq!((most.load(Ordering::SeqCst), backends.len(), pool.idle()), (4, 4, 4));
    // One after the other they take a second.
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
}

fn a_dead_backend_is_replaced(server: &Peer) {
    let (pool, admin) = (open(server, 2), open(server, 1));
    let admin = admin.get().unwrap();
    let kill = |victim: i32| {
        admin.query_one("select pg_terminate_backend($1)", &[&victim]).unwrap();
    };
    // While it is idle.
    let first = pid(&pool.get().unwrap());
    kill(first);
    eventually("the pool sees it", || pool.idle() == 0);
    let connection = pool.get().unwrap();
    let second = pid(&connection);
    assert_ne!(first, second);
    // While it is in use: the call fails, and the next connection works.
    osier::scope(|scope| {
        let asks = scope.spawn_local(|| connection.query("select pg_sleep(60)", &[]).unwrap_err());
        let running =
            "select count(*) from pg_stat_activity where pid = $1 and query like '%pg_sleep(60)%' and state = 'active'";
        eventually("the query runs", || {
            admin.query_one(running, &[&second]).unwrap().get::<_, i64>(0) == 1
        });
        kill(second);
        let error = asks.join().unwrap();
        assert!(error.is_closed(), "{error}");
    });
    drop(connection);
    let connection = pool.get().unwrap();
    assert_eq!(connection.query_one("select 1", &[]).unwrap().get::<_, i32>(0), 1);
}

fn a_query_that_is_given_up_is_cancelled(server: &Peer) {
    const SLEEPS: &str = "select pg_sleep(60)";
    let ways: [fn(&Connection); 3] = [
        |connection| drop(connection.query(SLEEPS, &[])),
        |connection| drop(connection.call(|client| client.batch_execute(SLEEPS))),
        // The end of one call says nothing about the other.
        |connection| {
            osier::scope(|s| {
                s.spawn_local(|| drop(connection.query(SLEEPS, &[])));
                s.spawn_local(|| drop(connection.query("select 1", &[])));
            });
        },
    ];
    let (pool, admin) = (open(server, 1), open(server, 1));
    let admin = admin.get().unwrap();
    for (number, way) in ways.into_iter().enumerate() {
        let connection = pool.get().unwrap();
        let backend = pid(&connection);
        let given_up = osier::timeout(Duration::from_millis(50), move || way(&connection));
        assert!(given_up.is_err());
        // The only permit is free again, and the connection is another one.
        let next = pool.get().unwrap();
        assert_ne!(pid(&next), backend, "{number}");
        let there = "select count(*) from pg_stat_activity where pid = $1";
        eventually("its backend ends", || {
            admin.query_one(there, &[&backend]).unwrap().get::<_, i64>(0) == 0
        });
    }
}

fn fibers_use_a_pipeline_at_once(server: &Peer) {
    let db = Pipeline::connect(&url(server), 2).unwrap();
    let backends: Vec<(i32, i32)> = osier::scope(|scope| {
        let fibers: Vec<_> = (0..50)
            .map(|n| {
                let db = db.clone();
                scope.spawn_local(move || match n % 10 {
                    3 => {
                        let error = db.query("select 1 / $1::int", &[&0]).unwrap_err();
                        assert_eq!(error.code().map(|code| code.code()), Some("22012"), "{error}");
                        None
                    }
                    7 => {
                        // It is given up in the middle, and those behind it get their own answers.
                        let given_up =
                            osier::timeout(Duration::from_millis(1), || db.query("select pg_sleep(0.05)", &[]));
                        assert!(given_up.is_err());
                        None
                    }
                    _ => {
                        let row = db.query_one("select $1::int * 2, pg_backend_pid()", &[&n]).unwrap();
                        assert_eq!(row.get::<_, i32>(0), n * 2);
                        Some((n, row.get(1)))
                    }
                })
            })
            .collect();
        fibers.into_iter().filter_map(|fiber| fiber.join().unwrap()).collect()
    });
    assert_eq!(backends.len(), 40);
    let pids: std::collections::BTreeSet<i32> = backends.iter().map(|(_, pid)| *pid).collect();
    assert_eq!(pids.len(), 2, "one worker uses both connections");
    assert!(db.query_opt("select 1 where false", &[]).unwrap().is_none());
    assert!(db.query_one("select 1 where false", &[]).is_err());
    assert_eq!(
        db.execute("create table if not exists pipelined (id int)", &[])
            .unwrap(),
        0
    );
    assert_eq!(db.execute("insert into pipelined values (1), (2)", &[]).unwrap(), 2);
    assert!(Pipeline::connect("nonsense", 1).is_err());
}

fn a_dead_connection_of_a_pipeline_is_replaced(server: &Peer) {
    let (db, admin) = (Pipeline::connect(&url(server), 1).unwrap(), open(server, 1));
    let pid = || {
        db.query_one("select pg_backend_pid()", &[])
            .map(|row| row.get::<_, i32>(0))
    };
    let first = pid().unwrap();
    let admin = admin.get().unwrap();
    admin.query("select pg_terminate_backend($1)", &[&first]).unwrap();
    eventually("there is another connection", || pid().is_ok_and(|next| next != first));
}
