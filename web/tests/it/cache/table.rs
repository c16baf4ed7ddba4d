//! The demands of RFC 9111 and the settings of an operator, as tables of responses, requests and what clients get.

use super::{World, answer, on_clock, s, send};
use osier_web::wrap::cache::{Options, Rules};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A row of the table: what the backend answers, and what the client asks and gets. A step is the time since the step before, the
/// request, the status, a part of `Cache-Status`, and the body.
type Row<'r> = (
    &'r str,
    &'r [(u16, &'r str, &'r str)],
    &'r [(u64, &'r str, u16, &'r str, &'r str)],
);

fn play(options: &Options, (name, responses, steps): Row<'_>) {
    let script: VecDeque<_> = responses
        .iter()
        .map(|(status, fields, body)| (*status, (*fields).to_owned(), (*body).to_owned()))
        .collect();
    let script = Arc::new(Mutex::new(script));
    let theirs = script.clone();
    let world = World::new(options.clone(), move |_, _| {
        let next = theirs.lock().unwrap().pop_front();
        let (status, fields, body) = next.unwrap_or((500, String::new(), "asked too often".to_owned()));
        answer(status, &fields, &body)
    });
    for (index, (after, request, status, note, body)) in steps.iter().enumerate() {
        osier::sleep(s(*after));
        let reply = send(&world.client, request);
        let said = reply.header("cache-status").unwrap_or_default();
        let got = (reply.status().as_u16(), reply.text());
        assert_eq!(got, (*status, *body), "{name}: step {index}, {said}");
        assert!(said.contains(note), "{name}: step {index} says {said:?}, not {note:?}");
        // A fetch behind a stale response has its turn.
        osier::sleep(Duration::from_millis(1));
    }
    assert!(
        script.lock().unwrap().is_empty(),
        "{name}: the backend was asked too seldom"
    );
}

