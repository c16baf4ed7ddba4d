//! A chat with guests who come, talk, fall silent and vanish.
//!
//! Invariants:
//! - A guest sees each line once: in the history or live.
//! - The lines of a guest are in the order in which they were sent, for everybody.
//! - All guests who are there see the lines in one order.
//! - Nobody's connection stays when all are gone.

use std::io;
use std::sync::{Arc, Mutex};

use osier::sim::{Faults, World};
use osier_web::chat::{Chat, Options};
use osier_web::{Connections, Router, Server};

use super::guest::Guest;
use super::{SECOND, below, once_in, some_faults, some_of};

/// Comes, says some lines, and leaves. The lines that it has seen are left in `visits`.
fn visit(number: u64, visits: &Mutex<Vec<Vec<String>>>) -> io::Result<()> {
    for stay in 0..1 + below(3) {
        let mut guest = Guest::enter("server:80", &format!("guest-{number}"))?;
        let stayed = (|| {
            for line in 0..below(8) {
                guest.say(&format!("{number}.{stay}.{line:03}"))?;
                guest.listen(some_of(4 * SECOND))?;
            }
            guest.listen(some_of(60 * SECOND))
        })();
        if once_in(2) {
            guest.leave();
        }
        visits.lock().unwrap().push(guest.seen);
        stayed?;
        osier::sleep(some_of(10 * SECOND));
    }
    Ok(())
}

fn scenario(world: &World) {
    let connections: Arc<Mutex<Option<Connections>>> = Arc::default();
    let place = Arc::clone(&connections);
    world.host("server", move || {
        let options = Options {
            history: 10_000,
            burst: 10_000,
            ..Options::default()
        };
        let router = Router::new().get("/chat", Chat::with(options).handler());
        let server = Server::new(router).on_log(|_| ()).bind("0.0.0.0:80").unwrap();
        *place.lock().unwrap() = Some(server.connections());
        server.run();
    });
    osier::sleep(SECOND);
    world.faults(some_faults());
    let visits: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
    let guests: Vec<_> = (0..2 + below(3))
        .map(|number| {
            let visits = Arc::clone(&visits);
            world.host(&format!("guest-{number}"), move || {
                // A connection may break.
                let _ = visit(number, &visits);
            })
        })
        .collect();
    guests.iter().for_each(|guest| guest.wait());
    world.faults(Faults::none());
    osier::sleep(600 * SECOND);
    assert_eq!(
        connections.lock().unwrap().as_ref().unwrap().count(),
        0,
        "guests are left"
    );

    // A last guest, to whom nothing happens, has the whole history.
    let mut last = Guest::enter("server:80", "last").unwrap();
    last.listen(SECOND).unwrap();
    let history = last.seen;
    for guest in 0..guests.len() {
        let of_guest = history.iter().filter(|line| line.starts_with(&format!("{guest}.")));
        assert!(of_guest.is_sorted_by(|one, next| one < next), "{history:?}");
    }
    for seen in visits.lock().unwrap().iter() {
        // Everything from the beginning up to when the guest left: the history and the lines after it, in one order.
        assert!(history.starts_with(seen), "a guest saw {seen:?} of {history:?}");
    }
}

#[test]
fn guests_see_every_line_once_and_in_one_order() {
    super::check(&[22502], 40, scenario);
}
