//! A program with a `calloop` event loop, as in Wayland programs. The loop runs a timer of its own and a runtime whose fibers
//! sleep.
//!
//! ```text
//! cargo run -p osier-examples --bin calloop_host
//! ```

use std::error::Error;
use std::time::Duration;

use calloop::generic::Generic;
use calloop::timer::{TimeoutAction, Timer};
use calloop::{EventLoop, Interest, Mode, PostAction};
use osier::embed::Local;

struct Host {
    frames: u32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut events: EventLoop<Host> = EventLoop::try_new()?;
    let local = Local::new()?;
    let fiber = local.spawn(|| {
        for beat in 1..=3 {
            osier::sleep(Duration::from_millis(30));
            println!("beat {beat} of a fiber");
        }
    });

    let source = Generic::new(local, Interest::READ, Mode::Level);
    events.handle().insert_source(source, |_, local, _| {
        local.turn(Some(Duration::ZERO))?;
        Ok(PostAction::Continue)
    })?;
    events
        .handle()
        .insert_source(Timer::immediate(), |_, _, host: &mut Host| {
            host.frames += 1;
            TimeoutAction::ToDuration(Duration::from_millis(10))
        })?;

    let mut host = Host { frames: 0 };
    while !fiber.is_finished() {
        events.dispatch(None, &mut host)?;
    }
    println!("the host drew {} frames meanwhile", host.frames);
    Ok(())
}
