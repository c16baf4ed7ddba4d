//! Asks a server for its metrics and its fibers, and parses the metrics.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime};

use osier::net::TcpStream;

/// How long the server may take for a page.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest page, in bytes.
const LONGEST: usize = 256 << 20;

/// The labels of a sample, by name.
pub type Labels = Vec<(String, String)>;

/// The numbers of a server at one moment.
pub struct Scrape {
    pub at: Instant,
    /// The seconds since the start of the process, if the page has them.
    pub uptime: Option<f64>,
    samples: HashMap<String, Vec<(Labels, f64)>>,
    /// The page of the fibers. One line if the server is too busy for it: see [`Failed::Busy`].
    pub fibers: Result<String, String>,
}

/// Why there is no page: one line.
#[derive(Debug, PartialEq)]
pub enum Failed {
    /// The server answers 503: its memory is short, or it makes this page for another client.
    Busy(String),
    /// Nothing answers at the address, or not an admin listener of Osier.
    Other(String),
}

impl Display for Failed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Busy(why) | Failed::Other(why) => f.write_str(why),
        }
    }
}

impl Scrape {
    /// Asks the admin listener.
    ///
    /// # Errors
    /// Why there are no metrics. A server that is too busy for the other page is no error.
    pub fn take(address: &str) -> Result<Scrape, Failed> {
        let metrics = page(address, "/metrics")?;
        let fibers = match page(address, "/fibers") {
            Ok(page) => Ok(page),
            Err(Failed::Busy(why)) => Err(why),
            Err(failed) => return Err(failed),
        };
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
            false => Err(Failed::Other(format!("{address} has metrics, but not those of Osier"))),
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

/// Whether `labels` are among the known ones.
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

/// Asks for a page, and checks the status.
fn page(address: &str, path: &str) -> Result<String, Failed> {
    let failed = |error: io::Error| Failed::Other(format!("cannot ask {address} for {path}: {error}"));
    let response = exchange(address, path).map_err(failed)?;
    let response = String::from_utf8_lossy(&response);
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    let status = head.strip_prefix("HTTP/").and_then(|head| head.split(' ').nth(1));
    match status {
        Some("200") => Ok(body.to_owned()),
        Some("503") => {
            let why = body.lines().next().unwrap_or_default();
            Err(Failed::Busy(format!("{address} answers {path} with 503: {why}")))
        }
        Some(status) => Err(Failed::Other(format!(
            "{address} answers {path} with {status}: is it the address of [admin]?"
        ))),
        None => Err(Failed::Other(format!(
            "{address} does not speak HTTP: is it the address of [admin]?"
        ))),
    }
}

/// Sends a request and returns the response. All addresses of a name are tried.
fn exchange(address: &str, path: &str) -> io::Result<Vec<u8>> {
    if let Some(socket) = address.strip_prefix("unix:") {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        return ask(stream, path);
    }
    let stream = TcpStream::connect_within(address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    ask(stream, path)
}

/// Sends a request on a connection and returns the response.
fn ask(mut stream: impl Read + Write, path: &str) -> io::Result<Vec<u8>> {
    let asked = Instant::now();
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let (mut response, mut chunk) = (Vec::new(), vec![0; 65_536]);
    loop {
        let read = stream.read(&mut chunk).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            _ => error,
        })?;
        response.extend_from_slice(&chunk[..read]);
        if read == 0 || response.len() > LONGEST {
            return Ok(response);
        }
        if asked.elapsed() > PATIENCE {
            return Err(ErrorKind::TimedOut.into());
        }
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
    use std::net::TcpListener;

    /// A sample without a server, for tests.
    pub fn scrape(metrics: &str, fibers: &str) -> Scrape {
        Scrape {
            at: Instant::now(),
            uptime: Some(10.0),
            samples: samples(metrics),
            fibers: Ok(fibers.to_owned()),
        }
    }

    /// A server that answers each of two connections, in their order. Returns what is scraped from it.
    fn scraped(answers: [(&'static str, &'static str); 2]) -> Result<Scrape, Failed> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let read = stream.read(&mut [0; 1024]).unwrap();
                assert!(read > 0);
                stream
                    .write_all(format!("HTTP/1.1 {status} X\r\n\r\n{body}").as_bytes())
                    .unwrap();
            }
        });
        Scrape::take(&address)
    }

    #[test]
    fn a_server_that_is_too_busy_for_a_page_is_still_asked() {
        let metrics = "osier_build_info{version=\"1\"} 1\n";
        let scrape = scraped([("200", metrics), ("503", "another dump runs\n")]).unwrap();
        let why = scrape.fibers.unwrap_err();
        assert!(why.ends_with(" answers /fibers with 503: another dump runs"), "{why}");
        let failed = scraped([("503", "overloaded\n"), ("200", "")]).err().unwrap();
        assert!(
            matches!(&failed, Failed::Busy(why) if why.ends_with(" answers /metrics with 503: overloaded")),
            "{failed}"
        );
        let failed = scraped([("200", metrics), ("404", "")]).err().unwrap();
        assert!(
            matches!(&failed, Failed::Other(why) if why.contains(" answers /fibers with 404: is it ")),
            "{failed}"
        );
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
