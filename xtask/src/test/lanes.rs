//! Steps that overlap: while the tests of one step wait, the next step compiles.
//!
//! Five threads work, each on one step at a time. One compiles in the target directory of the tests. One compiles programs in directories of
//! their own, and one checks, because cargo locks a directory and a check of one crate keeps one core busy. One runs tests, which mostly wait.
//! One runs the programs that only compute. All but the tests are nice, so that the time limits of the tests do not depend on them. The thread
//! that builds the tests is much less so than the others: the sooner the tests begin, the more of their waiting is used to compile. The output
//! of a step appears at its end.

use super::executables::{Built, Executable};
use crate::step::{self, Outcome};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// A step of `cargo xtask test` or `cargo xtask ci`.
#[derive(Clone, Copy)]
pub struct Step {
    pub name: &'static str,
    pub work: Work,
}

/// The parts of a step.
#[derive(Clone, Copy)]
pub enum Work {
    /// Reads the source and is done.
    Check(fn() -> Outcome),
    /// Compiles in the shared directory and is done.
    Compile(fn() -> Outcome),
    /// Compiles in the shared directory, then runs the executables in a lane.
    Both(fn() -> Built, Lane, fn(Vec<Executable>) -> Outcome),
    /// Compiles in a directory of its own, then runs the executables in a lane.
    Apart(fn() -> Built, Lane, fn(Vec<Executable>) -> Outcome),
    /// Runs without anything to compile, before all tests.
    Run(fn() -> Outcome),
}

/// Where executables run.
#[derive(Clone, Copy)]
pub enum Lane {
    Tests,
    Computations,
}

/// A step whose executables are built: its place, how they run, and the time and CPU time that compiling took.
struct Ready {
    place: usize,
    run: Box<dyn FnOnce() -> Outcome + Send>,
    took: (Duration, Duration),
}

/// The ways to the threads that run executables.
#[derive(Clone)]
struct Lanes {
    tests: Sender<Ready>,
    computations: Sender<Ready>,
}

impl Lanes {
    fn send(&self, lane: Lane, ready: Option<Ready>) {
        let to = match lane {
            Lane::Tests => &self.tests,
            Lane::Computations => &self.computations,
        };
        // The threads take whatever is sent.
        ready.into_iter().for_each(|ready| drop(to.send(ready)));
    }
}

/// The niceness of the thread that builds the tests; of that of computations, among which a server has clients with time limits; and of the
/// other builds, which get a twentieth of a core that they and the tests' want.
const NICE: u8 = 5;
const NICER: u8 = 10;
const NICEST: u8 = 19;

/// Runs the steps and returns their outcomes in the same order.
pub fn run(steps: &[Step]) -> Vec<Outcome> {
    let is_alone = steps.len() == 1;
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(steps.iter().map(|_| None).collect());
    let finish = |place: usize, outcome: Outcome| {
        outcomes.lock().expect("no step panics while it holds the lock")[place] = Some(outcome);
    };
    let start = Instant::now();
    let log = |what: &str, name: &str| {
        if !is_alone {
            println!("[{:>4} s] {name}: {what}", start.elapsed().as_secs());
        }
    };
    let (to_tests, tests) = mpsc::channel::<Ready>();
    let (to_computations, computations) = mpsc::channel::<Ready>();
    let lanes = Lanes {
        tests: to_tests,
        computations: to_computations,
    };
    for (place, step) in steps.iter().enumerate() {
        if let Work::Run(run) = step.work {
            let run = Box::new(run);
            let took = Default::default();
            lanes.send(Lane::Tests, Some(Ready { place, run, took }));
        }
    }
    std::thread::scope(|scope| {
        let (finish, log) = (&finish, &log);
        let lane = |built: Receiver<Ready>, niceness: u8| {
            scope.spawn(move || {
                if !is_alone {
                    step::be_nice(niceness);
                }
                for Ready { place, run, took } in built {
                    let name = steps[place].name;
                    log("runs", name);
                    let mut outcome = measured(is_alone, run);
                    outcome.took += took.0;
                    outcome.cpu += took.1;
                    finish(place, outcome);
                    log("done", name);
                }
            });
        };
        lane(tests, 0);
        lane(computations, NICER);
        // The executables of a step, or nothing where it is over.
        let build = move |place: usize, compile: fn() -> Built, run: fn(Vec<Executable>) -> Outcome| {
            let name = steps[place].name;
            log("compiles", name);
            let mut executables = vec![];
            let compiled = measured(is_alone, || match compile() {
                Ok(built) => {
                    executables = built;
                    Outcome::default()
                }
                Err(outcome) => *outcome,
            });
            // A step that has a name already is over.
            if !compiled.name.is_empty() {
                finish(place, compiled);
                return None;
            }
            let took = (compiled.took, compiled.cpu);
            let run = Box::new(move || run(executables));
            Some(Ready { place, run, took })
        };
        let apart = lanes.clone();
        scope.spawn(move || {
            if !is_alone {
                step::be_nice(NICEST);
            }
            for (place, step) in steps.iter().enumerate() {
                if let Work::Apart(compile, lane, run) = step.work {
                    apart.send(lane, build(place, compile, run));
                }
            }
        });
        scope.spawn(move || {
            if !is_alone {
                step::be_nice(NICEST);
            }
            for (place, step) in steps.iter().enumerate() {
                if let Work::Check(check) = step.work {
                    log("checks", step.name);
                    finish(place, measured(is_alone, check));
                    log("done", step.name);
                }
            }
        });
        if !is_alone {
            step::be_nice(NICE);
        }
        for (place, step) in steps.iter().enumerate() {
            match step.work {
                Work::Compile(compile) => {
                    log("compiles", step.name);
                    finish(place, measured(is_alone, compile));
                    log("done", step.name);
                }
                Work::Both(compile, lane, run) => lanes.send(lane, build(place, compile, run)),
                Work::Check(_) | Work::Apart(..) | Work::Run(_) => {}
            }
        }
        drop(lanes);
    });
    let outcomes = outcomes.into_inner().expect("no step panics while it holds the lock");
    outcomes.into_iter().flatten().collect()
}

