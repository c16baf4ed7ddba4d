//! The rows about primitives in a loop. A program of `bench/` prints each figure under a name.
//!
//! On one worker the unit is CPU time, and the program is pinned to the core of the servers. A program with two workers
//! may use both cores; its unit is elapsed time, and its row says so.

use super::{BELOW, Contestant, Row, contestant, figure_on};
use crate::bench::Plan;

/// A contestant: its name in the table, its program, and the name under which the program prints the figure.
type Entry = (&'static str, &'static str, &'static str);

/// Ours with the watchdog may cost this much of what it costs without.
const WATCHED: Option<f64> = Some(1.05);

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    let spawning = |name, printed_as, bound| {
        // Rivals know one way to spawn.
        let theirs = [
            ("tokio", "tokio-micro", "spawn-join"),
            ("smol", "smol-micro", "spawn-join"),
            ("may", "may-micro", "spawn-join"),
        ];
        let ours = [("osier", "osier-micro", printed_as)];
        one(plan, name, &ours, &theirs)
            .bounded(bound)
            .bare("corosensei-micro", "spawn-join", plan)
    };
    let mut rows = vec![
        spawning("spawn + join", "spawn-join", 60.0),
        spawning("spawn_local + join", "spawn-local-join", 60.0),
        one(
            plan,
            "yield",
            &[("osier", "osier-micro", "yield")],
            &[
                ("tokio", "tokio-micro", "yield"),
                ("smol", "smol-micro", "yield"),
                ("may", "may-micro", "yield"),
            ],
        )
        .bounded(8.0)
        .bare("corosensei-micro", "yield", plan),
    ];
    rows.extend(watched(plan));
    rows.extend(futures(plan));
    rows.extend(signals(plan));
    rows.extend(channels(plan));
    rows.extend(selects(plan));
    rows.extend(timers(plan));
    rows
}

/// The cost of the watchdog: a thread that checks whether the worker turns its loop.
fn watched(plan: &Plan) -> Vec<Row<'_>> {
    let row = |name, with, without| {
        let mut row = one(
            plan,
            name,
            &[("osier", "osier-micro", with)],
            &[("without", "osier-micro", without)],
        );
        row.rivals[0].goal = WATCHED;
        row
    };
    vec![
        row("yield, with the watchdog", "yield-watched", "yield"),
        row("spawn + join, with the watchdog", "spawn-join-watched", "spawn-join"),
    ]
}

fn futures(plan: &Plan) -> Vec<Row<'_>> {
    vec![
        one(
            plan,
            "spawn_future + await",
            &[("osier", "osier-micro", "spawn-future")],
            &[
                ("tokio multi_thread", "tokio-micro", "spawn-future"),
                ("tokio current_thread", "tokio-micro", "spawn-join"),
                ("smol Executor", "smol-micro", "spawn-future"),
                ("async-std", "async-std-micro", "spawn-future"),
            ],
        ),
        one(
            plan,
            "spawn_future_local + await",
            &[("osier", "osier-micro", "spawn-future-local")],
            &[
                ("tokio LocalSet", "tokio-micro", "spawn-future-local"),
                ("smol LocalExecutor", "smol-micro", "spawn-future-local"),
            ],
        ),
    ]
}

/// Round trips between two fibers, tasks or threads that signal each other in turn.
fn signals(plan: &Plan) -> Vec<Row<'_>> {
    const OURS: &str = "osier-signals";
    vec![
        one(
            plan,
            "signal ping-pong, one worker",
            &[
                ("Event, fibers", OURS, "event"),
                ("Event, futures", OURS, "event-futures"),
                ("Mailbox, fibers", OURS, "mailbox"),
                ("Mailbox, futures", OURS, "mailbox-futures"),
            ],
            &[("tokio Notify", "tokio-signals", "event")],
        ),
        two(
            plan,
            "signal ping-pong, two workers, apart",
            &[
                ("Event, fibers", OURS, "event-apart"),
                ("Mailbox, fibers", OURS, "mailbox-apart"),
            ],
            &[
                ("tokio Notify, two runtimes", "tokio-signals", "event-two-runtimes"),
                ("std Condvar, two threads", "std-signals", "event-apart"),
            ],
        ),
        two(
            plan,
            "signal ping-pong, two workers, free to meet",
            &[
                ("Event, futures", OURS, "event-futures-apart"),
                ("Mailbox, futures", OURS, "mailbox-futures-apart"),
            ],
            &[("tokio Notify, multi_thread", "tokio-signals", "event-apart")],
        ),
    ]
}

