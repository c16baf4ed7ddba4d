//! Compiles the programs of `README.md` and of the guide (`docs/guide/`) as doc tests, and runs those that end by themselves.
#![forbid(unsafe_code)]

/// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// One item for each chapter.
#[cfg(doctest)]
macro_rules! chapters {
    ($($name:ident: $file:literal,)*) => {
        $(#[doc = include_str!(concat!("../docs/guide/src/", $file))] struct $name;)*
    };
}

#[cfg(doctest)]
chapters! {
    Introduction: "introduction.md",
    FirstServer: "first-server.md",
    Waiting: "waiting.md",
    WaitingOnMany: "waiting-on-many.md",
    Cancellation: "cancellation.md",
    Timeouts: "timeouts.md",
    SharingState: "sharing-state.md",
    ChannelsAndLocks: "channels-and-locks.md",
    Futures: "futures.md",
    BlockingLibraries: "blocking-libraries.md",
    FilesProcessesSignals: "files-processes-signals.md",
    Embedding: "embedding.md",
    OwnProtocol: "own-protocol.md",
    Routing: "routing.md",
    FormsAndJson: "forms-and-json.md",
    Websockets: "websockets.md",
    ServerSentEvents: "server-sent-events.md",
    Protocols: "protocols.md",
    Middleware: "middleware.md",
    Sessions: "sessions.md",
    Tests: "tests.md",
    Simulation: "simulation.md",
    Deployment: "deployment.md",
    Debugging: "debugging.md",
    WhySlow: "why-slow.md",
    Traps: "traps.md",
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_chapter_is_a_doc_test() {
        let summary = include_str!("../docs/guide/src/SUMMARY.md");
        let chapters: Vec<&str> = summary
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'))
            .map(|(file, _)| file)
            .collect();
        assert!(chapters.len() >= 20, "{chapters:?}");
        for file in chapters {
            assert!(include_str!("lib.rs").contains(&format!(": \"{file}\",")), "{file}");
        }
    }
}
