//! Osier: a reverse proxy to one backend. Arguments: PORT BACKEND_PORT [WORKERS]; without WORKERS, one worker.
#![forbid(unsafe_code)]

use osier_web::proxy::Proxy;
use osier_web::serve;
use osier_web::upstream::Upstream;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut ports = std::env::args().skip(1).map(|text| text.parse::<u16>());
    let (port, backend) = (ports.next(), ports.next());
    let workers = ports.next().transpose()?.unwrap_or(1);
    let (Some(Ok(port)), Some(Ok(backend))) = (port, backend) else {
        return Err("arguments: PORT BACKEND_PORT [WORKERS]".into());
    };
    let address = format!("127.0.0.1:{backend}").parse()?;
    let upstream = Upstream::builder("backend").backend(address).keep(64).build()?;
    let proxy = Proxy::new(upstream);
    let runtime = osier::Runtime::builder().workers(workers.into()).build()?;
    Ok(runtime.run(|| serve(("127.0.0.1", port), proxy))?)
}
