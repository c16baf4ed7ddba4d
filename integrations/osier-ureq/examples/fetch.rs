//! Fetches pages at the same time, a fiber for each: `cargo run --example fetch -- https://example.org/ ...`.

use osier_ureq::ureq;

fn main() {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let agent = osier_ureq::agent();
    osier::run(|| {
        osier::scope(|scope| {
            for url in &urls {
                let agent = agent.clone();
                scope.spawn(move || {
                    let fetched = agent.get(url).call();
                    match fetched.and_then(|mut response| response.body_mut().read_to_vec()) {
                        Ok(body) => println!("{url}: {} bytes", body.len()),
                        Err(ureq::Error::StatusCode(status)) => println!("{url}: status {status}"),
                        Err(error) => println!("{url}: {error}"),
                    }
                });
            }
        });
    });
}
