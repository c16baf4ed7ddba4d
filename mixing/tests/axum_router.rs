//! axum's router, served by hyper on Osier's executor; ureq on fibers sends the requests.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_lite::{StreamExt, stream};
use hyper::server::conn::http1;
use hyper_util::service::TowerToHyperService;
use osier_mixing::{listen, pattern, run};
use osier_ureq::{agent, ureq};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Page {
    from: u32,
    count: u32,
}

#[derive(Deserialize, Serialize, PartialEq, Debug)]
struct Point {
    x: i32,
    y: i32,
}

type Visits = Arc<AtomicU32>;

fn router() -> Router {
    Router::new()
        .route(
            "/user/{name}",
            get(|Path(name): Path<String>| async move { format!("user {name}") }),
        )
        .route(
            "/page",
            get(|Query(page): Query<Page>| async move {
                let numbers: Vec<String> = (page.from..page.from + page.count).map(|n| n.to_string()).collect();
                numbers.join(" ")
            }),
        )
        .route(
            "/mirror",
            post(|Json(Point { x, y }): Json<Point>| async move { Json(Point { x: y, y: x }) }),
        )
        .route(
            "/visits",
            get(|State(visits): State<Visits>| async move { (visits.fetch_add(1, Ordering::Relaxed) + 1).to_string() }),
        )
        .route("/stream", get(ticking))
        .route(
            "/length",
            // Not buffered: as it comes.
            post(|body: axum::body::Body| async move {
                let lengths = body
                    .into_data_stream()
                    .map(|piece| piece.map_or(0, |piece| piece.len()));
                lengths.fold(0, |sum, length| sum + length).await.to_string()
            }),
        )
        .route(
            "/blocking",
            // Plain blocking code has a fiber; the handler awaits it.
            get(|| async {
                let work = osier::spawn(|| {
                    osier::yield_now();
                    "done"
                });
                work.await.map_err(|_panicked| StatusCode::INTERNAL_SERVER_ERROR)
            }),
        )
        .with_state(Visits::default())
}

async fn ticking() -> impl IntoResponse {
    let ticks = stream::unfold(0, |n| async move {
        osier::time::Sleep::new(Duration::from_millis(1)).await;
        (n < 20).then(|| (Ok::<_, std::convert::Infallible>(Bytes::from(format!("{n}\n"))), n + 1))
    });
    axum::body::Body::from_stream(ticks)
}

fn serve(router: Router) -> SocketAddr {
    let (listener, address) = listen();
    osier::spawn_future(async move {
        let mut incoming = listener.incoming_async();
        while let Some(Ok(stream)) = incoming.next().await {
            let service = TowerToHyperService::new(router.clone());
            osier::spawn_future(http1::Builder::new().serve_connection(stream.compat(), service));
        }
    });
    address
}

#[test]
fn extractors_see_path_query_and_state() {
    run(|| {
        let address = serve(router());
        let agent = agent();
        let get = |path: &str| {
            let mut response = agent.get(format!("http://{address}{path}")).call().unwrap();
            response.body_mut().read_to_string().unwrap()
        };
        assert_eq!(get("/user/ada"), "user ada");
        assert_eq!(get("/page?from=3&count=4"), "3 4 5 6");
        assert_eq!((get("/visits"), get("/visits")), ("1".into(), "2".into()));
        assert_eq!(get("/blocking"), "done");
        let refused = agent.get(format!("http://{address}/page?from=three")).call();
        assert!(matches!(refused, Err(ureq::Error::StatusCode(400))), "{refused:?}");
    });
}

#[test]
fn json_comes_and_goes() {
    run(|| {
        let address = serve(router());
        let agent = agent();
        let post = |json: &str| {
            let request = agent.post(format!("http://{address}/mirror"));
            request.header("content-type", "application/json").send(json)
        };
        let mut response = post(r#"{"x": 1, "y": -2}"#).unwrap();
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.body_mut().read_to_string().unwrap(), r#"{"x":-2,"y":1}"#);
        let refused = post(r#"{"x": "one", "y": 2}"#);
        assert!(matches!(refused, Err(ureq::Error::StatusCode(422))), "{refused:?}");
    });
}

#[test]
fn bodies_stream_in_and_out() {
    run(|| {
        let address = serve(router());
        let agent = agent();
        let response = agent.get(format!("http://{address}/stream")).call().unwrap();
        assert_eq!(response.headers()["transfer-encoding"], "chunked");
        let mut text = String::new();
        response.into_body().into_reader().read_to_string(&mut text).unwrap();
        let numbers: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        assert_eq!(text.lines().collect::<Vec<_>>(), numbers);

        let mut whole = &pattern(3 << 20)[..];
        let body = ureq::SendBody::from_reader(&mut whole);
        let mut response = agent.post(format!("http://{address}/length")).send(body).unwrap();
        assert_eq!(response.body_mut().read_to_string().unwrap(), (3 << 20).to_string());
    });
}

#[test]
fn twenty_fibers_ask_at_once() {
    run(|| {
        let address = serve(router());
        let clients: Vec<_> = (0..20)
            .map(|client| {
                osier::spawn(move || {
                    let agent = agent();
                    for n in 0..10 {
                        let mut response = agent.get(format!("http://{address}/user/{client}.{n}")).call().unwrap();
                        let body = response.body_mut().read_to_string().unwrap();
                        assert_eq!(body, format!("user {client}.{n}"));
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
}
