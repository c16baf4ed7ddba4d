//! A server and its clients, who speak HTTP/2 in the clear.
//!
//! Invariants, besides those of `server.rs`:
//! - A response belongs to the request of its stream: its key and its body are those of the request.
//! - A request that the server says it has not read was not handled.
//! - The server makes no mistake of the protocol. It ends connections with NO_ERROR, and those of clients whose bytes come too late, as they
//!   may where something disturbs them, with SETTINGS_TIMEOUT or ENHANCE_YOUR_CALM.
//! - Where nothing disturbs them, every request has the response of its handler, unless its client has cancelled it.

use std::sync::{Arc, Mutex};

use osier::sim::{Host, World};

use super::http2_client::{Fate, requests};
use super::server::{Handled, check_reply, serve};
use super::{SECOND, below};

fn scenario(world: &World) {
    // What must not be where nothing disturbs the clients.
    let unanswered: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&unanswered);
    let is_undisturbed = serve(world, move |world, handled| clients(world, handled, &noted));
    let unanswered = unanswered.lock().unwrap();
    assert!(!is_undisturbed || unanswered.is_empty(), "{unanswered:?}");
}

fn clients(world: &World, handled: &Handled, unanswered: &Arc<Mutex<Vec<String>>>) -> Vec<Host> {
    let start = |number| {
        let (handled, unanswered) = (Arc::clone(handled), Arc::clone(unanswered));
        world.host(&format!("client-{number}"), move || {
            requests("server:80", number * 1000, 16, 90 * SECOND, |asked, fate| {
                let why = match fate {
                    Fate::Answered(reply) => {
                        check_reply(asked, reply, &handled);
                        (reply.status != 200).then(|| reply.status.to_string())
                    }
                    Fate::Unread => {
                        let is_handled = handled.lock().unwrap().all.contains_key(&asked.key);
                        assert!(!is_handled, "{} was handled, and refused", asked.key);
                        None
                    }
                    Fate::Reset(code) => Some(format!("{code:?}")),
                    Fate::Lost => Some("no connection".into()),
                    Fate::Cancelled => None,
                };
                let why = why.map(|why| format!("{}: {why}", asked.key));
                unanswered.lock().unwrap().extend(why);
            });
        })
    };
    (0..1 + below(3)).map(start).collect()
}

#[test]
fn every_stream_has_one_answer_or_its_client_is_gone() {
    // The first read of a connection has less than "PRI ". Two partitions: one within the preface, one within a head.
    super::check(&[3, 436, 11462], 25, scenario);
}
