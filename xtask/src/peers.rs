//! The programs that tests and benches talk to, and how this machine gets them.
//!
//! `apt-get` installs them, and only where it asks no question: as root, or with a sudo that needs no password. Elsewhere
//! each missing program is a reason, printed as "skipped: why". The tests that need it print the same.

use crate::step::{self, succeeds};
use std::process::Command;

/// A program that is not ours.
pub struct Peer {
    /// The name of the program, or where Debian puts a file of what is none.
    pub program: &'static str,
    /// The package of Debian and Ubuntu that holds it.
    package: &'static str,
    /// Its use here.
    pub purpose: &'static str,
    /// Whether it brings hundreds of megabytes, or a service of the system.
    is_large: bool,
}

/// The programs of `cargo xtask test`.
pub const FOR_TESTS: &[Peer] = &[
    Peer {
        program: "curl",
        package: "curl",
        purpose: "a client that is not ours asks the server",
        is_large: false,
    },
    Peer {
        program: "openssl",
        package: "openssl",
        purpose: "TLS at the other end",
        is_large: false,
    },
    Peer {
        program: "gnutls-cli",
        package: "gnutls-bin",
        purpose: "another TLS at the other end",
        is_large: false,
    },
    Peer {
        program: "go",
        package: "golang-go",
        purpose: "a third TLS at the other end",
        is_large: true,
    },
    Peer {
        program: "valgrind",
        package: "valgrind",
        purpose: "memory errors across stack switches",
        is_large: false,
    },
    Peer {
        program: "redis-server",
        package: "redis-server",
        purpose: "clients of redis over our streams",
        is_large: false,
    },
    Peer {
        program: "/usr/lib/python3/dist-packages/websockets/__init__.py",
        package: "python3-websockets",
        purpose: "a WebSocket client that is not ours",
        is_large: false,
    },
    Peer {
        program: "/usr/lib/python3/dist-packages/grpc/__init__.py",
        package: "python3-grpcio",
        purpose: "a gRPC client and server that are not ours",
        is_large: false,
    },
    Peer {
        program: "/usr/lib/python3/dist-packages/h2/__init__.py",
        package: "python3-h2",
        purpose: "an HTTP/2 client and server that are not ours",
        is_large: false,
    },
    Peer {
        program: "/usr/share/nodejs/ws/package.json",
        package: "node-ws",
        purpose: "another WebSocket client that is not ours",
        is_large: false,
    },
    Peer {
        program: "chromium",
        package: "chromium",
        purpose: "the built-in site in a browser",
        is_large: true,
    },
    // Debian has `postgres` itself apart, for each version; this one comes with any.
    Peer {
        program: "pg_ctlcluster",
        package: "postgresql",
        purpose: "clients of PostgreSQL over our streams",
        is_large: true,
    },
    Peer {
        program: "php-fpm",
        package: "php-fpm",
        purpose: "scripts behind the FastCGI handler",
        is_large: false,
    },
    Peer {
        program: "dokuwiki-addsite",
        package: "dokuwiki",
        purpose: "an application behind the FastCGI handler, run from a copy",
        is_large: false,
    },
    Peer {
        program: "gdb",
        package: "gdb",
        purpose: "lists the fibers of a process by runtime/gdb/osier.py",
        is_large: false,
    },
    Peer {
        program: "nginx",
        package: "nginx-light",
        purpose: "a backend of the proxy",
        is_large: false,
    },
    Peer {
        program: "pebble",
        package: "pebble",
        purpose: "a certificate authority for tests of ACME",
        is_large: false,
    },
    Peer {
        program: "node",
        package: "nodejs",
        purpose: "another backend of the proxy, with WebSockets",
        is_large: false,
    },
    Peer {
        program: "h2load",
        package: "nghttp2-client",
        purpose: "clients of HTTP/2: h2load and nghttp",
        is_large: false,
    },
    Peer {
        program: "/lib/systemd/systemd",
        package: "systemd",
        purpose: "starts, upgrades and stops the service, as process 1 of a namespace",
        is_large: false,
    },
    Peer {
        program: "mandoc",
        package: "mandoc",
        purpose: "checks the manual pages",
        is_large: false,
    },
    Peer {
        program: "zsh",
        package: "zsh",
        purpose: "checks its completion",
        is_large: false,
    },
    Peer {
        program: "fish",
        package: "fish",
        purpose: "checks its completion",
        is_large: false,
    },
];

/// The programs of `cargo xtask bench`.
pub const FOR_BENCH: &[Peer] = &[
    Peer {
        program: "wrk",
        package: "wrk",
        purpose: "load",
        is_large: false,
    },
    Peer {
        program: "nginx",
        package: "nginx-light",
        purpose: "rival: static files, idle connections",
        is_large: false,
    },
    Peer {
        program: "haproxy",
        package: "haproxy",
        purpose: "rival: proxied requests",
        is_large: false,
    },
    Peer {
        program: "php-fpm",
        package: "php-fpm",
        purpose: "runs the scripts of the PHP rows",
        is_large: false,
    },
    Peer {
        program: "curl",
        package: "curl",
        purpose: "asks servers of TLS and HTTP/2 once before the load",
        is_large: false,
    },
    Peer {
        program: "openssl",
        package: "openssl",
        purpose: "makes the certificates of the TLS rows",
        is_large: false,
    },
    Peer {
        program: "h2load",
        package: "nghttp2-client",
        purpose: "load by HTTP/2",
        is_large: false,
    },
    Peer {
        program: "caddy",
        package: "caddy",
        purpose: "rival: compression",
        is_large: false,
    },
    Peer {
        program: "h2o",
        package: "h2o",
        purpose: "rival: HTTP/2",
        is_large: false,
    },
    Peer {
        program: "taskset",
        package: "util-linux",
        purpose: "pins server and load to a core each",
        is_large: false,
    },
];

