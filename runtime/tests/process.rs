//! Child processes: their output, their end, and that none stays a zombie.

#[path = "it/colours.rs"]
mod colours;
#[path = "it/given.rs"]
#[allow(dead_code)] // a part of it
mod given;

use std::fs::File;
use std::io::ErrorKind;
use std::pin::pin;
use std::thread;
use std::time::Duration;

use colours::{in_every_colour, poll_by_hand, poll_once};
use futures_lite::future::zip;
use osier::process::{Child, Command, Stdio};

fn sh(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// A child that runs until its stdin is closed.
fn cat() -> Child {
    let mut command = Command::new("cat");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// The state that the kernel shows for a process. `None` if there is no such process.
fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn await_reaped(pid: u32) {
    testkit::eventually("a process that is reaped", || state_of(pid).is_none());
}

#[test]
fn output_and_status_are_told_in_every_colour() {
    in_every_colour(|| async {
        let output = sh("echo out; echo err >&2; cat; exit 3").output_async().await.unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((&*output.stdout, &*output.stderr), (&b"out\n"[..], &b"err\n"[..]));
        assert!(sh("exit 0").status_async().await.unwrap().success());
    });
    let blocking = || {
        let output = sh("echo out; exit 3").output().unwrap();
        assert_eq!((output.status.code(), &*output.stdout), (Some(3), &b"out\n"[..]));
        assert_eq!(sh("exit 4").status().unwrap().code(), Some(4));
    };
    blocking();
    osier::run(blocking);
}

#[test]
fn more_than_a_pipe_holds_comes_through_both_pipes_at_a_time() {
    let script = "head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2";
    let count = || {
        let output = sh(script).output().unwrap();
        assert!(output.status.success());
        assert_eq!((output.stdout.len(), output.stderr.len()), (1_000_000, 2_000_000));
    };
    count();
    osier::run(count);
}

#[test]
fn the_environment_and_the_directory_are_set() {
    osier::run(|| {
        let mut command = sh("echo $ONE-$TWO-$THREE; pwd");
        command
            .env("ONE", "1")
            .envs([("TWO", "2"), ("THREE", "3")])
            .env_remove("THREE")
            .current_dir("/");
        assert_eq!(command.output().unwrap().stdout, b"1-2-\n/\n");
        // A second wait returns the same.
        assert_eq!(command.output().unwrap().stdout, b"1-2-\n/\n");
        let mut command = Command::new("/usr/bin/env");
        assert_eq!(command.env_clear().env("A", "b").output().unwrap().stdout, b"A=b\n");
    });
}

#[test]
fn a_conversation_through_the_pipes_of_a_child() {
    use std::io::{Read as _, Write as _};
    let talk = || {
        let mut child = cat();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        for round in 0..10_u8 {
            stdin.write_all(&[round; 10]).unwrap();
            let mut reply = [0; 10];
            stdout.read_exact(&mut reply).unwrap();
            assert_eq!(reply, [round; 10]);
        }
        assert!(child.try_wait().unwrap().is_none());
        drop(stdin);
        assert_eq!(stdout.read(&mut [0]).unwrap(), 0);
        assert!(child.wait().unwrap().success());
        assert!(child.wait().unwrap().success(), "asked again");
    };
    talk();
    osier::run(talk);
}

#[test]
fn the_pipes_of_a_child_as_futures() {
    use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
    in_every_colour(|| async {
        let mut child = cat();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let write = async {
            for number in 0..64_u8 {
                stdin.write_all(&[number; 4096]).await.unwrap();
            }
            stdin.close().await.unwrap();
            stdin.write_all(b"x").await.unwrap_err().kind()
        };
        let read = async {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).await.unwrap();
            bytes
        };
        let (after_close, bytes) = zip(write, read).await;
        assert_eq!(after_close, ErrorKind::BrokenPipe);
        assert!(bytes.len() == 64 * 4096 && bytes.iter().enumerate().all(|(at, &byte)| byte == (at / 4096) as u8));
        assert!(child.wait_async().await.unwrap().success());
    });
}

#[test]
fn one_childs_stdout_is_the_next_ones_stdin() {
    osier::run(|| {
        let mut first = sh("echo hello").stdout(Stdio::piped()).spawn().unwrap();
        let between = first.stdout.take().unwrap();
        let second = Command::new("tr").args(["a-z", "A-Z"]).stdin(between).output().unwrap();
        assert_eq!(second.stdout, b"HELLO\n");
        assert!(first.wait().unwrap().success());
    });
}

#[test]
fn waiting_closes_stdin_first() {
    assert!(cat().wait().unwrap().success());
    let mut child = cat();
    assert!(poll_by_hand(child.wait_async()).unwrap().success());
}

#[test]
fn a_wait_that_is_dropped_can_be_begun_again() {
    let mut child = sh("exec sleep 100").spawn().unwrap();
    {
        let mut waiting = pin!(child.wait_async());
        assert!(poll_once(waiting.as_mut()).is_pending());
        assert!(poll_once(waiting).is_pending());
    }
    let waited = osier::run(|| osier::timeout(Duration::from_millis(20), || child.wait()).is_err());
    assert!(waited, "it sleeps longer");
    child.kill().unwrap();
    let status = poll_by_hand(child.wait_async()).unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    child.kill().unwrap();
}

#[test]
#[cfg(feature = "signal")]
fn a_signal_reaches_a_child_until_it_has_ended() {
    use osier::signal::Signal;
    use std::os::unix::process::ExitStatusExt;
    let mut child = cat();
    let refused = child.signal(Signal::from_raw(64)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    child.signal(Signal::TERM).unwrap();
    // A zombie takes it as well.
    testkit::eventually("the end of the child", || state_of(child.id()) == Some('Z'));
    child.signal(Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    child.signal(Signal::TERM).unwrap();
}

#[test]
fn the_output_that_has_come_is_there_after_a_timeout() {
    osier::run(|| {
        let mut command = sh("echo out; echo err >&2; cat /dev/zero | head -c 100000; exec sleep 3600");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut stdout, mut stderr) = (b"before ".to_vec(), Vec::new());
        // It is cut short again and again, and loses nothing.
        let has_all = |stdout: &Vec<u8>, stderr: &Vec<u8>| stdout.len() >= 100_011 && stderr.len() >= 4;
        while !has_all(&stdout, &stderr) {
            let limit = Duration::from_millis(5);
            osier::timeout(limit, || child.collect_output(&mut stdout, &mut stderr)).unwrap_err();
        }
        child.kill().unwrap();
        let status = child.collect_output(&mut stdout, &mut stderr).unwrap();
        assert!(!status.success());
        assert!(stdout.starts_with(b"before out\n\0") && stdout.len() == 100_011);
        assert_eq!(stderr, b"err\n");
    });
}

#[test]
fn output_is_appended_in_every_colour() {
    in_every_colour(|| async {
        let mut child = sh("echo out; exit 3").stdout(Stdio::piped()).spawn().unwrap();
        let (mut stdout, mut stderr) = (b"before ".to_vec(), Vec::new());
        {
            let mut begun = pin!(child.collect_output_async(&mut stdout, &mut stderr));
            let _ = poll_once(begun.as_mut()); // dropped
        }
        let status = child.collect_output_async(&mut stdout, &mut stderr).await.unwrap();
        assert_eq!(
            (status.code(), &*stdout, stderr.len()),
            (Some(3), &b"before out\n"[..], 0)
        );
    });
}

/// Whether `error` names the pipe and the limit.
fn is_too_much(error: &std::io::Error, limit: usize, pipe: &str) -> bool {
    let text = error.to_string();
    error.kind() == ErrorKind::QuotaExceeded && text.contains(&format!("more than {limit} bytes to its {pipe}"))
}

#[test]
fn output_beyond_its_limit_is_an_error_that_ends_the_child() {
    in_every_colour(|| async {
        let error = sh("echo $$ >&2; exec yes")
            .limit_output(100_000)
            .output_async()
            .await
            .unwrap_err();
        assert!(is_too_much(&error, 100_000, "stdout"), "{error}");
        let error = sh("yes >&2 & wait")
            .process_group(0)
            .limit_output(10)
            .output_async()
            .await
            .unwrap_err();
        assert!(is_too_much(&error, 10, "stderr"), "{error}");
        let output = sh("printf 1234567890; printf 123 >&2")
            .limit_output(10)
            .output_async()
            .await
            .unwrap();
        assert_eq!((&*output.stdout, &*output.stderr), (&b"1234567890"[..], &b"123"[..]));
    });
    osier::run(|| {
        // It writes no more, and would not end by itself.
        let mut child = sh("printf 12345; exec sleep 3600");
        let child = child.limit_output(4).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        assert!(is_too_much(&child.wait_with_output().unwrap_err(), 4, "stdout"));
        await_reaped(pid);
    });
}

#[test]
fn output_beyond_its_limit_is_collected_piece_by_piece() {
    osier::run(|| {
        let mut command = sh("for i in 1 2 3 4 5; do printf 0123456789; done; exit 3");
        let mut child = command
            .limit_output(19)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut all, mut stderr) = (Vec::new(), Vec::new());
        let status = loop {
            let mut stdout = b"before ".to_vec();
            let collected = child.collect_output(&mut stdout, &mut stderr);
            all.extend_from_slice(&stdout[7..]);
            match collected {
                Ok(status) => break status,
                Err(error) => assert!(is_too_much(&error, 19, "stdout") && stdout.len() == 27, "{error}"),
            }
        };
        assert_eq!((status.code(), all), (Some(3), b"0123456789".repeat(5)));
    });
}

#[test]
fn a_read_of_a_pipe_into_no_room_does_not_wait() {
    use futures_lite::AsyncReadExt;
    use std::io::Read;
    let blocking = || {
        let mut child = cat();
        let stdout = child.stdout.as_mut().unwrap();
        assert!(osier::block_on(async {
            poll_once(pin!(AsyncReadExt::read(stdout, &mut [0]))).is_pending()
        }));
        assert_eq!(Read::read(stdout, &mut []).unwrap(), 0);
        assert_eq!(Read::read_vectored(stdout, &mut []).unwrap(), 0);
        assert_eq!(osier::block_on(AsyncReadExt::read(stdout, &mut [])).unwrap(), 0);
    };
    blocking();
    osier::run(blocking);
}

#[test]
fn a_process_group_is_ended_as_a_whole() {
    use std::io::Read as _;
    osier::run(|| {
        // The shell ends at once, and its child holds the pipe.
        let mut command = sh("sleep 3600 & echo $!");
        let mut shell = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = shell.stdout.take().unwrap();
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            stdout.read_exact(&mut byte).unwrap();
            line.extend(byte);
        }
        let sleep: u32 = String::from_utf8(line).unwrap().trim().parse().unwrap();
        testkit::eventually("a shell that has ended", || state_of(shell.id()) == Some('Z'));
        assert!(state_of(sleep).is_some_and(|state| state != 'Z'));
        shell.kill_group().unwrap();
        assert_eq!(stdout.read(&mut [0]).unwrap(), 0);
        assert!(shell.wait().unwrap().success());
        assert_eq!(
            shell.kill_group().unwrap_err().kind(),
            ErrorKind::InvalidInput,
            "it was waited for"
        );

        let mut in_ours = sh("exec sleep 3600").spawn().unwrap();
        assert_eq!(
            in_ours.kill_group().unwrap_err().kind(),
            ErrorKind::InvalidInput,
            "it is in ours"
        );
        in_ours.kill().unwrap();
        in_ours.wait().unwrap();
    });
}

