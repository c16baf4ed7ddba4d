//! One sample of a server: its metrics, and its fibers by the place where they wait.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant, SystemTime};

/// How long the server may take for a page.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest page, in bytes.
const LONGEST: u64 = 256 << 20;

/// The labels of a sample, by name.
pub type Labels = Vec<(String, String)>;

pub struct Scrape {
    pub at: Instant,
    /// The seconds since the start of the process, if the page has them.
    pub uptime: Option<f64>,
    samples: HashMap<String, Vec<(Labels, f64)>>,
    /// The page of the fibers.
    pub fibers: String,
}

impl Scrape {
    /// Asks the admin listener.
    ///
    /// # Errors
    /// One line: nothing answers at the address, or not an admin listener of Osier.
    pub fn take(address: &str) -> Result<Scrape, String> {
        let metrics = page(address, "/metrics")?;
        let fibers = page(address, "/fibers")?;
        let mut scrape = Scrape {
            at: Instant::now(),
            uptime: None,
            samples: samples(&metrics),
            fibers,
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let started = scrape.value("process_start_time_seconds", &[]);
        scrape.uptime = started
            .zip(now.ok())
            .map(|(started, now)| (now.as_secs_f64() - started).max(1e-3));
        match scrape.samples.contains_key("osier_build_info") {
            true => Ok(scrape),
            false => Err(format!("{address} has metrics, but not those of Osier")),
        }
    }

    /// The samples of a name.
    pub fn all(&self, name: &str) -> &[(Labels, f64)] {
        self.samples.get(name).map_or(&[], Vec::as_slice)
    }

    /// The sum of the samples of a name that have these labels. `None` if there are none.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fitting = self.all(name).iter().filter(|(known, _)| has(known, labels));
        fitting.map(|(_, value)| *value).reduce(|sum, value| sum + value)
    }
}

/// Whether these are among the labels.
fn has(known: &Labels, labels: &[(&str, &str)]) -> bool {
    labels
        .iter()
        .all(|(name, value)| known.iter().any(|(known, of)| known == name && of == value))
}

/// The value of a label.
pub fn label<'l>(labels: &'l Labels, name: &str) -> &'l str {
    labels
        .iter()
        .find(|(known, _)| known == name)
        .map_or("", |(_, value)| value)
}

fn page(address: &str, path: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot ask {address} for {path}: {error}");
    let mut addresses = address.to_socket_addrs().map_err(failed)?;
    let first = addresses
        .next()
        .ok_or_else(|| format!("'{address}' is not an address: write HOST:PORT"))?;
    let mut stream = TcpStream::connect_timeout(&first, PATIENCE).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut response = Vec::new();
    stream.take(LONGEST).read_to_end(&mut response).map_err(failed)?;
    let response = String::from_utf8_lossy(&response);
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        Some(status) => Err(format!(
            "{address} answers {path} with {status}: is it the address of [admin]?"
        )),
        None => Err(format!("{address} does not speak HTTP")),
    }
}

/// The samples of a page in Prometheus' text format, by name.
fn samples(page: &str) -> HashMap<String, Vec<(Labels, f64)>> {
    let mut samples: HashMap<String, Vec<_>> = HashMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        if let Ok(value) = value.parse() {
            let labels = parse_labels(labels.strip_suffix('}').unwrap_or(labels));
            samples.entry(name.to_owned()).or_default().push((labels, value));
        }
    }
    samples
}

fn parse_labels(mut text: &str) -> Labels {
    let mut labels = Labels::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        let (mut value, mut chars) = (String::new(), rest.char_indices());
        let mut end = rest.len();
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => {
                    end = at + 1;
                    break;
                }
                '\\' => value.extend(chars.next().map(|(_, char)| if char == 'n' { '\n' } else { char })),
                char => value.push(char),
            }
        }
        labels.push((name.trim_start_matches(',').to_owned(), value));
        text = &rest[end..];
    }
    labels
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A sample without a server, for tests.
    pub fn scrape(metrics: &str, fibers: &str) -> Scrape {
        Scrape {
            at: Instant::now(),
            uptime: Some(10.0),
            samples: samples(metrics),
            fibers: fibers.to_owned(),
        }
    }

    #[test]
    fn samples_are_read_with_their_labels() {
        let page = "# HELP a b\n# TYPE a counter\na{x=\"1\",y=\"q\\\"\\\\\\nz\"} 3\na{x=\"2\",y=\"\"} 4.5\nb 7\n";
        let scrape = scrape(page, "");
        assert_eq!(scrape.value("a", &[]), Some(7.5));
        assert_eq!(scrape.value("a", &[("x", "1"), ("y", "q\"\\\nz")]), Some(3.0));
        assert_eq!(
            (scrape.value("a", &[("x", "3")]), scrape.value("b", &[])),
            (None, Some(7.0))
        );
        assert_eq!(label(&scrape.all("a")[1].0, "x"), "2");
    }
}
