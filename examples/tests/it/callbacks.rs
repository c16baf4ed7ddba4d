//! Runs each program of `examples/callbacks` to its end.

use std::process::Command;

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .output()
        .expect("it was built with this test");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_counter_counts() {
    let numbers = (1..=10).map(|n| format!("{n}\n")).collect::<String>();
    assert_eq!(output(env!("CARGO_BIN_EXE_counter"), &["5"]), numbers);
}

#[test]
fn the_strand_answers_in_capitals() {
    assert_eq!(output(env!("CARGO_BIN_EXE_strand"), &[]), "ONE STRAND OF CALLBACKS\n");
}

#[test]
fn the_consumer_gets_everything() {
    let text = output(env!("CARGO_BIN_EXE_producer_consumer"), &[]);
    assert_eq!(text, "4000 items, sum 7998000\n");
}

#[test]
fn the_fork_is_joined() {
    let text = output(env!("CARGO_BIN_EXE_fork_join"), &[]);
    assert_eq!(text, "250000500000 + 250000000000 = 500000500000\n");
}

#[test]
fn the_reactors_serve_their_clients() {
    let text = output(env!("CARGO_BIN_EXE_reactor"), &["50"]);
    assert_eq!(text, "50 of 50 clients heard what they said\n");
}

#[test]
fn the_shutdown_leaves_nothing() {
    let text = output(env!("CARGO_BIN_EXE_shutdown"), &[]);
    assert_eq!(
        text,
        "100 notified of the shutdown, 100 refused to go on, 0 outstanding\n"
    );
}