#[test]
#[cfg(feature = "signal")]
fn a_signal_reaches_a_process_group() {
    use osier::signal::Signal;
    use std::os::unix::process::ExitStatusExt;
    let mut shell = sh("sleep 3600 & wait").process_group(0).spawn().unwrap();
    shell.signal_group(Signal::TERM).unwrap();
    assert_eq!(shell.wait().unwrap().signal(), Some(15));
    let refused = shell.signal_group(Signal::TERM).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
}

#[test]
#[cfg(feature = "signal")]
fn a_signal_to_a_leader_that_has_ended_leaves_its_group_to_be_signalled() {
    use osier::signal::Signal;
    let mut shell = sh("sleep 3600 & exit 3").process_group(0).spawn().unwrap();
    testkit::eventually("a shell that has ended", || state_of(shell.id()) == Some('Z'));
    shell.signal(Signal::TERM).unwrap();
    shell.kill_group().unwrap();
    assert_eq!(shell.wait().unwrap().code(), Some(3));
    shell.signal(Signal::TERM).unwrap();
}

/// Its number may be another's by then.
#[test]
fn a_group_whose_leader_other_code_has_waited_for_is_not_signalled() {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let mut shell = sh("exit 0").process_group(0).spawn().unwrap();
    let pid = Pid::from_raw(shell.id() as i32).unwrap();
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).unwrap();
    let refused = shell.kill_group().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::CHILD.raw_os_error()));
}

