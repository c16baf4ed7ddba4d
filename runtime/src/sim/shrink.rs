//! Shrinking: looks for a failing run with as few choices as possible that are not plain.
//!
//! The search leaves out half of the choices, then a quarter, and so on down to single ones, as long as the run still fails in that way: the delta
//! debugging of Zeller and Hildebrandt (2002). A choice that is left out is 0. The run may differ after it, and later choices may be about
//! something else: only the outcome counts.

use std::collections::BTreeSet;
use std::panic::Location;
use std::rc::Rc;

use super::choices::{Plan, Schedule};
use super::{Report, Sim, World};
use crate::worker::context;

/// The result of [`Sim::shrink`].
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The shorter schedule, for `OSIER_SEED` and [`Sim::new`].
    pub schedule: Schedule,
    /// The report of its run.
    pub report: Report,
    /// The number of choices that were not plain in the first run.
    pub choices_before: usize,
    /// The number of runs that the search took.
    pub runs: usize,
}

impl Sim {
    /// Looks for a schedule that fails with fewer choices than this one, with at most `runs` runs. `None` if this one does not fail. A
    /// schedule counts only if the same host panics or returns the same error, or if the run also waits for ever or does not end.
    ///
    /// ```
    /// use osier::sim::Sim;
    /// use osier::sync::{Mutex, mpsc};
    /// use std::sync::Arc;
    ///
    /// // Two fibers race; one order is wrong.
    /// let shrunk = (0..20).find_map(|seed| {
    ///     Sim::new(seed).shrink(200, |_| {
    ///         let list = Arc::new(Mutex::new(Vec::new()));
    ///         let push = |number| {
    ///             let list = Arc::clone(&list);
    ///             osier::spawn(move || list.lock().push(number))
    ///         };
    ///         let (one, two) = (push(1), push(2));
    ///         one.join().unwrap();
    ///         two.join().unwrap();
    ///         assert_eq!(*list.lock(), [1, 2]);
    ///     })
    /// });
    /// assert_eq!(shrunk.unwrap().schedule.choices(), Some(1));
    /// ```
    ///
    /// # Blocks the thread
    ///
    /// Until the last of these runs has ended.
    ///
    /// # Panics
    ///
    /// When called on a worker.
    pub fn shrink(&self, runs: usize, program: impl Fn(&World) + 'static) -> Option<Shrunk> {
        let place = Location::caller();
        let program = Rc::new(program);
        let attempt = |schedule: Schedule| {
            let mut sim = self.clone();
            sim.schedule = schedule;
            let program = Rc::clone(&program);
            let quiet = context::set_quiet(true);
            let ended = sim.simulate(place, move |world| program(world));
            context::set_quiet(quiet);
            ended.failed.map(|failed| (failed, ended.report, ended.made))
        };
        let (failed, mut report, made) = attempt(self.schedule.clone())?;
        let seed = self.schedule.seed();
        let choices_before = made.len();
        let mut kept = made;
        let (mut tries, mut piece) = (1, kept.len().div_ceil(2).max(1));
        loop {
            let mut at = 0;
            let mut any = false;
            while at < kept.len() && tries < runs {
                let end = (at + piece).min(kept.len());
                let fewer: BTreeSet<u32> = kept[..at].iter().chain(&kept[end..]).copied().collect();
                tries += 1;
                match attempt(Schedule::with(seed, Plan::Only(fewer))) {
                    // Choices that this run did not reach, or that were 0 in it, are gone as well.
                    Some((kind, shorter, made)) if kind == failed => {
                        (report, kept, any) = (shorter, made, true);
                    }
                    Some(_) | None => at = end,
                }
            }
            if tries >= runs || (piece == 1 && !any) || kept.is_empty() {
                break;
            }
            piece = (piece / 2).max(1);
        }
        let schedule = Schedule::with(seed, Plan::Only(kept.into_iter().collect()));
        report.schedule = schedule.clone();
        Some(Shrunk {
            schedule,
            report,
            choices_before,
            runs: tries,
        })
    }
}