/// Runs a part of a step, with its output held back unless it is alone, and measures it.
fn measured(is_alone: bool, part: impl FnOnce() -> Outcome) -> Outcome {
    let held = (!is_alone).then(step::held);
    let (start, cpu) = (Instant::now(), step::cpu_time());
    let mut outcome = part();
    outcome.took = start.elapsed();
    outcome.cpu = step::cpu_time() - cpu;
    drop(held);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(name: &str) -> Outcome {
        Outcome::one_check(name, true, 1, "things", Duration::ZERO)
    }

    #[test]
    fn all_steps_end_and_keep_their_order() {
        let steps = [
            Step {
                name: "run",
                work: Work::Run(|| passed("run")),
            },
            Step {
                name: "both",
                work: Work::Both(|| Ok(vec![]), Lane::Tests, |_| passed("both")),
            },
            Step {
                name: "compute",
                work: Work::Both(|| Ok(vec![]), Lane::Computations, |_| passed("compute")),
            },
            Step {
                name: "compile",
                work: Work::Compile(|| passed("compile")),
            },
            Step {
                name: "check",
                work: Work::Check(|| passed("check")),
            },
            Step {
                name: "apart",
                work: Work::Apart(|| Ok(vec![]), Lane::Computations, |_| passed("apart")),
            },
            Step {
                name: "broken",
                work: Work::Both(|| Err(Box::new(passed("broken"))), Lane::Tests, |_| unreachable!()),
            },
        ];
        let names: Vec<String> = run(&steps).into_iter().map(|outcome| outcome.name).collect();
        assert_eq!(names, ["run", "both", "compute", "compile", "check", "apart", "broken"]);
    }

    #[test]
    fn tests_run_while_two_steps_compile_and_one_checks() {
        // Each waits for the others, so that they end only if they run at the same time.
        static MEETING: std::sync::Barrier = std::sync::Barrier::new(4);
        fn meet(name: &str) -> Outcome {
            MEETING.wait();
            passed(name)
        }
        let steps = [
            Step {
                name: "tests",
                work: Work::Both(|| Ok(vec![]), Lane::Tests, |_| meet("tests")),
            },
            Step {
                name: "compile",
                work: Work::Compile(|| meet("compile")),
            },
            Step {
                name: "check",
                work: Work::Check(|| meet("check")),
            },
            Step {
                name: "apart",
                work: Work::Apart(
                    || {
                        meet("apart");
                        Ok(vec![])
                    },
                    Lane::Computations,
                    |_| passed("apart"),
                ),
            },
        ];
        assert_eq!(run(&steps).len(), 4);
    }
}
