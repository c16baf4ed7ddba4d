//! PostgreSQL: the asynchronous client over Osier's stream, without tokio's runtime; and the synchronous client, which brings its own runtime.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_lite::StreamExt;
use osier::net::UnixStream;
use osier_mixing::peer::Peer;
use osier_mixing::postgres::{Row, Session};
use osier_mixing::{run, run_on};
use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage, error::SqlState};

/// One server for the tests that run at once: making a cluster takes longer than they do.
fn server() -> Option<Arc<Peer>> {
    static SERVER: Mutex<Weak<Peer>> = Mutex::new(Weak::new());
    let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    let server = shared.upgrade().map(Ok);
    let server = server.unwrap_or_else(|| Peer::postgres().map(Arc::new));
    let server = server.map_err(|why| println!("skipped: {why}")).ok()?;
    *shared = Arc::downgrade(&server);
    Some(server)
}

fn config() -> Config {
    let mut config = Config::new();
    config.user("osier").dbname("postgres");
    config
}

/// Connects over a stream of ours; a task drives the connection.
async fn connect(socket: PathBuf) -> Result<Client, Error> {
    let stream = UnixStream::connect_async(socket).await.expect("it listens");
    let (client, connection) = config().connect_raw(stream.compat(), NoTls).await?;
    osier::spawn_future(connection);
    Ok(client)
}

#[test]
fn the_asynchronous_client_runs_on_our_streams_and_tasks() {
    let Some(server) = server() else { return };
    run(|| {
        let socket = server.socket().to_path_buf();
        osier::block_on(async {
            let mut client = connect(socket.clone()).await?;
            client.batch_execute("create table points (x int4, y text)").await?;
            let insert = client.prepare("insert into points values ($1, $2)").await?;
            let transaction = client.transaction().await?;
            for x in 0..100 {
                transaction.execute(&insert, &[&x, &format!("y {x}")]).await?;
            }
            transaction.commit().await?;
            // Given up, and so rolled back.
            client.transaction().await?.execute(&insert, &[&1000, &"never"]).await?;

            let rows = client
                .query_raw("select x, y from points where x >= $1 order by x", [&50_i32])
                .await?;
            let rows: Vec<_> = futures_util::TryStreamExt::try_collect(rows).await?;
            assert_eq!(rows.len(), 50);
            assert_eq!((rows[0].get(0), rows[49].get(1)), (50_i32, "y 99"));

            let wrong = client.query("select nothing from nowhere", &[]).await.unwrap_err();
            assert_eq!(wrong.code(), Some(&SqlState::UNDEFINED_TABLE));

            // Pipelined: ten questions are on their way before the first answer.
            let double = async |n: i64| client.query_one("select $1::int8 * 2", &[&n]).await;
            let sums = (0..10).map(double);
            for (n, row) in futures_util::future::join_all(sums).await.into_iter().enumerate() {
                assert_eq!(row?.get::<_, i64>(0), 2 * n as i64);
            }
            Ok::<_, Error>(())
        })
        .unwrap();

        let fibers: Vec<_> = (0..10)
            .map(|n| {
                let socket = socket.clone();
                osier::spawn(move || {
                    let client = osier::block_on(connect(socket))?;
                    let row = osier::block_on(client.query_one("select pg_sleep(0.02)::text, $1::int4", &[&n]))?;
                    Ok::<i32, Error>(row.get(1))
                })
            })
            .collect();
        for (n, fiber) in fibers.into_iter().enumerate() {
            assert_eq!(fiber.join().unwrap().unwrap(), n as i32);
        }
    });
}

#[test]
fn notifications_come_while_a_connection_is_idle() {
    let Some(server) = server() else { return };
    run(|| {
        osier::block_on(async {
            let stream = UnixStream::connect_async(server.socket()).await.expect("it listens");
            let (listening, mut connection) = config().connect_raw(stream.compat(), NoTls).await?;
            let (sender, mut receiver) = osier::sync::mpsc::channel(1);
            osier::spawn_future(async move {
                let mut messages = futures_lite::stream::poll_fn(move |cx| connection.poll_message(cx));
                while let Some(Ok(message)) = messages.next().await {
                    if let tokio_postgres::AsyncMessage::Notification(notification) = message {
                        sender
                            .send_async(notification.payload().to_owned())
                            .await
                            .expect("the test listens");
                    }
                }
            });
            listening.batch_execute("listen news").await?;
            let speaking = connect(server.socket().to_path_buf()).await?;
            speaking.batch_execute("notify news, 'it works'").await?;
            assert_eq!(receiver.recv_async().await.as_deref(), Ok("it works"));
            Ok::<_, Error>(())
        })
        .unwrap();
    });
}

