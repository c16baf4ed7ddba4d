//! Leaves out CI steps, and tests of crates, whose inputs have not changed.
//!
//! The inputs of a step or of a crate's tests are the crates that it builds with all crates below them, as `Cargo.lock` has them: for one of this
//! repository its folder, for another one its version. A step has more inputs where it reads other files: those of [`RULES`]. A comment in a
//! source is no input, but of a step that reads comments; the tests of a crate are none of a step that builds its library alone. The code that
//! starts and counts programs is none, because the tests, which always run, would show what is wrong with it. A new toolchain is none either,
//! so once a week every step runs (`.github/workflows/weekly.yml`). Those of [`WEEKLY`] run only then.
//!
//! The environment variable `OSIER_CI_BASE` names the commit to compare with, or is `none`, which runs every step. Without it, that is the
//! commit that has landed last, which [`LANDED`] names: an old one there costs time only. If the current commit is not above it, that is the
//! newest commit more than [`EARLIER`] older than the current one. If git does not know the commit, everything counts as changed.

mod api;
mod manifest;

use crate::root;
use crate::step::{self, Outcome};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// A step that takes a minute or more, and its inputs.
#[derive(Clone, Copy)]
struct Rule {
    step: &'static str,
    /// The crates that the step builds.
    packages: &'static [&'static str],
    /// Folders and files that are inputs, too.
    paths: &'static [&'static str],
}

