//! A coroutine waits for an event. The program polls for ready events and resumes the coroutine by hand.
//!
//! ```text
//! cargo run -p osier-examples --bin resume_by_hand
//! ```

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use osier::embed::Local;
use osier::sync::Event;

fn main() -> io::Result<()> {
    let local = Local::new()?;
    let event = Rc::new(Event::new());
    let flag = Rc::new(Cell::new(false));

    let (signal, raised) = (Rc::clone(&event), Rc::clone(&flag));
    drop(local.spawn(move || {
        // Suspends until the event is set, and resets it.
        signal.wait();
        raised.set(true);
    }));
    // Runs the coroutine until it waits.
    local.ready()?.for_each(|fiber| fiber.resume());

    event.set();
    println!("the event is set, the flag is {}", flag.get());

    let mut count = 0;
    for fiber in local.ready()? {
        fiber.resume();
        count += 1;
    }
    println!("{count} resumed, the flag is {}", flag.get());
    assert!(count == 1 && flag.get());
    Ok(())
}