#[test]
fn the_demands_of_rfc_9111() {
    let fresh = "cache-control: max-age=60";
    let tagged = "cache-control: max-age=60\netag: \"1\"";
    let listing = [32, 33].map(|names| format!("GET /a\nconnection: {}", vec!["x"; names].join(",")));
    let [listing_most, listing_too_many] = listing.each_ref().map(|request| &**request);
    let rows: &[Row<'_>] = &[
        (
            "4: a fresh response is reused",
            &[(200, fresh, "a")],
            &[(0, "", 200, "miss; stored", "a"), (59, "", 200, "hit; ttl=1", "a")],
        ),
        (
            "4: a stale one is not",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (60, "", 200, "fwd=stale; stored", "b"),
                (0, "", 200, "hit", "b"),
            ],
        ),
        (
            "2: the query is part of the key",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "GET /a?1", 200, "miss", "a"),
                (0, "GET /a?2", 200, "miss", "b"),
                (0, "GET /a?1", 200, "hit", "a"),
            ],
        ),
        (
            "2: so is the host",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "GET /a\nhost: x", 200, "miss", "a"),
                (0, "GET /a\nhost: y", 200, "miss", "b"),
                (0, "GET /a\nHost: X", 200, "hit", "a"),
            ],
        ),
        (
            "3: no-store",
            &[(200, "cache-control: no-store, max-age=60", "a"), (200, "", "b")],
            &[(0, "", 200, "fwd=miss", "a"), (0, "", 200, "fwd=miss", "b")],
        ),
        (
            "3: private",
            &[(200, "cache-control: private, max-age=60", "a"), (200, "", "b")],
            &[(0, "", 200, "fwd=miss", "a"), (0, "", 200, "fwd=miss", "b")],
        ),
        (
            "3: nothing says how long",
            &[(200, "", "a"), (200, "", "b")],
            &[(0, "", 200, "fwd=miss", "a"), (0, "", 200, "fwd=miss", "b")],
        ),
        (
            "3.5: credentials",
            &[(200, fresh, "a"), (200, fresh, "b"), (200, fresh, "c")],
            &[
                (0, "GET /a\nauthorization: x", 200, "miss", "a"),
                (0, "", 200, "miss; stored", "b"),
                (0, "GET /b\nauthorization: x", 200, "miss", "c"),
            ],
        ),
        (
            "3.5: public",
            &[(200, "cache-control: public, max-age=60", "a")],
            &[
                (0, "GET /a\nauthorization: x", 200, "miss; stored", "a"),
                (0, "", 200, "hit", "a"),
                (0, "GET /a\nauthorization: y", 200, "hit", "a"),
            ],
        ),
        (
            "4.1: Vary",
            &[
                (200, "cache-control: max-age=60\nvary: accept-language", "de"),
                (200, "cache-control: max-age=60\nvary: accept-language", "fr"),
            ],
            &[
                (0, "GET /a\naccept-language: de", 200, "miss", "de"),
                (0, "GET /a\naccept-language: fr", 200, "miss", "fr"),
                (0, "GET /a\naccept-language: de", 200, "hit", "de"),
                (0, "GET /a\naccept-language: fr", 200, "hit", "fr"),
            ],
        ),
        (
            "4.1: a field that is absent",
            &[
                (200, "cache-control: max-age=60\nvary: x-a", "none"),
                (200, "cache-control: max-age=60\nvary: x-a", "empty"),
            ],
            &[
                (0, "", 200, "miss", "none"),
                (0, "GET /a\nx-a: ", 200, "miss", "empty"),
                (0, "", 200, "hit", "none"),
            ],
        ),
        (
            "4.1: Vary *",
            &[(200, "cache-control: max-age=60\nvary: *", "a"), (200, "", "b")],
            &[(0, "", 200, "miss", "a"), (0, "", 200, "miss", "b")],
        ),
        (
            "4.2.1: s-maxage before max-age",
            &[(200, "cache-control: max-age=60, s-maxage=10", "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (9, "", 200, "hit", "a"),
                (1, "", 200, "stale", "b"),
            ],
        ),
        (
            "4.2.1: max-age before Expires",
            &[(200, "cache-control: max-age=60\nexpires: 0", "a")],
            &[(0, "", 200, "miss", "a"), (9, "", 200, "hit", "a")],
        ),
        (
            "4.2.3: an Age counts",
            &[(200, "cache-control: max-age=60\nage: 50", "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (9, "", 200, "ttl=1", "a"),
                (1, "", 200, "stale", "b"),
            ],
        ),
        (
            "4.2.4: must-revalidate",
            &[
                (
                    200,
                    "cache-control: max-age=60, must-revalidate, stale-if-error=600",
                    "a",
                ),
                (500, "", "b"),
            ],
            &[
                (0, "", 200, "miss", "a"),
                (60, "GET /a\ncache-control: max-stale", 500, "stale", "b"),
            ],
        ),
        (
            "4.3.3: a 304 makes it fresh",
            &[(200, tagged, "a"), (304, tagged, "")],
            &[
                (0, "", 200, "miss", "a"),
                (60, "", 200, "fwd=stale; fwd-status=304; stored", "a"),
                (59, "", 200, "hit", "a"),
            ],
        ),
        (
            "4.3.3: a full response replaces it",
            &[(200, tagged, "a"), (200, "cache-control: max-age=60\netag: \"2\"", "b")],
            &[
                (0, "", 200, "miss", "a"),
                (60, "", 200, "stale; stored", "b"),
                (0, "", 200, "hit", "b"),
            ],
        ),
        (
            "4.3.4: a 304 for another tag",
            &[(200, tagged, "a"), (304, "etag: \"2\"", ""), (200, fresh, "b")],
            &[(0, "", 200, "miss", "a"), (60, "", 200, "stale; stored", "b")],
        ),
        (
            "4.4: unsafe methods invalidate",
            &[(200, fresh, "a"), (204, "", ""), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "DELETE /a", 204, "fwd=method", ""),
                (0, "", 200, "miss", "b"),
            ],
        ),
        (
            "4.4: but not if they fail",
            &[(200, fresh, "a"), (400, "", "x")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "POST /a", 400, "method", "x"),
                (0, "", 200, "hit", "a"),
            ],
        ),
        (
            "4.4: nor do safe ones",
            &[(200, fresh, "a"), (200, "", "x")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "OPTIONS /a", 200, "method", "x"),
                (0, "", 200, "hit", "a"),
            ],
        ),
        (
            "4.4: Location on the same host",
            &[(200, fresh, "a"), (201, "location: /a", ""), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "POST /new", 201, "method", ""),
                (0, "", 200, "miss", "b"),
            ],
        ),
        (
            "4.4: Content-Location on another",
            &[(200, fresh, "a"), (201, "content-location: http://other/a", "")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "POST /new", 201, "method", ""),
                (0, "", 200, "hit", "a"),
            ],
        ),
        (
            "5.2.1.1: max-age of a request",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (10, "GET /a\ncache-control: max-age=10", 200, "hit", "a"),
                (1, "GET /a\ncache-control: max-age=10", 200, "fwd=request", "b"),
            ],
        ),
        (
            "5.2.1.2: max-stale",
            &[(200, fresh, "a")],
            &[
                (0, "", 200, "miss", "a"),
                (70, "GET /a\ncache-control: max-stale=10", 200, "hit; ttl=-10", "a"),
            ],
        ),
        (
            "5.2.1.3: min-fresh",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (51, "GET /a\ncache-control: min-fresh=10", 200, "fwd=request", "b"),
            ],
        ),
        (
            "5.2.1.4: no-cache",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\ncache-control: no-cache", 200, "fwd=request; stored", "b"),
                (0, "", 200, "hit", "b"),
            ],
        ),
        (
            "5.2.1.5: no-store",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "GET /a\ncache-control: no-store", 200, "fwd=request", "a"),
                (0, "", 200, "miss", "b"),
            ],
        ),
        (
            "5.2.1.7: only-if-cached",
            &[(200, fresh, "a")],
            &[
                (
                    0,
                    "GET /a\ncache-control: only-if-cached",
                    504,
                    "fwd=miss",
                    "504 Gateway Timeout\n",
                ),
                (0, "", 200, "miss", "a"),
                (0, "GET /a\ncache-control: only-if-cached", 200, "hit", "a"),
            ],
        ),
        (
            "5.2.2.4: no-cache is validated each time",
            &[
                (200, "cache-control: no-cache\netag: \"1\"", "a"),
                (304, "etag: \"1\"", ""),
                (200, "cache-control: no-cache\netag: \"2\"", "b"),
            ],
            &[
                (0, "", 200, "miss", "a"),
                (0, "", 200, "fwd-status=304", "a"),
                (0, "", 200, "fwd=", "b"),
            ],
        ),
        (
            "HEAD from GET",
            &[(200, fresh, "a")],
            &[(0, "", 200, "miss", "a"), (0, "HEAD /a", 200, "hit", "")],
        ),
        (
            "HEAD alone is passed on",
            &[(200, fresh, ""), (200, fresh, "a")],
            &[(0, "HEAD /a", 200, "miss", ""), (0, "", 200, "miss; stored", "a")],
        ),
        (
            "4.3.2: If-None-Match",
            &[(200, tagged, "a")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\nif-none-match: \"1\"", 304, "hit", ""),
                (0, "GET /a\nif-none-match: W/\"1\", \"x\"", 304, "hit", ""),
                (0, "GET /a\nif-none-match: \"2\"", 200, "hit", "a"),
            ],
        ),
        (
            "4.3.2: the condition of a miss is ours to evaluate",
            &[(200, tagged, "a")],
            &[
                (0, "GET /a\nif-none-match: \"1\"", 304, "miss; stored", ""),
                (0, "", 200, "hit", "a"),
            ],
        ),
        (
            "4.3.2: If-Modified-Since",
            &[(
                200,
                "cache-control: max-age=60\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT",
                "a",
            )],
            &[
                (0, "", 200, "miss", "a"),
                (
                    0,
                    "GET /a\nif-modified-since: Sun, 06 Nov 1994 08:49:37 GMT",
                    304,
                    "hit",
                    "",
                ),
                (
                    0,
                    "GET /a\nif-modified-since: Sun, 06 Nov 1994 08:49:36 GMT",
                    200,
                    "hit",
                    "a",
                ),
            ],
        ),
        (
            "4.3.2: If-Match is the backend's",
            &[(200, tagged, "a"), (412, "", "x")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\nif-match: \"2\"", 412, "bypass", "x"),
            ],
        ),
        (
            "a range of a stored response",
            &[(200, tagged, "abcdef")],
            &[
                (0, "", 200, "miss", "abcdef"),
                (0, "GET /a\nrange: bytes=1-2", 206, "hit", "bc"),
                (0, "GET /a\nrange: bytes=9-", 416, "hit", "416 Range Not Satisfiable\n"),
                (0, "GET /a\nrange: bytes=1-2\nif-range: \"1\"", 206, "hit", "bc"),
                (0, "GET /a\nrange: bytes=1-2\nif-range: \"2\"", 200, "hit", "abcdef"),
                (0, "GET /a\nrange: bytes=0-0,5-5", 206, "hit", "abcdef"),
            ],
        ),
        (
            "3.3: a part is not stored",
            &[
                (206, "cache-control: max-age=60\ncontent-range: bytes 0-0/6", "a"),
                (200, fresh, "abcdef"),
            ],
            &[
                (0, "GET /a\nrange: bytes=0-0", 206, "miss", "a"),
                (0, "", 200, "miss", "abcdef"),
            ],
        ),
        (
            "7.3: Set-Cookie",
            &[(200, "cache-control: max-age=60\nset-cookie: a=b", "a"), (200, "", "b")],
            &[(0, "", 200, "miss", "a"), (0, "", 200, "miss", "b")],
        ),
        (
            "RFC 5861: stale-while-revalidate",
            &[
                (200, "cache-control: max-age=60, stale-while-revalidate=10", "a"),
                (200, fresh, "b"),
            ],
            &[
                (0, "", 200, "miss", "a"),
                (65, "", 200, "hit; ttl=-5", "a"),
                (0, "", 200, "hit; ttl=6", "b"),
            ],
        ),
        (
            "RFC 5861: stale-if-error",
            &[
                (200, "cache-control: max-age=60, stale-if-error=600", "a"),
                (503, "", "x"),
                (200, fresh, "b"),
            ],
            &[
                (0, "", 200, "miss", "a"),
                (70, "", 200, "fwd=stale; fwd-status=503", "a"),
                (0, "", 200, "hit; ttl=-10", "a"),
                (2, "", 200, "stale; stored", "b"),
            ],
        ),
        (
            "RFC 5861: for HEAD and ranges, too",
            &[
                (200, "cache-control: max-age=60, stale-if-error=600", "abcdef"),
                (500, "", "x"),
                (500, "", "x"),
            ],
            &[
                (0, "", 200, "miss", "abcdef"),
                (70, "HEAD /a", 200, "fwd=stale; fwd-status=500", ""),
                (0, "GET /a\nrange: bytes=1-2", 206, "fwd=stale; fwd-status=500", "bc"),
            ],
        ),
        (
            "RFC 5861: and its end",
            &[
                (200, "cache-control: max-age=60, stale-if-error=60", "a"),
                (503, "", "x"),
            ],
            &[(0, "", 200, "miss", "a"), (120, "", 503, "stale", "x")],
        ),
        (
            "a client cannot drive out what is stored",
            &[
                (200, fresh, "a"),
                (200, "cache-control: private", "mine"),
                (400, "", "bad"),
            ],
            &[
                (0, "", 200, "miss", "a"),
                (
                    0,
                    "GET /a\ncache-control: no-cache\ncookie: a=b",
                    200,
                    "fwd=request",
                    "mine",
                ),
                (0, "", 200, "hit", "a"),
                (
                    0,
                    "GET /a\ncache-control: no-cache\nx-odd: 1",
                    400,
                    "fwd=request",
                    "bad",
                ),
                (0, "", 200, "hit", "a"),
            ],
        ),
        (
            "nor by credentials that a 304 is for",
            &[
                (200, "cache-control: public, max-age=60\netag: \"1\"", "a"),
                (304, tagged, ""),
                (200, tagged, "mine"),
                (304, tagged, ""),
                (200, tagged, "mine"),
                (304, tagged, ""),
            ],
            &[
                (0, "", 200, "miss; stored", "a"),
                (
                    0,
                    "GET /a\ncache-control: no-cache\nauthorization: x",
                    200,
                    "fwd=request",
                    "mine",
                ),
                (0, "", 200, "hit", "a"),
                (60, "GET /a\nauthorization: x", 200, "fwd=stale", "mine"),
                (0, "", 200, "fwd=stale; fwd-status=304; stored", "a"),
            ],
        ),
        (
            "nor by a cookie that a response sets for it alone",
            &[
                (200, "cache-control: max-age=60, stale-if-error=600\netag: \"1\"", "a"),
                (304, "etag: \"1\"\nset-cookie: a=b", ""),
                (200, "cache-control: max-age=60\netag: \"1\"\nset-cookie: a=b", "mine"),
                (500, "", "x"),
            ],
            &[
                (0, "", 200, "miss; stored", "a"),
                (60, "", 200, "fwd=stale", "mine"),
                // It does not wait for others now.
                (1, "", 200, "fwd-status=500", "a"),
            ],
        ),
        (
            "a 304 that forbids to store the response removes it",
            &[
                (200, "cache-control: max-age=60, stale-if-error=600\netag: \"1\"", "a"),
                (304, "etag: \"1\"\ncache-control: private", ""),
                (500, "", "x"),
                (500, "", "y"),
            ],
            &[
                (0, "", 200, "miss; stored", "a"),
                (60, "", 200, "fwd-status=500", "a"),
                (6, "", 500, "fwd=miss", "y"),
            ],
        ),
        (
            "nor keep others on a stale response",
            &[
                (200, "cache-control: max-age=1, stale-if-error=600", "a"),
                (500, "", "x"),
                (200, "cache-control: max-age=1, stale-if-error=600", "b"),
                (500, "", "x"),
                (200, "cache-control: max-age=1, stale-if-error=600", "c"),
                (500, "", "x"),
                (200, fresh, "d"),
            ],
            &[
                (0, "", 200, "miss; stored", "a"),
                (
                    2,
                    "GET /a\ncache-control: no-cache\nconnection: cache-control\nx-odd: 1",
                    200,
                    "fwd-status=500",
                    "a",
                ),
                (0, "", 200, "fwd=stale; stored", "b"),
                (2, "GET /a\ncookie: odd=1", 200, "fwd-status=500", "b"),
                (0, "", 200, "fwd=stale; stored", "c"),
                (2, "GET /a\nauthorization: odd", 200, "fwd-status=500", "c"),
                (0, "", 200, "fwd=stale; stored", "d"),
            ],
        ),
        (
            "but a backend that is away is not asked again at once, with a cookie or credentials either",
            &[
                (200, "cache-control: max-age=60, stale-if-error=600", "a"),
                (504, "", "x"),
                (504, "", "x"),
            ],
            &[
                (0, "", 200, "miss; stored", "a"),
                (70, "GET /a\ncookie: a=b", 200, "fwd-status=504", "a"),
                (0, "", 200, "hit; ttl=-10", "a"),
                (2, "GET /a\nauthorization: x", 200, "fwd-status=504", "a"),
                (0, "", 200, "hit; ttl=-12", "a"),
            ],
        ),
        (
            "a Connection field that the proxy refuses is not looked at",
            &[(200, fresh, "a"), (400, "", "b")],
            &[
                (0, listing_most, 200, "miss; stored", "a"),
                (0, listing_most, 200, "hit", "a"),
                (0, listing_too_many, 400, "bypass", "b"),
            ],
        ),
        (
            "a request with credentials refreshes only what may be shared with it",
            &[
                (200, "cache-control: max-age=60, stale-while-revalidate=60", "a"),
                (200, "cache-control: public, max-age=60, stale-while-revalidate=60", "b"),
                (200, "cache-control: public, max-age=60", "c"),
            ],
            &[
                (0, "", 200, "miss; stored", "a"),
                (65, "GET /a\nauthorization: x", 200, "hit; ttl=-5", "a"),
                (0, "", 200, "hit; ttl=-5", "a"),
                (0, "", 200, "hit; ttl=6", "b"),
                (65, "GET /a\nauthorization: x", 200, "hit; ttl=-5", "b"),
                (0, "", 200, "hit; ttl=6", "c"),
            ],
        ),
        (
            "an upgrade is passed on",
            &[(200, fresh, "a"), (200, fresh, "b")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\nconnection: upgrade\nupgrade: x", 200, "bypass", "b"),
            ],
        ),
    ];
    assert!(rows.len() >= 40, "{}", rows.len());
    for row in rows {
        on_clock(|| play(&Options::default(), *row));
    }
}