/// Each in its natural shape: see the programs.
fn channels(plan: &Plan) -> Vec<Row<'_>> {
    let rivals = |printed_as| {
        [
            ("tokio mpsc", "tokio-channels", printed_as),
            ("async-channel on smol", "smol-channels", printed_as),
            ("may mpsc, unbounded", "may-channels", printed_as),
        ]
    };
    const OURS: &str = "osier-channels";
    vec![
        one(
            plan,
            "channel 1 to 1, one worker",
            &[("fibers", OURS, "channel-1"), ("futures", OURS, "channel-1-futures")],
            &rivals("channel-1"),
        ),
        two(
            plan,
            "channel 4 to 4, two workers",
            &[
                ("mpsc, fibers", OURS, "channel-4"),
                ("mpsc, futures", OURS, "channel-4-futures"),
            ],
            &rivals("channel-4"),
        ),
        two(
            plan,
            "mpmc: one queue, 4 to 4, two workers",
            &[
                ("fibers", OURS, "channel-4-mpmc"),
                ("futures", OURS, "channel-4-mpmc-futures"),
                ("8 threads", OURS, "channel-4-mpmc-threads"),
            ],
            &[
                ("flume on tokio", "queues", "flume"),
                ("kanal on tokio", "queues", "kanal"),
                ("async-channel on tokio", "queues", "async-channel"),
                ("async-channel on smol", "smol-channels", "channel-4"),
                ("crossbeam, 8 threads", "queues", "crossbeam-threads"),
                ("flume, 8 threads", "queues", "flume-threads"),
                ("kanal, 8 threads", "queues", "kanal-threads"),
            ],
        ),
    ]
}

fn selects(plan: &Plan) -> Vec<Row<'_>> {
    let row = |name, printed_as, futures| {
        let ours = [
            ("fibers", "osier-select", printed_as),
            ("futures", "osier-select", futures),
        ];
        one(plan, name, &ours, &[("tokio", "tokio-select", printed_as)])
    };
    vec![
        row("select of 4, one ready", "select-ready", "select-ready-futures"),
        row(
            "select of 4, one ready, timeout arm",
            "select-ready-timeout",
            "select-ready-timeout-futures",
        ),
        row("select of 4, waiting", "select", "select-futures"),
        row(
            "select of 4, waiting, timeout arm",
            "select-timeout",
            "select-timeout-futures",
        ),
    ]
}

fn timers(plan: &Plan) -> Vec<Row<'_>> {
    let row = |name, printed_as| {
        let (ours, tokio) = (
            ("osier", "osier-timers", printed_as),
            ("tokio", "tokio-timers", printed_as),
        );
        Row {
            rounds: plan.rounds.min(3),
            ..one(plan, name, &[ours], &[tokio])
        }
    };
    vec![
        row("timer set and cancelled, of 1000000", "timers-cancel"),
        row("timer set and fired, of 1000000", "timers-fire"),
    ]
}

/// A row on one worker.
fn one<'a>(plan: &'a Plan, name: &str, ours: &[Entry], rivals: &[Entry]) -> Row<'a> {
    row(plan, name, "ns CPU", vec![plan.cores.0], ours, rivals)
}

/// A row on two workers.
fn two<'a>(plan: &'a Plan, name: &str, ours: &[Entry], rivals: &[Entry]) -> Row<'a> {
    let cores = vec![plan.cores.0, plan.cores.1];
    row(plan, name, "ns, both cores", cores, ours, rivals)
}

fn row<'a>(
    plan: &'a Plan,
    name: &str,
    unit: &'static str,
    cores: Vec<usize>,
    ours: &[Entry],
    rivals: &[Entry],
) -> Row<'a> {
    let entered = |entries: &[Entry], goal| -> Vec<Contestant<'a>> {
        let entered = entries.iter().map(|entry| entered(&cores, *entry, goal));
        entered.collect()
    };
    Row {
        name: name.into(),
        unit,
        rounds: plan.rounds,
        bound: None,
        load: &[],
        ours: entered(ours, None),
        rivals: entered(rivals, BELOW),
    }
}

fn entered<'a>(cores: &[usize], (name, binary, printed_as): Entry, goal: Option<f64>) -> Contestant<'a> {
    let cores = cores.to_vec();
    contestant(name, goal, move || {
        figure_on(&cores, binary, printed_as, &[printed_as.to_string()])
    })
    .needs(&[binary])
}

impl<'a> Row<'a> {
    /// Adds a figure to stay below.
    fn bounded(mut self, bound: f64) -> Row<'a> {
        self.bound = Some(bound);
        self
    }

    /// Adds the bare switch as a line without a goal.
    fn bare(mut self, binary: &'static str, printed_as: &'static str, plan: &Plan) -> Row<'a> {
        let bare = entered(&[plan.cores.0], ("corosensei, bare", binary, printed_as), None);
        self.rivals.insert(0, bare);
        self
    }
}
