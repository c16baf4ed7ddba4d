//! The settings: folders and the addresses of ports from the command line, the database from the environment.

use std::io;
use std::num::NonZero;
use std::path::PathBuf;

/// A port by the protocol that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// HTTP/1.1 and HTTP/2 in the clear.
    Http,
    /// HTTP/1.1 over TLS.
    Https,
    /// HTTP/2 in the clear.
    H2c,
    /// HTTP/2 over TLS.
    H2,
}

/// The ports of the benchmark.
const PORTS: [(Port, &str); 4] = [
    (Port::Http, "0.0.0.0:8080"),
    (Port::Https, "0.0.0.0:8081"),
    (Port::H2c, "0.0.0.0:8082"),
    (Port::H2, "0.0.0.0:8443"),
];

/// Most connections to the database if the environment does not say.
const CONNECTIONS: usize = 16;

pub struct Settings {
    pub data: PathBuf,
    pub certs: PathBuf,
    /// The URL of the database.
    pub database: Option<String>,
    /// Most connections to the database.
    pub connections: usize,
    listen: Vec<(Port, String)>,
}

impl Settings {
    /// Reads the arguments and the environment of the program.
    pub fn of(
        mut args: impl Iterator<Item = String>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> io::Result<Settings> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let mut settings = Settings {
            data: "/data".into(),
            certs: "/certs".into(),
            database: variable("DATABASE_URL"),
            connections: CONNECTIONS,
            listen: vec![],
        };
        if let Some(most) = variable("DATABASE_MAX_CONN") {
            let most = most.parse::<NonZero<usize>>();
            settings.connections = most
                .map_err(|error| invalid(format!("DATABASE_MAX_CONN: {error}")))?
                .get();
        }
        while let Some(arg) = args.next() {
            let value = args.next().ok_or_else(|| invalid(format!("{arg} needs a value")))?;
            match arg.as_str() {
                "--data" => settings.data = value.into(),
                "--certs" => settings.certs = value.into(),
                "--http" => settings.listen.push((Port::Http, value)),
                "--https" => settings.listen.push((Port::Https, value)),
                "--h2c" => settings.listen.push((Port::H2c, value)),
                "--h2" => settings.listen.push((Port::H2, value)),
                unknown => return Err(invalid(format!("unknown argument {unknown:?}"))),
            }
        }
        Ok(settings)
    }

    /// The ports to listen on: those of the command line, or else those of the benchmark.
    pub fn ports(&self) -> impl Iterator<Item = (Port, &str)> {
        let has_certs = self.certs.join("server.crt").exists();
        let defaults = PORTS.into_iter().filter(move |(port, _)| {
            let is_secure = matches!(port, Port::Https | Port::H2);
            self.listen.is_empty() && (has_certs || !is_secure)
        });
        let given = self.listen.iter().map(|(port, addr)| (*port, addr.as_str()));
        given.chain(defaults)
    }
}