#[test]
fn what_an_operator_may_set() {
    let options = Options {
        rules: Rules {
            default_ttl: vec![(200, s(60)), (404, s(5))],
            stale_if_error: Some(s(3600)),
            stale_while_revalidate: Some(s(10)),
            drop_set_cookie: true,
        },
        obey_client: false,
        skip_cookies: vec!["session*".to_owned()],
        ..Options::default()
    };
    let rows: &[Row<'_>] = &[
        (
            "a default lifetime",
            &[(200, "", "a"), (404, "", "none"), (404, "", "none")],
            &[
                (0, "", 200, "miss; stored", "a"),
                (59, "", 200, "hit", "a"),
                (0, "GET /b", 404, "miss; stored", "none"),
                (4, "GET /b", 404, "hit", "none"),
                (12, "GET /b", 404, "stale", "none"),
            ],
        ),
        (
            "events are for the client that listens",
            &[
                (200, "content-type: text/event-stream", "data: 1"),
                (200, "content-type: text/event-stream", "data: 2"),
                (
                    200,
                    "content-type: text/event-stream\ncache-control: max-age=9",
                    "data: 3",
                ),
            ],
            &[
                (0, "", 200, "miss", "data: 1"),
                (0, "", 200, "miss", "data: 2"),
                (6, "", 200, "miss; stored", "data: 3"),
                (0, "", 200, "hit", "data: 3"),
            ],
        ),
        (
            "clients cannot make the backend work",
            &[(200, "", "a")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\ncache-control: no-cache", 200, "hit", "a"),
                (0, "GET /a\ncache-control: no-store", 200, "hit", "a"),
            ],
        ),
        (
            "cookies that are passed on",
            &[(200, "", "a"), (200, "", "mine")],
            &[
                (0, "", 200, "miss", "a"),
                (0, "GET /a\ncookie: x=1; session_id=2", 200, "bypass", "mine"),
                (0, "GET /a\ncookie: x=1", 200, "hit", "a"),
            ],
        ),
        (
            "stale if the backend fails",
            &[(200, "", "a"), (502, "", "x")],
            &[(0, "", 200, "miss", "a"), (600, "", 200, "fwd-status=502", "a")],
        ),
        (
            "stored without its cookies",
            &[(200, "set-cookie: a=b", "a")],
            &[(0, "", 200, "miss; stored", "a"), (0, "", 200, "hit", "a")],
        ),
    ];
    for row in rows {
        on_clock(|| play(&options, *row));
    }
    on_clock(|| {
        let world = World::new(options, |_, _| answer(200, "set-cookie: a=b", "a"));
        for _ in 0..2 {
            assert_eq!(send(&world.client, "").header("set-cookie"), None);
        }
        assert_eq!(world.calls(), 1);
    });
}