const fn rule(step: &'static str, packages: &'static [&'static str], paths: &'static [&'static str]) -> Rule {
    Rule { step, packages, paths }
}

const RULES: &[Rule] = &[
    // A change of the runtime that poll(2) breaks is found by the weekly run.
    rule("poll-backend", &["osier-poll"], &["xtask/src/test/portable.rs"]),
    rule("miri", &["osier-queue"], &["xtask/src/test/miri.rs"]),
    rule("loom", &["osier-queue"], &["xtask/src/test/loom.rs"]),
    rule("valgrind", &["osier-coro"], &["xtask/src/test/valgrind.rs"]),
    rule(
        "instructions",
        &["osier-web"],
        &[
            "bench/Cargo.lock",
            "bench/Cargo.toml",
            "bench/counts",
            "bench/instructions.txt",
            "server/src/metrics/series.rs",
            "xtask/src/test/instructions",
        ],
    ),
    rule(
        "corpus",
        &["osier-http", "osier-queue", "testkit"],
        &[
            "fuzz",
            "web/src/conn/handover",
            "web/src/ws",
            "web/tests/it/ws_table",
            "xtask/src/test/fuzz.rs",
        ],
    ),
    rule("features", &["osier-web"], &["xtask/src/test/features.rs"]),
    rule("targets", &["osier-web"], &["xtask/src/test/targets.rs"]),
];

/// Steps that no change runs: `valgrind` watches the switches of stacks, `corpus` runs the targets of `fuzz`, and `api` makes the documents of
/// `rustdoc` in another format. (The server's have a name that a library has, and nobody makes them.)
const WEEKLY: &[&str] = &["asan", "fuzz", "rustdoc"];

/// Steps that read comments: programs in the documentation, and what clippy wants above `unsafe`.
const READERS: &[&str] = &["tests"];

/// Steps that build libraries alone.
const LIBRARIES: &[&str] = &["features", "instructions", "targets"];

/// The steps of the workspace `mixing/`, whose programs mix other libraries with ours.
const MIXING: [&str; 3] = ["mixing", "mixing-docs", "clippy-mixing"];

/// Our behaviour has tests of its own. So the inputs of every crate there are what other libraries see: the features, and the code of those that
/// are for them alone. With them go changes of the [`LISTS`] of the public API, as far as the crates, or [`SHOWN`], name what has changed.
const MIXED: &[&str] = &[
    "coro/Cargo.toml",
    "http/Cargo.toml",
    "macros/Cargo.toml",
    "mixing/Cargo.lock",
    "mixing/Cargo.toml",
    "poll/Cargo.toml",
    "queue/Cargo.toml",
    "runtime/Cargo.toml",
    "runtime/src/adapters",
    "tls/Cargo.toml",
    "web/Cargo.toml",
    "xtask/src/test/mixing.rs",
];

/// All: the two that programs name have items of the crates below them.
const LISTS: [&str; 7] = [
    "docs/internal/api/osier-coro.txt",
    "docs/internal/api/osier-http.txt",
    "docs/internal/api/osier-poll.txt",
    "docs/internal/api/osier-queue.txt",
    "docs/internal/api/osier-tls.txt",
    "docs/internal/api/osier-web.txt",
    "docs/internal/api/osier.txt",
];

/// Programs of that workspace that stand elsewhere.
const SHOWN: [&str; 3] = ["docs/mixing.md", "examples/redis.rs", "examples/start"];

/// The crates of that workspace, and the folders and files that are inputs of each: its own, and those of the crates below it there.
const MEMBERS: &[(&str, &[&str])] = &[
    (
        "osier-mixing",
        &["mixing", "integrations/osier-ureq", SHOWN[0], SHOWN[1], SHOWN[2]],
    ),
    (
        "osier-arena",
        &["examples/arena", "integrations/osier-postgres", "mixing/peers"],
    ),
    ("osier-postgres", &["integrations/osier-postgres", "mixing/peers"]),
    (
        "osier-tracing",
        &["integrations/osier-tracing", "integrations/osier-ureq"],
    ),
    ("osier-ureq", &["integrations/osier-ureq"]),
];

/// The one of them that has no library, and so no programs in documentation.
const PROGRAM: &str = "osier-arena";

/// The tests of single crates, which are left out too. The tests of all other crates always run: those crates are at the top, and most
/// changes reach them.
const TESTED: &[Rule] = &[
    // valgrind runs the programs that the tests have built.
    rule(
        "tests",
        &["osier-coro"],
        &["docs/internal/api/osier-coro.txt", "xtask/src/test/valgrind.rs"],
    ),
    rule("tests", &["osier-queue"], &["docs/internal/api/osier-queue.txt"]),
    rule("tests", &["osier-poll"], &["docs/internal/api/osier-poll.txt"]),
    rule("tests", &["osier-macros"], &[]),
    rule("tests", &["osier"], &["docs/clippy", "docs/internal/api/osier.txt"]),
    rule("tests", &["osier-http"], &["docs/internal/api/osier-http.txt"]),
    rule("tests", &["osier-tls"], &["docs/internal/api/osier-tls.txt"]),
];

/// An input of every step, beside its part of the workspace's manifest.
const ALWAYS: &str = ".cargo";

/// The file with the last commit that has landed. It is written in the change that follows.
const LANDED: &str = ".ci/landed";

const EARLIER: Duration = Duration::from_secs(12 * 60 * 60);

/// The parts of a run that are left out.
#[derive(Default)]
pub struct LeftOut {
    /// The outcomes of the steps.
    pub steps: Vec<Outcome>,
    /// The crates whose tests, those in the documentation included, are neither built nor run, and whose documentation and public API are not
    /// looked at.
    pub tests: Vec<&'static str>,
    /// As `tests`, for the crates of the workspace `mixing/`, if any of them is built.
    pub mixing: Vec<&'static str>,
}

/// Compares with the base. Steps are short from now on, unless all is asked for.
pub fn left_out() -> LeftOut {
    if std::env::var_os(BASE).is_some_and(|base| base == "none") {
        return LeftOut::default();
    }
    IS_SHORT.store(true, Relaxed);
    let weekly = WEEKLY.iter().map(|step| {
        let why = "it runs once a week (OSIER_CI_BASE=none runs all steps)";
        Outcome::skipped(step, why.into())
    });
    let mut steps: Vec<Outcome> = weekly.collect();
    let Some(base) = base() else {
        return LeftOut {
            steps,
            ..LeftOut::default()
        };
    };
    let (before, now) = (at(&base, "Cargo.lock"), here("Cargo.lock"));
    let manifests = (at(&base, "Cargo.toml"), here("Cargo.toml"));
    let folders = folders();
    let is_same = |rule: &Rule| {
        let compare = match READERS.contains(&rule.step) {
            true => are_unchanged,
            false => have_the_same_code,
        };
        let inputs = below(&now, rule.packages);
        let paths = paths(rule, of(&folders, &inputs));
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let crates: HashSet<&str> = inputs.iter().map(|block| name(block)).collect();
        let [manifest_before, manifest] =
            [&manifests.0, &manifests.1].map(|text| manifest::lines(text, rule.step, &crates));
        below(&before, rule.packages) == inputs && manifest_before == manifest && compare(&base, &paths)
    };
    let skipped = |name: &str, packages: &str| {
        let inputs = match packages {
            "" => "its inputs".into(),
            packages => format!("{packages} and all below"),
        };
        let why = format!("{inputs} as in {base} (OSIER_CI_BASE=none runs all steps)");
        Outcome::skipped(name, why)
    };
    let tests: Vec<&str> = TESTED
        .iter()
        .filter(|rule| is_same(rule))
        .flat_map(|rule| rule.packages)
        .copied()
        .collect();
    let same = RULES.iter().filter(|rule| is_same(rule));
    steps.extend(same.map(|rule| skipped(rule.step, &rule.packages.join(", "))));
    if !tests.is_empty() {
        steps.push(skipped("tests of some", &tests.join(", ")));
    }
    let mut mixing = unmixed(&base);
    if mixing.len() == MEMBERS.len() {
        steps.extend(MIXING.map(|step| skipped(step, "")));
        mixing.clear();
    } else if !mixing.is_empty() {
        steps.push(skipped("some of mixing", &mixing.join(", ")));
        if mixing.len() == MEMBERS.len() - 1 && !mixing.contains(&PROGRAM) {
            steps.push(skipped("mixing-docs", ""));
        }
    }
    LeftOut { steps, tests, mixing }
}

/// The crates of the workspace `mixing/` whose inputs have not changed.
fn unmixed(base: &str) -> Vec<&'static str> {
    if !are_unchanged(base, &[MIXED, &[ALWAYS]].concat()) || use_what_has_changed(base) {
        return vec![];
    }
    let same = MEMBERS.iter().filter(|(_, paths)| are_unchanged(base, paths));
    same.map(|(name, _)| *name).collect()
}

/// Whether the programs of `mixing/` use what has changed in the public API.
fn use_what_has_changed(base: &str) -> bool {
    let folders = MEMBERS.iter().flat_map(|(_, paths)| *paths);
    let programs = step::output(git("ls-files").arg("--").args(folders));
    let programs = programs
        .lines()
        .filter(|path| path.ends_with(".rs") || path.ends_with(".md"));
    let text: String = programs.map(here).collect();
    let words = api::Words::of(&text);
    LISTS
        .iter()
        .any(|list| words.use_what_has_changed(&at(base, list), &here(list)))
}

/// The paths that git compares for a rule, with the folders of its crates.
fn paths<'a>(rule: &Rule, folders: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut paths: Vec<String> = folders.map(String::from).collect();
    if LIBRARIES.contains(&rule.step) {
        paths.retain(|folder| folder != "testkit");
        let of_tests = |folder: &String| ["tests", "examples"].map(|part| format!(":(exclude){folder}/{part}"));
        paths.extend(paths.iter().flat_map(of_tests).collect::<Vec<_>>());
    }
    paths.extend([ALWAYS].iter().chain(rule.paths).map(|path| (*path).to_string()));
    paths
}

