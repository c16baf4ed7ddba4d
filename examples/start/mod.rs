//! The `main` of the web examples: it reads the address from the command line, prints a line once the server listens or why it
//! fails, and shuts down gracefully at Ctrl-C.

use std::process::ExitCode;
use std::{env, io};

use osier::signal::{Signal, Signals};
use osier_web::{Router, Server};

/// Serves the router that `build` makes from the arguments after the address. The first argument is the address; without it
/// the address is 127.0.0.1:8080.
pub fn serve(name: &str, build: impl FnOnce(&[String]) -> io::Result<Router> + Send) -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let addr = args.first().map_or("127.0.0.1:8080", String::as_str);
    let run = || {
        let router = build(args.get(1..).unwrap_or_default())?;
        let listening = Server::new(router).bind(addr)?;
        let (signals, stop) = (Signals::new([Signal::INT, Signal::TERM])?, listening.handle());
        let _ending = osier::spawn(move || signals.recv().map(|_| stop.shutdown()));
        println!("{name} on http://{}/", listening.local_addr());
        listening.run();
        io::Result::Ok(())
    };
    match osier::run(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::from(2)
        }
    }
}