#[test]
fn a_child_is_waited_for_while_others_go_on() {
    osier::run(|| {
        let children: Vec<_> = (0..20)
            .map(|code| osier::spawn(move || sh(&format!("sleep 0.1; exit {code}")).status()))
            .collect();
        for (code, child) in children.into_iter().enumerate() {
            assert_eq!(child.join().unwrap().unwrap().code(), Some(code as i32));
        }
    });
}

#[test]
fn a_child_of_a_pinned_worker_runs_where_the_process_may() {
    let allowed = |status: &str| {
        let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:"));
        line.unwrap().to_owned()
    };
    let own = move || allowed(&std::fs::read_to_string("/proc/thread-self/status").unwrap());
    let ours = own();
    if !ours.contains(['-', ',']) {
        return println!("skipped: this process may use one processor, so nothing shows who is pinned");
    }
    let runtime = osier::Runtime::builder().workers(1).pin(true).build().unwrap();
    let (before, child, after) = runtime.run(move || {
        let before = own();
        let mut command = Command::new("cat");
        let status = command.arg("/proc/self/status").output().unwrap().stdout;
        (before, allowed(&String::from_utf8(status).unwrap()), own())
    });
    assert_eq!(child, ours);
    assert!(!before.contains(['-', ',']), "{before} is not one processor");
    assert_eq!(after, before, "the worker stays where it is");
}