/// Whether these folders and files are as in `base`, with everything that is not committed.
fn are_unchanged(base: &str, paths: &[&str]) -> bool {
    changed(base, paths).is_empty()
}

/// As [`are_unchanged`], but for comments in sources.
fn have_the_same_code(base: &str, paths: &[&str]) -> bool {
    changed(base, paths)
        .iter()
        .all(|path| path.ends_with(".rs") && code(&at(base, path)).eq(code(&here(path))))
}

/// The files that differ from those in `base`, and the new ones. Git must know `base`.
fn changed(base: &str, paths: &[&str]) -> Vec<String> {
    let list = |command: &mut Command| step::output(command.arg("--").args(paths));
    let differing = list(git("diff").args(["--name-only", "--no-renames", base]));
    let new = list(git("ls-files").args(["--others", "--exclude-standard"]));
    differing.lines().chain(new.lines()).map(String::from).collect()
}

/// The text of a file in `base`.
fn at(base: &str, path: &str) -> String {
    step::output(git("show").arg(format!("{base}:{path}")))
}

/// The text of a file as it is now.
fn here(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

fn git(subcommand: &str) -> Command {
    let mut git = Command::new("git");
    git.arg(subcommand).current_dir(root());
    git
}

/// The lines of a source, without empty ones and comments on lines of their own.
fn code(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter(|line| {
        let line = line.trim_start();
        let is_comment = line.starts_with("//") && !line.starts_with("///") && !line.starts_with("//!");
        !line.is_empty() && !is_comment
    })
}

/// The folders of the crates of this repository, by name.
fn folders() -> BTreeMap<String, String> {
    let manifest = here("Cargo.toml");
    let members = manifest.split_once("members = [").map_or("", |(_, rest)| rest);
    let members = members.split("\n]").next().unwrap_or_default().lines();
    members
        .filter_map(|line| {
            let folder = line.trim().strip_prefix('"')?.split('"').next()?;
            let manifest = here(&format!("{folder}/Cargo.toml"));
            Some((name(&manifest).to_string(), folder.to_string()))
        })
        .collect()
}

/// The folders of those packages of a lock file that are of this repository.
fn of<'a>(folders: &'a BTreeMap<String, String>, blocks: &'a BTreeSet<&str>) -> impl Iterator<Item = &'a str> {
    let own = blocks.iter().filter_map(|block| folders.get(name(block)));
    own.map(String::as_str)
}

/// The value of the first `name` in a manifest or in a block of a lock file.
fn name(text: &str) -> &str {
    let value = text.split_once("name = \"").map_or("", |(_, rest)| rest);
    value.split('"').next().unwrap_or_default()
}

/// Makes a failure of each step that was skipped although [`DEMANDED`] names it.
pub fn demand(outcomes: &mut [Outcome]) {
    let demanded = std::env::var(DEMANDED).unwrap_or_default();
    fail_if_skipped(outcomes, &demanded);
}

/// The environment variable that names steps which must not be skipped, with spaces between. Only the weekly run sets it: on other machines
/// a step that lacks a program or a toolchain is skipped.
const DEMANDED: &str = "OSIER_CI_DEMANDED";

fn fail_if_skipped(outcomes: &mut [Outcome], demanded: &str) {
    for name in demanded.split_whitespace() {
        let outcome = outcomes.iter_mut().find(|outcome| outcome.name == name);
        let Some(outcome) = outcome.filter(|outcome| outcome.passed + outcome.failed == 0) else {
            continue;
        };
        outcome.failed = 1;
        let why = outcome.skipped.join("; ");
        outcome
            .complaints
            .push(format!("skipped, and {DEMANDED} names it: {why}"));
    }
}

static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// Whether steps leave out parts that a change hardly ever breaks. A step that a person names does all that it can.
pub fn is_short() -> bool {
    IS_SHORT.load(Relaxed)
}

/// The environment variable that names the commit to compare with.
const BASE: &str = "OSIER_CI_BASE";

fn base() -> Option<String> {
    let base = std::env::var(BASE).ok().or_else(usual_base)?;
    let mut known = Command::new("git");
    known.args(["rev-parse", "--quiet", "--verify", &format!("{base}^{{commit}}")]);
    step::succeeds(&mut known).then_some(base)
}

/// The base where [`BASE`] names none.
fn usual_base() -> Option<String> {
    landed().or_else(earlier_commit)
}

/// The commit that has landed last, if the current one is above it.
fn landed() -> Option<String> {
    named(&here(LANDED)).filter(|commit| is_below(commit, "HEAD"))
}

/// The commit in the text of [`LANDED`].
fn named(text: &str) -> Option<String> {
    let line = text.lines().find(|line| !line.starts_with('#'))?;
    Some(line.trim().to_string())
}

/// Whether a commit is another one, or an ancestor of it.
fn is_below(commit: &str, other: &str) -> bool {
    step::succeeds(Command::new("git").args(["merge-base", "--is-ancestor", commit, other]))
}

fn earlier_commit() -> Option<String> {
    let time = step::output(Command::new("git").args(["log", "-1", "--format=%ct"]));
    let before: u64 = time.trim().parse::<u64>().ok()?.checked_sub(EARLIER.as_secs())?;
    let before = format!("--before={before}");
    let mut git = Command::new("git");
    git.args(["log", "-1", "--first-parent", "--format=%h", &before]);
    let hash = step::output(&mut git).trim().to_string();
    (!hash.is_empty()).then_some(hash)
}

/// The packages that `packages` depend on, directly or not, as a lock file has them.
fn below<'a>(lock: &'a str, packages: &[&'a str]) -> BTreeSet<&'a str> {
    // A dependency is named `name`, or `name version` where the file has several versions.
    let mut blocks: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for block in lock.split("[[package]]\n").skip(1) {
        let name = block.split('"').nth(1).unwrap_or_default();
        blocks.entry(name).or_default().push(block);
    }
    let (mut seen, mut open) = (BTreeSet::new(), packages.to_vec());
    while let Some(name) = open.pop() {
        for block in blocks.get(name).into_iter().flatten() {
            if seen.insert(block.trim_end()) {
                let dependencies = block.split_once("dependencies = [").map_or("", |(_, list)| list);
                let quoted = dependencies.split('"').skip(1).step_by(2);
                open.extend(quoted.filter_map(|dependency| dependency.split(' ').next()));
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::STEPS;
    use std::path::{Path, PathBuf};

    #[test]
    fn each_rule_is_about_a_step_and_inputs_that_exist() {
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
        let folders = folders();
        for left_out in RULES.iter().map(|rule| &rule.step).chain(WEEKLY).chain(&MIXING) {
            let of_ci = ["clippy-mixing", "rustdoc"];
            let is_known = STEPS.iter().any(|step| step.name == *left_out) || of_ci.contains(left_out);
            assert!(is_known, "{left_out}");
        }
        let of_mixing = MEMBERS.iter().flat_map(|(_, paths)| *paths).chain(MIXED).chain(&LISTS);
        let paths = RULES.iter().chain(TESTED).flat_map(|rule| rule.paths).chain(of_mixing);
        assert_eq!(paths.copied().find(|path| !root().join(path).exists()), None);
        for rule in RULES.iter().chain(TESTED) {
            for package in rule.packages {
                assert!(folders.contains_key(*package), "{package}");
                assert!(below(&lock, &[package]).iter().any(|block| name(block) == *package));
            }
        }
    }

    /// The files that the sources in a folder take from elsewhere by name.
    fn taken(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                taken(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for before in ["#[path = \"", "include_str!(\"", "include_bytes!(\"", "include!(\""] {
                    let names = text.split(before).skip(1).filter_map(|rest| rest.split('"').next());
                    found.extend(names.filter_map(|name| folder.join(name).canonicalize().ok()));
                }
            }
        }
    }

    #[test]
    fn a_file_that_an_input_takes_from_elsewhere_is_an_input() {
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
        let (folders, root) = (folders(), root().canonicalize().unwrap());
        let mut taken_by_all = 0;
        let members = MEMBERS.iter().map(|(name, paths)| rule(name, &[], paths));
        for Rule { step, packages, paths } in members.chain(RULES.iter().copied()) {
            let blocks = below(&lock, packages);
            let inputs: Vec<PathBuf> = of(&folders, &blocks)
                .chain(paths.iter().copied())
                .map(|path| root.join(path))
                .collect();
            for folder in paths.iter().map(|path| root.join(path)).filter(|path| path.is_dir()) {
                let mut found = vec![];
                taken(&folder, &mut found);
                taken_by_all += found.len();
                for file in found {
                    assert!(inputs.iter().any(|input| file.starts_with(input)), "{step}: {file:?}");
                }
            }
        }
        assert!(taken_by_all > 10, "{taken_by_all}");
    }

    #[test]
    fn each_crate_below_a_crate_of_mixing_is_its_input() {
        let lock = here("mixing/Cargo.lock");
        let mut known = 0;
        for (member, paths) in MEMBERS {
            let blocks = below(&lock, &[member]);
            for name in blocks.iter().map(|block| name(block)) {
                let example = name.replace("osier-", "examples/");
                let folders = [format!("integrations/{name}"), example, "mixing/peers".into()];
                for folder in folders {
                    if self::name(&here(&format!("{folder}/Cargo.toml"))) == name {
                        assert!(paths.iter().any(|path| folder.starts_with(path)), "{member}: {folder}");
                        known += 1;
                    }
                }
            }
        }
        assert!(known > MEMBERS.len(), "{known}");
    }

    #[test]
    fn a_comment_on_a_line_of_its_own_is_no_code() {
        let before = "//! A module.\n\nfn a() {} // one\n";
        assert!(code(before).eq(code("//! A module.\n// It is.\nfn a() {} // one\n\n")));
        // Documentation does not fit every place.
        assert!(!code(before).eq(code("fn a() {} // one\n//! A module.\n")));
        assert!(!code(before).eq(code("//! A module.\n\nfn a() {} // two\n")));
        assert!(!code(before).eq(code("//! A module.\n\n#[test]\nfn a() {} // one\n")));
    }

    #[test]
    fn a_file_that_has_changed_since_the_first_commit_is_found() {
        let first = step::output(git("rev-list").args(["--max-parents=0", "HEAD"]));
        let Some(first) = first.lines().next() else {
            println!("skipped: no history");
            return;
        };
        if step::output(git("rev-parse").arg("HEAD")).trim() == first {
            println!("skipped: a shallow clone");
            return;
        }
        assert!(!are_unchanged(first, &["Cargo.toml"]) && !have_the_same_code(first, &["Cargo.toml"]));
        assert!(!have_the_same_code(first, &["xtask/src/unchanged/mod.rs"]));
    }

    #[test]
    fn the_commit_that_has_landed_is_the_base() {
        assert_eq!(named("# The last.\nabc\n").as_deref(), Some("abc"));
        assert_eq!(named("# None.\n"), None);
        match landed() {
            Some(landed) => assert_eq!(usual_base(), Some(landed)),
            None => println!("skipped: git does not know the commit in {LANDED}"),
        }
    }

    #[test]
    fn a_skipped_step_has_failed_only_if_it_is_demanded() {
        let mut outcomes = [
            Outcome::skipped("fuzz", "no nightly toolchain".into()),
            Outcome::skipped("valgrind", "not installed".into()),
            Outcome::one_check("miri", true, 3, "tests", Duration::ZERO),
        ];
        fail_if_skipped(&mut outcomes, "fuzz miri");
        assert_eq!(outcomes.each_ref().map(|outcome| outcome.failed), [1, 0, 0]);
        assert_eq!(
            outcomes[0].complaints,
            ["skipped, and OSIER_CI_DEMANDED names it: no nightly toolchain"]
        );
    }

    #[test]
    fn the_weekly_run_demands_steps_that_exist() {
        let weekly = std::fs::read_to_string(root().join(".github/workflows/weekly.yml")).unwrap();
        let (_, demanded) = weekly.split_once(&format!("{DEMANDED}: ")).unwrap();
        let mut names = demanded.lines().next().unwrap().split_whitespace();
        assert!(names.clone().any(|name| name == "fuzz"), "{demanded}");
        assert_eq!(names.find(|name| STEPS.iter().all(|step| step.name != *name)), None);
    }

    #[test]
    fn the_folders_below_a_crate_are_its_inputs() {
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
        let folders = folders();
        let below = |package| {
            let blocks = below(&lock, &[package]);
            of(&folders, &blocks).map(String::from).collect::<BTreeSet<_>>()
        };
        let (web, poll) = (below("osier-web"), below("osier-poll"));
        for folder in [
            "web", "http", "runtime", "tls", "coro", "queue", "poll", "macros", "testkit",
        ] {
            assert!(web.contains(folder), "{folder}");
        }
        assert!(
            poll.contains("poll") && !poll.contains("web") && !web.contains("server"),
            "{poll:?}"
        );
    }

    #[test]
    fn tests_are_no_input_of_a_step_that_builds_libraries() {
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
        let folders = folders();
        let has = |step: &str, path: &str| {
            let rule = RULES.iter().find(|rule| rule.step == step).unwrap();
            let paths = paths(rule, of(&folders, &below(&lock, rule.packages)));
            paths.iter().any(|known| known == path)
        };
        assert!(has("corpus", "testkit") && !has("corpus", ":(exclude)http/tests"));
        for step in LIBRARIES {
            assert!(!has(step, "testkit"), "{step}");
        }
        assert!(has("features", "web") && has("features", ":(exclude)runtime/tests"));
        // Git reads such paths.
        let all = ["testkit", ":(exclude)testkit/src"];
        let tracked = step::output(git("ls-files").arg("--").args(all));
        assert!(
            tracked.contains("testkit/Cargo.toml") && !tracked.contains(".rs"),
            "{tracked}"
        );
    }

    #[test]
    fn a_crate_below_counts_and_one_beside_does_not() {
        let lock = |deep: &str, beside: &str| {
            format!(
                "version = 4\n\n[[package]]\nname = \"own\"\nversion = \"1.0.0\"\ndependencies = [\n \"middle 1.0.0\",\n]\n\n\
                 [[package]]\nname = \"middle\"\nversion = \"1.0.0\"\ndependencies = [\n \"deep\",\n]\n\n\
                 [[package]]\nname = \"deep\"\nversion = \"{deep}\"\n\n[[package]]\nname = \"beside\"\nversion = \"{beside}\"\n"
            )
        };
        let (first, deep, beside) = (lock("1.0.0", "1.0.0"), lock("1.0.1", "1.0.0"), lock("1.0.0", "1.0.1"));
        assert_eq!(below(&first, &["own"]).len(), 3);
        assert_ne!(below(&first, &["own"]), below(&deep, &["own"]));
        assert_eq!(below(&first, &["middle"]), below(&beside, &["middle"]));
    }
}
