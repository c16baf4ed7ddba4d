//! The repository's documents and guide, embedded in the binary, and the page that lists them.
//!
//! The folder `documents` of this crate links to them, because a package can only contain files of its own folder.

/// A document: its path below `/docs/`, a description, and its text.
pub struct Doc {
    pub path: &'static str,
    about: &'static str,
    pub text: &'static str,
}

/// A document of the repository, under its file name.
macro_rules! doc {
    ($path:expr, $file:expr, $about:literal) => {
        Doc {
            path: $path,
            about: $about,
            text: include_str!(concat!("../../documents/", $file)),
        }
    };
}

/// A chapter of the guide.
macro_rules! chapter {
    ($name:literal, $about:literal) => {
        doc!(
            concat!("guide/", $name, ".md"),
            concat!("docs/guide/src/", $name, ".md"),
            $about
        )
    };
}

/// The chapters, in reading order.
pub const GUIDE: [Doc; 26] = [
    chapter!("introduction", "what Osier is, and how to set up a project"),
    chapter!("first-server", "a server of twenty lines"),
    chapter!("waiting", "fibers, and which calls suspend them"),
    chapter!("waiting-on-many", "the first of several things"),
    chapter!("cancellation", "how to end a fiber, and what must not be ended"),
    chapter!("timeouts", "how long something may take"),
    chapter!("sharing-state", "which lock, and state of one fiber"),
    chapter!("channels-and-locks", "queues, permits, signals"),
    chapter!("futures", "futures, tasks, other runtimes"),
    chapter!("blocking-libraries", "databases, hashes, C libraries"),
    chapter!("files-processes-signals", "files, child processes, a graceful shutdown"),
    chapter!("embedding", "a runtime in the loop of another program"),
    chapter!("own-protocol", "one protocol for fibers, plain threads and futures"),
    chapter!("routing", "handlers, paths, shared state"),
    chapter!("forms-and-json", "requests by type, uploads"),
    chapter!("websockets", "an echo, a room, many idle connections"),
    chapter!("server-sent-events", "streams to a browser"),
    chapter!("protocols", "TLS, HTTP/2 and what runs over them"),
    chapter!("middleware", "functions around handlers"),
    chapter!("sessions", "values of one browser, sealed cookies"),
    chapter!("tests", "how to test without a port"),
    chapter!("simulation", "time, network and faults from one seed"),
    chapter!("deployment", "the server under systemd, a program of your own"),
    chapter!("debugging", "dumps, the watchdog, metrics"),
    chapter!("why-slow", "where the time of a request goes"),
    chapter!("traps", "what goes wrong, and what to do instead"),
];

/// The other documents.
pub const DOCS: [Doc; 10] = [
    doc!("README.md", "README.md", "what Osier is, and how to start"),
    doc!(
        "install.md",
        "docs/install.md",
        "packages, and the service that they bring"
    ),
    doc!(
        "configuration.md",
        "docs/configuration.md",
        "every key of a configuration file"
    ),
    doc!("rewrite.md", "docs/rewrite.md", "the rewrite rules of a site"),
    doc!("metrics.md", "docs/metrics.md", "every metric, a dashboard, alerts"),
    doc!(
        "mixing.md",
        "docs/mixing.md",
        "Osier together with other libraries and other runtimes"
    ),
    doc!(
        "ARCHITECTURE.md",
        "ARCHITECTURE.md",
        "the crates, the life of one request, the invariants"
    ),
    doc!(
        "CONTRIBUTING.md",
        "CONTRIBUTING.md",
        "how to build, test and change Osier; the glossary"
    ),
    doc!("SECURITY.md", "SECURITY.md", "how to report a vulnerability"),
    doc!("CHANGELOG.md", "CHANGELOG.md", "what has changed"),
];

/// The list of documents, as HTML without the page's frame.
pub fn table() -> String {
    let list = |docs: &[Doc]| -> String {
        let entry = |doc: &Doc| {
            let Doc { path, about, .. } = doc;
            let name = path.strip_prefix("guide/").unwrap_or(path);
            format!("<dt><a href=\"/docs/{path}\">{name}</a></dt><dd>{about}</dd>\n")
        };
        docs.iter().map(entry).collect()
    };
    format!(
        "<div class=\"page\">\n<h1>Docs</h1>\n<p class=\"lead\">The texts of the version that is running: \
         {}.</p>\n<h2>Guide</h2>\n<dl class=\"docs\">\n{}</dl>\n<h2>Documents</h2>\n<dl class=\"docs\">\n{}</dl>\n</div>",
        env!("CARGO_PKG_VERSION"),
        list(&GUIDE),
        list(&DOCS)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_is_whole() {
        let summary = include_str!("../../documents/docs/guide/src/SUMMARY.md");
        let chapters: Vec<String> = summary
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'))
            .map(|(file, _)| format!("guide/{file}"))
            .collect();
        let shown: Vec<&str> = GUIDE.iter().map(|doc| doc.path).collect();
        assert_eq!(shown, chapters);
    }

    #[test]
    fn every_text_begins_with_its_title() {
        for doc in GUIDE.iter().chain(&DOCS) {
            assert!(doc.text.starts_with("# "), "{}", doc.path);
        }
    }
}