#[test]
fn what_cannot_be_started_is_an_error() {
    let error = Command::new("/nowhere/at/all").spawn().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = osier::run(|| Command::new("/nowhere/at/all").output()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = Command::new("/").status().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
}

#[test]
fn a_dropped_child_goes_on_and_is_reaped_when_it_ends() {
    let mut children: Vec<_> = (0..3).map(|_| cat()).collect();
    let pids: Vec<_> = children.iter().map(Child::id).collect();
    let pipes: Vec<_> = children.iter_mut().map(|child| child.stdin.take()).collect();
    drop(children);
    // A child that ends with its handle has its chance.
    thread::sleep(Duration::from_millis(20));
    assert!(
        pids.iter().all(|&pid| state_of(pid).is_some_and(|state| state != 'Z')),
        "they go on"
    );
    drop(pipes);
    pids.into_iter().for_each(await_reaped);
    // Another child, after the first ones have been reaped.
    let mut child = cat();
    let (pid, stdin) = (child.id(), child.stdin.take());
    drop(child);
    drop(stdin);
    await_reaped(pid);
}

/// The status of the thread that reaps dropped children, to be read again and again.
fn status_of_the_reaper() -> Option<File> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let mut folders = threads.filter_map(|thread| Some(thread.ok()?.path()));
    let reaper = folders
        .find(|folder| std::fs::read_to_string(folder.join("comm")).is_ok_and(|name| name == "osier-reaper\n"))?;
    File::open(reaper.join("status")).ok()
}

/// How often a thread has gone to sleep.
fn sleeps(status: &mut File) -> u64 {
    use std::io::{Read as _, Seek as _};
    let mut text = String::new();
    status.rewind().unwrap();
    status.read_to_string(&mut text).unwrap();
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// poll(2) takes no more descriptors than the process may have open. A test of its own process: it lowers that limit.
#[test]
fn more_dropped_children_than_descriptors_are_reaped_and_keep_no_processor_busy() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    if testkit::is_emulated() {
        return testkit::skip("an emulator enforces no limit");
    }
    let test = "more_dropped_children_than_descriptors_are_reaped_and_keep_no_processor_busy";
    let ran = testkit::in_a_child(test, || {
        let mut children: Vec<_> = (0..20).map(|_| cat()).collect();
        let pids: Vec<_> = children.iter().map(Child::id).collect();
        let mut pipes: Vec<_> = children.iter_mut().map(|child| child.stdin.take()).collect();
        drop(children);
        testkit::eventually("the reaper runs", || status_of_the_reaper().is_some());
        let mut reaper = status_of_the_reaper().unwrap();
        let all = getrlimit(Resource::Nofile);
        let few = Rlimit {
            current: Some(10),
            ..all
        };
        setrlimit(Resource::Nofile, few).unwrap();
        let before = sleeps(&mut reaper);
        // One child ends, so the reaper looks after all and polls again.
        drop(pipes.pop());
        testkit::eventually("the reaper sleeps", || sleeps(&mut reaper) > before + 2);
        drop(pipes);
        setrlimit(Resource::Nofile, all).unwrap();
        pids.into_iter().for_each(await_reaped);
    });
    if let Some(ran) = ran {
        assert!(ran.status.success(), "{ran:?}");
    }
}

