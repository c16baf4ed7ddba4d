//! The cipher suites and the session tickets of the rows about TLS: each server has those of ours.
//!
//! Osier prefers AES-128-GCM with SHA-256 and sends one ticket of TLS 1.3. OpenSSL and rustls put AES-256-GCM with SHA-384 first and send
//! two, so a row would compare suites and not servers. Figures from before 30 November 2026 do: `bench/RESULTS.md`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The suites of TLS 1.2 in the order of ours, as OpenSSL names them.
pub const TLS12: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:HIGH:!aNULL:!MD5";

/// Those of TLS 1.3.
pub const TLS13: &str = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

/// The directives of nginx.
pub fn of_nginx() -> String {
    format!(
        "ssl_prefer_server_ciphers on; ssl_ciphers {TLS12}; ssl_conf_command Ciphersuites {TLS13}; ssl_conf_command NumTickets 1;"
    )
}

/// A configuration of OpenSSL itself, for servers that have no setting for the suites of TLS 1.3 (h2o) or for tickets (HAProxy and h2o). It
/// goes into the variable `OPENSSL_CONF`.
fn of_openssl(scratch: &Path) -> Result<PathBuf, String> {
    let path = scratch.join("openssl.cnf");
    let text = format!(
        "openssl_conf = all\n[all]\nssl_conf = tls\n[tls]\nsystem_default = servers\n[servers]\nCiphersuites = {TLS13}\nNumTickets = 1\n"
    );
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// The program that [`args`] start.
pub const PROGRAM: &str = "env";

/// The arguments of `env` that start a server with that configuration of OpenSSL.
pub fn args(scratch: &Path, server: &str, rest: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let variable = format!("OPENSSL_CONF={}", of_openssl(scratch)?.display());
    Ok([variable.into(), server.into()].into_iter().chain(rest).collect())
}
