//! Osier: PHP scripts through php-fpm, on one worker. Arguments: PORT ROOT SOCKET KEPT; KEPT is the number of idle connections to keep.

use osier_web::fastcgi::{self, FastCgi};
use osier_web::{Address, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [port, root, socket, kept] = &args[..] else {
        return Err("usage: osier-php PORT ROOT SOCKET KEPT".into());
    };
    let php = fastcgi::upstream("php", [Address::Unix(socket.into())]).keep(kept.parse()?);
    let handler = FastCgi::open(root, php.build()?)?;
    let server = Server::new(handler);
    let address = format!("127.0.0.1:{port}");
    osier::Runtime::builder()
        .workers(1)
        .build()?
        .run(|| server.bind(address).map(|listening| listening.run()))?;
    Ok(())
}