/// The programs of `cargo xtask package`: the load and the backends of a server whose code is counted.
pub const FOR_PACKAGES: &[Peer] = &[
    Peer {
        program: "wrk",
        package: "wrk",
        purpose: "requests of a profile",
        is_large: false,
    },
    Peer {
        program: "h2load",
        package: "nghttp2-client",
        purpose: "requests of a profile by HTTP/2",
        is_large: false,
    },
    Peer {
        program: "php-fpm",
        package: "php-fpm",
        purpose: "scripts of a profile",
        is_large: false,
    },
];

/// The programs of `cargo xtask upgrade`.
pub const FOR_UPGRADE: &[Peer] = &[
    Peer {
        program: "wrk",
        package: "wrk",
        purpose: "load",
        is_large: false,
    },
    Peer {
        program: "nginx",
        package: "nginx-light",
        purpose: "rival: USR2 and QUIT",
        is_large: false,
    },
    Peer {
        program: "haproxy",
        package: "haproxy",
        purpose: "rival: -x and -sf",
        is_large: false,
    },
    Peer {
        program: "curl",
        package: "curl",
        purpose: "asks each server once before the load",
        is_large: false,
    },
    Peer {
        program: "openssl",
        package: "openssl",
        purpose: "makes the certificate",
        is_large: false,
    },
    Peer {
        program: "taskset",
        package: "util-linux",
        purpose: "pins server and load to a core each",
        is_large: false,
    },
];

/// Installs the missing ones of `peers`, and asks before large ones if a person is at the terminal. Returns one reason for
/// each that is still missing.
pub fn install(peers: &[Peer]) -> Vec<String> {
    let missing: Vec<&Peer> = peers.iter().filter(|peer| !is_there(peer.program)).collect();
    let large: Vec<&str> = missing
        .iter()
        .filter(|peer| peer.is_large)
        .map(|peer| peer.package)
        .collect();
    let leaves_large = !large.is_empty() && step::is_attended() && !agreed(&large);
    let packages = missing
        .iter()
        .filter(|peer| !(peer.is_large && leaves_large))
        .map(|peer| peer.package);
    let packages: Vec<&str> = packages.collect();
    let mut why = "you chose not to install it";
    if !packages.is_empty() {
        match root_shell() {
            Ok(mut shell) => {
                step::say(&format!("installing {}", packages.join(" ")));
                shell.arg(INSTALL).arg("install").args(&packages);
                if !succeeds(&mut shell) {
                    why = "apt-get failed";
                } else if !leaves_large {
                    why = "apt-get did not bring it";
                }
            }
            Err(reason) => why = reason,
        }
    }
    let still = missing.iter().filter(|peer| !is_there(peer.program));
    still
        .map(|Peer { program, purpose, .. }| format!("{program} ({purpose}): not installed; {why}"))
        .collect()
}

/// Asks the person at the terminal whether large packages may be installed.
fn agreed(packages: &[&str]) -> bool {
    println!("Some tests need large packages: {}.", packages.join(" "));
    println!("Without them these tests are skipped. Install them? [y/N]");
    let mut answer = String::new();
    let _ = std::io::stdin().read_line(&mut answer);
    ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

/// Where php-fpm is; its name has its version behind it.
pub fn php_fpm() -> Option<std::path::PathBuf> {
    let names = std::fs::read_dir("/usr/sbin")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    names
        .filter(|path| path.to_string_lossy().starts_with("/usr/sbin/php-fpm"))
        .max()
}

/// A port of 127.0.0.1 that nothing listens on.
pub fn free_port() -> Result<u16, String> {
    let bound = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound
        .map(|addr| addr.port())
        .map_err(|error| format!("no free port: {error}"))
}

/// Whether `program` is in one of the directories where programs are; `/usr/sbin` is not in everybody's `PATH`.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    (program == "php-fpm" && php_fpm().is_some())
        || std::env::split_paths(&path)
            .chain(["/usr/sbin".into()])
            .any(|dir| dir.join(program).is_file())
}

/// A shell that runs as root and takes a script as its next argument.
fn root_shell() -> Result<Command, &'static str> {
    if !is_there("apt-get") {
        return Err("this system has no apt-get");
    }
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        let mut shell = Command::new("sh");
        shell.arg("-c");
        return Ok(shell);
    }
    if succeeds(Command::new("sudo").args(["-n", "true"])) {
        let mut shell = Command::new("sudo");
        shell.args(["-n", "sh", "-c"]);
        return Ok(shell);
    }
    Err("installing needs root or a sudo without a password")
}

/// `policy-rc.d` keeps a freshly installed server (nginx) from being started as a service of the system.
const INSTALL: &str = r#"
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
fi
apt-get update -q || true
apt-get install -q -y --no-install-recommends "$@" && exit
# One that cannot be had, or not beside what is installed, must not keep the others away.
for package; do apt-get install -q -y --no-install-recommends "$package" || failed=1; done
exit ${failed:-0}
"#;
