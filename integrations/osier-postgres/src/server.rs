//! Connecting to a server: the first host of the configuration that answers.

use std::io;

use osier::net::{TcpStream, UnixStream};
use rustix::net::sockopt;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

use crate::error::Error;

/// The worker that runs the task that reads what the server sends.
#[derive(Clone, Copy)]
pub(crate) enum Reader {
    /// Any worker.
    OfAnyWorker,
    /// The worker of the fiber that connects.
    OfThisWorker,
}

/// The task that reads what the server sends. It ends when its client is dropped and no call runs any more. Its cancellation closes the
/// socket.
pub(crate) type Reading = osier::Task<Result<(), tokio_postgres::Error>>;

impl Reader {
    fn spawn(self, connection: impl Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static) -> Reading {
        match self {
            Reader::OfAnyWorker => osier::spawn_future(connection),
            Reader::OfThisWorker => osier::spawn_future_local(connection),
        }
    }
}

/// Connects to the first host that answers.
pub(crate) fn connect(config: &Config, reader: Reader) -> Result<(Client, Reading), Error> {
    let connected = each_host(config, |stream| {
        let connecting = async {
            match stream {
                Stream::Tcp(stream) => {
                    let (client, connection) = config.connect_raw(stream.compat(), NoTls).await?;
                    Ok((client, reader.spawn(connection)))
                }
                Stream::Unix(stream) => {
                    let (client, connection) = config.connect_raw(stream.compat(), NoTls).await?;
                    Ok((client, reader.spawn(connection)))
                }
            }
        };
        osier::block_on(connecting)
    });
    connected?.map_err(|error: tokio_postgres::Error| error.into())
}

/// Asks the server to cancel what the client's backend runs. Not promised to come in time.
pub(crate) fn cancel(config: &Config, client: &Client) {
    let token = client.cancel_token();
    // An error means that the server is gone, and its queries with it.
    let _ = each_host(config, |stream| {
        osier::block_on(async {
            match stream {
                Stream::Tcp(stream) => token.cancel_query_raw(stream.compat(), NoTls).await,
                Stream::Unix(stream) => token.cancel_query_raw(stream.compat(), NoTls).await,
            }
        })
    });
}

/// Gives `with` a stream to the first host that takes connections, for as long as the configuration allows.
fn each_host<T>(config: &Config, with: impl Fn(Stream) -> T) -> Result<T, Error> {
    let mut last = Error::connect("no host".into(), io::ErrorKind::InvalidInput.into());
    for (number, host) in config.get_hosts().iter().enumerate() {
        let ports = config.get_ports();
        let port = ports.get(number).or(ports.first()).copied().unwrap_or(5432);
        let connected = match config.get_connect_timeout() {
            None => Stream::connect(host, port, config).map(&with),
            Some(limit) => match osier::timeout(*limit, || Stream::connect(host, port, config).map(&with)) {
                Ok(connected) => connected,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            },
        };
        match connected {
            Ok(value) => return Ok(value),
            Err(error) => last = Error::connect(name(host, port), error),
        }
    }
    Err(last)
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn connect(host: &Host, port: u16, config: &Config) -> io::Result<Stream> {
        match host {
            Host::Tcp(host) => {
                let stream = TcpStream::connect((host.as_str(), port))?;
                stream.set_nodelay(true)?;
                notice_cut(&stream, config)?;
                Ok(Stream::Tcp(stream))
            }
            Host::Unix(folder) => UnixStream::connect(folder.join(format!(".s.PGSQL.{port}"))).map(Stream::Unix),
        }
    }
}

/// Makes the kernel notice that the network to the server is cut, as the configuration says.
fn notice_cut(stream: &TcpStream, config: &Config) -> io::Result<()> {
    if config.get_keepalives() {
        sockopt::set_tcp_keepidle(stream, config.get_keepalives_idle())?;
        if let Some(interval) = config.get_keepalives_interval() {
            sockopt::set_tcp_keepintvl(stream, interval)?;
        }
        if let Some(probes) = config.get_keepalives_retries() {
            sockopt::set_tcp_keepcnt(stream, probes)?;
        }
        sockopt::set_socket_keepalive(stream, true)?;
    }
    #[cfg(target_os = "linux")]
    if let Some(limit) = config.get_tcp_user_timeout() {
        let millis = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(stream, millis)?;
    }
    Ok(())
}

fn name(host: &Host, port: u16) -> String {
    match host {
        Host::Tcp(host) => format!("{host}:{port}"),
        Host::Unix(folder) => folder.join(format!(".s.PGSQL.{port}")).display().to_string(),
    }
}