#[test]
fn a_synchronous_client_over_our_streams_suspends_the_fiber() {
    let Some(server) = server() else { return };
    // One worker: were it blocked, who waits for a lock would wait for ever.
    run_on(1, || {
        let connect = || Session::start(UnixStream::connect(server.socket())?, "osier", "postgres");
        let mut session = connect().unwrap();
        assert_eq!(
            session.query("create table t (x int4, y text)").unwrap(),
            Vec::<Row>::new()
        );
        session.query("insert into t values (1, 'one'), (2, null)").unwrap();
        let rows = session.query("select x, y from t order by x; select 'more'").unwrap();
        let text = |field: &str| Some(field.to_owned());
        let expected = vec![vec![text("1"), text("one")], vec![text("2"), None], vec![text("more")]];
        assert_eq!(rows, expected);
        let wrong = session.query("select nothing from nowhere").unwrap_err();
        assert!(wrong.to_string().contains("nowhere"), "{wrong}");
        assert_eq!(
            session.query("select repeat('long', 50000)").unwrap()[0][0],
            Some("long".repeat(50_000))
        );

        // The first waits for a lock that the second one has and gives back.
        session.query("begin; lock table t").unwrap();
        let waiter = osier::scope(|scope| {
            let waiter = scope.spawn(|| connect()?.query("select count(*) from t"));
            osier::sleep(Duration::from_millis(20)); // an answer too early has its chance
            assert!(!waiter.is_finished());
            session.query("commit").unwrap();
            waiter.join().unwrap()
        });
        assert_eq!(waiter.unwrap(), [[text("2")]]);

        let stranger = UnixStream::connect(server.socket()).unwrap();
        let refused = Session::start(stranger, "nobody-knows", "postgres").err().unwrap();
        assert!(refused.to_string().contains("nobody-knows"), "{refused}");
    });
}

/// Connects with the synchronous client, on its own sockets.
fn synchronous(server: &Peer) -> impl Fn() -> Result<postgres::Client, Error> + Send + 'static {
    let mut config = postgres::Config::new();
    config.host_path(server.directory()).user("osier").dbname("postgres");
    move || config.connect(NoTls)
}

#[test]
fn the_synchronous_client_blocks_off_the_worker() {
    let Some(server) = server() else { return };
    // One worker: were it blocked, the other fiber would not get on.
    run_on(1, || {
        let connect = synchronous(&server);
        let asker = osier::spawn(move || {
            osier::unblock(move || {
                let mut client = connect()?;
                let rows = client.simple_query("select pg_sleep(0.2)::text, 7")?;
                let seven = rows.iter().find_map(|message| match message {
                    SimpleQueryMessage::Row(row) => row.get(1).map(str::to_owned),
                    _ => None,
                });
                Ok::<_, Error>(seven)
            })
        });
        let mut turns = 0;
        while !asker.is_finished() {
            osier::sleep(Duration::from_millis(5)); // the turns that are counted
            turns += 1;
        }
        assert_eq!(asker.join().unwrap().unwrap().as_deref(), Some("7"));
        assert!(turns > 2, "the worker went on while the query took its time: {turns}");
    });
}

#[test]
fn called_on_the_worker_the_synchronous_client_stops_it() {
    let Some(server) = server() else { return };
    // Not what one wants; but it does come back, on a stack of ours, and what it enters does not stay behind.
    run_on(1, || {
        let turns = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&turns);
        osier::spawn(move || {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                osier::yield_now();
            }
        });
        osier::yield_now();
        let before = turns.load(Ordering::Relaxed);
        assert!(before > 0);
        let mut client = synchronous(&server)().unwrap();
        let row = client.query_one("select pg_sleep(0.05)::text, 6 * 7", &[]).unwrap();
        assert_eq!(row.get::<_, i32>(1), 42);
        assert_eq!(turns.load(Ordering::Relaxed), before, "nobody else had a turn");
        assert!(tokio::runtime::Handle::try_current().is_err());
    });
}
