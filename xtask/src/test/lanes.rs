//! Steps that overlap: while the tests of one step wait, the next step compiles.
//!
//! Five threads work, each on one step at a time. One compiles in the target directory of the tests, which cargo locks, and one compiles programs
//! in directories of their own. One reads sources. The first and the third help the second once they have nothing else to do: near the end of a
//! run, a crate that is compiled as one unit would be all that runs. One thread runs tests, which mostly wait. One runs the programs that only
//! compute. All but the tests are nice, so that the time limits of the tests do not depend on them. The thread that compiles the tests is less
//! so than the others: the sooner the tests begin, the more of their waiting is used to compile. The output of a step appears at its end.

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
    /// Compiles in the shared directory, while the tests that are built already run.
    AsBuilt(
        fn(&Sender<Executable>) -> Result<(), Box<Outcome>>,
        fn(Receiver<Executable>) -> Outcome,
    ),
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
/// others. Those get a tenth of a core that they and the builds of the tests want. One of them builds the program that takes longest.
const NICE: u8 = 5;
const NICER: u8 = 10;
const NICEST: u8 = 15;

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
    let apart = steps.iter().enumerate().filter_map(|(place, step)| match step.work {
        Work::Apart(compile, lane, run) => Some((place, compile, lane, run)),
        _ => None,
    });
    let apart = Mutex::new(apart);
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
        let (finish, log, apart) = (&finish, &log, &apart);
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
        let build_apart = move |lanes: &Lanes| {
            if !is_alone {
                step::be_nice(NICEST);
            }
            while let Some((place, compile, lane, run)) = next(apart) {
                lanes.send(lane, build(place, compile, run));
            }
        };
        let (alone, after_checks) = (lanes.clone(), lanes.clone());
        scope.spawn(move || build_apart(&alone));
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
            build_apart(&after_checks);
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
                Work::AsBuilt(compile, run) => {
                    let (to_run, built) = mpsc::channel();
                    let (end, ended) = mpsc::channel::<Outcome>();
                    let run = Box::new(move || {
                        let outcome = run(built);
                        outcome.with(ended.recv().unwrap_or_default())
                    });
                    let took = Default::default();
                    lanes.send(Lane::Tests, Some(Ready { place, run, took }));
                    log("compiles", step.name);
                    let compiled = measured(is_alone, || match compile(&to_run) {
                        Ok(()) => Outcome::default(),
                        Err(outcome) => *outcome,
                    });
                    // The tests run until nothing more can come.
                    drop(to_run);
                    let _ = end.send(compiled);
                    log("compiled", step.name);
                }
                Work::Check(_) | Work::Apart(..) | Work::Run(_) => {}
            }
        }
        build_apart(&lanes);
        drop(lanes);
    });
    let outcomes = outcomes.into_inner().expect("no step panics while it holds the lock");
    outcomes.into_iter().flatten().collect()
}

/// Takes the next of the steps that several threads share. The lock is not held afterwards.
fn next<T>(steps: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    steps.lock().expect("no step runs while it is held").next()
}

/// Runs a part of a step, with its output held back unless it is alone, and measures it.
fn measured(is_alone: bool, part: impl FnOnce() -> Outcome) -> Outcome {
    let held = (!is_alone).then(step::held);
    let (start, cpu) = (Instant::now(), step::cpu_time());
    let mut outcome = part();
    outcome.took = start.elapsed();
    outcome.cpu += step::cpu_time() - cpu;
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
                name: "as built",
                work: Work::AsBuilt(
                    |_| Ok(()),
                    |built| Outcome::one_check("as built", true, 1 + built.iter().count(), "things", Duration::ZERO),
                ),
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
        assert_eq!(
            names,
            [
                "run", "both", "as built", "compute", "compile", "check", "apart", "broken"
            ]
        );
    }

    #[test]
    fn tests_run_while_others_of_their_step_are_built() {
        // The build goes on only once the first executable runs.
        static MEETING: std::sync::Barrier = std::sync::Barrier::new(2);
        let build = |built: &Sender<Executable>| -> Result<(), Box<Outcome>> {
            let executable = Executable {
                folder: "a".into(),
                target: "it".into(),
                file: "a/it".into(),
            };
            built.send(executable).unwrap();
            MEETING.wait();
            Err(Box::new(Outcome::one_check("tests", false, 0, "tests", Duration::ZERO)))
        };
        let steps = [Step {
            name: "tests",
            work: Work::AsBuilt(build, |built| {
                let first = built.recv().unwrap();
                MEETING.wait();
                assert_eq!((first.target.as_str(), built.recv().is_err()), ("it", true));
                passed("tests")
            }),
        }];
        let outcome = run(&steps).remove(0);
        assert_eq!(
            (outcome.passed, outcome.failed),
            (1, 1),
            "a build that failed is a failure"
        );
    }

    #[test]
    fn threads_that_have_nothing_else_to_do_build_programs() {
        // Each waits for the two others.
        static MEETING: std::sync::Barrier = std::sync::Barrier::new(3);
        fn meet() -> Built {
            MEETING.wait();
            Ok(vec![])
        }
        let steps = ["a", "b", "c"].map(|name| Step {
            name,
            work: Work::Apart(meet, Lane::Computations, |_| passed("run")),
        });
        assert_eq!(run(&steps).len(), 3);
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