/// A test of its own process: it takes all descriptors but one, which the reaper gets for the child.
#[test]
fn a_child_that_is_dropped_while_descriptors_are_short_is_reaped() {
    let ran = testkit::in_a_child("a_child_that_is_dropped_while_descriptors_are_short_is_reaped", || {
        let mut child = cat();
        let (pid, stdin) = (child.id(), child.stdin.take());
        let null = File::open("/dev/null").unwrap();
        let mut taken: Vec<_> = std::iter::from_fn(|| null.try_clone().ok()).collect();
        taken.pop();
        drop(child);
        drop(taken);
        drop(stdin);
        await_reaped(pid);
    });
    if let Some(ran) = ran {
        assert!(ran.status.success(), "{ran:?}");
    }
}

#[test]
fn a_child_is_killed_on_drop_if_asked_for() {
    let child = sh("exec sleep 100").kill_on_drop(true).spawn().unwrap();
    let pid = child.id();
    drop(child);
    await_reaped(pid);
    // So is a child whose fiber is cancelled.
    let (sender, receiver) = std::sync::mpsc::channel();
    osier::run(move || {
        let fiber = osier::spawn(move || {
            let mut command = sh("exec sleep 100");
            let mut child = command.kill_on_drop(true).spawn().unwrap();
            sender.send(child.id()).unwrap();
            child.wait()
        });
        given::others_wait();
        fiber.cancel();
        let _ = fiber.join();
    });
    await_reaped(receiver.recv().unwrap());
}

/// Traces the process that it is told, as a debugger does, until its input ends.
const TRACER: &str = r#"
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
SEIZE = 0x4206
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
print(libc.ptrace(SEIZE, int(sys.argv[1]), None, None), flush=True)
sys.stdin.read()
"#;

/// The processor time of this process, in milliseconds.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    // In ticks of 10 ms.
    fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<u64>().unwrap() * 10)
        .sum()
}

/// A test of its own process: it measures the processor time.
#[test]
fn a_child_that_ended_under_a_debugger_costs_no_processor_time() {
    use std::io::{BufRead as _, BufReader};
    let ran = testkit::in_a_child("a_child_that_ended_under_a_debugger_costs_no_processor_time", || {
        for is_dropped in [false, true] {
            let mut child = cat();
            let pid = child.id();
            let mut tracer = std::process::Command::new("python3");
            tracer.args(["-c", TRACER, &pid.to_string()]);
            let tracer = tracer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let Ok(mut tracer) = tracer else {
                return testkit::skip("no python3");
            };
            let mut answer = String::new();
            BufReader::new(tracer.stdout.take().unwrap())
                .read_line(&mut answer)
                .unwrap();
            if answer.trim() != "0" {
                let _ = tracer.wait();
                return testkit::skip("ptrace(2) is forbidden");
            }
            drop(child.stdin.take());
            testkit::eventually("its end", || state_of(pid) == Some('Z'));
            let before = cpu_ms();
            let wait = Duration::from_secs(2);
            if is_dropped {
                drop(child);
                thread::sleep(wait);
                assert!(cpu_ms() - before < 200);
                drop(tracer.stdin.take());
                tracer.wait().unwrap();
            } else {
                osier::run(move || {
                    assert!(osier::timeout(wait, || child.wait()).is_err());
                    assert!(osier::timeout(wait, || osier::block_on(child.wait_async())).is_err());
                    assert!(cpu_ms() - before < 200);
                    drop(tracer.stdin.take());
                    tracer.wait().unwrap();
                    assert!(child.wait().unwrap().success());
                });
            }
            await_reaped(pid);
        }
    });
    if let Some(ran) = ran {
        assert!(ran.status.success(), "{ran:?}");
    }
}
