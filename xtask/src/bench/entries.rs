//! Entries of HttpArena, a public benchmark, built from a checkout of its repository. Nothing of it is part of this one.
//!
//! The checkout stands in the folder of the bench: `git clone --depth 1 https://github.com/MDA2AV/HttpArena target/bench/HttpArena`.
//! Without it the bench has no rows of the arena. An entry expects its files in `/data` and `/certs`; in the copy that is built, they are
//! folders of the checkout. An entry listens on fixed ports.
//!
//! Entries in Rust are built by cargo. Those in C are built against Debian's nginx and h2o, which are older than what the entries name.
//! They start one worker, as each of the others does on the one core that it has. The packages for them:
//! `apt-get install nginx-dev libh2o-evloop-dev libcjson-dev libnginx-mod-http-brotli-filter libnginx-mod-http-brotli-static`.

use crate::{step, test};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// The port of an entry for HTTP/1.1 in the clear.
pub const HTTP: u16 = 8080;

/// The port of an entry for HTTP/2 in the clear.
pub const H2C: u16 = 8082;

/// The port of an entry for HTTP/2 over TLS.
pub const H2: u16 = 8443;

/// The time that a build may take.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// The folder of the checkout, if there is one.
pub fn checkout() -> Option<PathBuf> {
    let folder = test::bench_target_dir().join("HttpArena");
    folder.join("data/dataset.json").exists().then_some(folder)
}

/// The binary of the entry that has this name, or the module of nginx that it is. The first call builds it.
pub fn built(name: &str) -> Result<PathBuf, String> {
    static BUILT: Mutex<BTreeMap<String, Result<PathBuf, String>>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().expect("building does not panic");
    built.entry(name.into()).or_insert_with(|| build(name)).clone()
}

fn build(name: &str) -> Result<PathBuf, String> {
    let checkout = checkout().ok_or("there is no checkout of HttpArena")?;
    let target = test::bench_target_dir().join("arena");
    let sources = target.join("sources").join(name);
    copy(&checkout.join("frameworks").join(name), &sources, &checkout)?;
    let (mut command, product) = if sources.join("Cargo.toml").exists() {
        by_cargo(&sources, &target)?
    } else if sources.join("config").exists() {
        module_of_nginx(&sources, &target.join(name))?
    } else {
        against_h2o(&sources, target.join("release").join(format!("httparena-{name}")))?
    };
    match step::run(&mut command, PATIENCE, |_| true) {
        true => Ok(product),
        false => Err(format!("the entry {name} did not build")),
    }
}

/// The command that builds a program in Rust, and the program.
fn by_cargo(sources: &Path, target: &Path) -> Result<(Command, PathBuf), String> {
    let manifest = sources.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).map_err(|error| format!("{}: {error}", manifest.display()))?;
    let name = text.split("name = \"").nth(1).and_then(|rest| rest.split('"').next());
    let name = name.ok_or_else(|| format!("{}: no name", manifest.display()))?;
    let mut command = step::cargo();
    command.args(["build", "--release", "--manifest-path"]).arg(manifest);
    command.env("CARGO_TARGET_DIR", target);
    Ok((command, target.join("release").join(name)))
}

/// The command that builds a module for Debian's nginx, and the module.
fn module_of_nginx(sources: &Path, objects: &Path) -> Result<(Command, PathBuf), String> {
    const NGINX: &str = "/usr/share/nginx/src";
    needed(&format!("{NGINX}/conf_flags"), "nginx-dev")?;
    // nginx builds in the folder of its own sources.
    let script = format!(
        r#"set -e; rm -rf "$1"; cp -r {NGINX} "$1"; cd "$1"; . ./conf_flags
           ./configure --with-cc-opt='-O3 -march=native' "${{NGX_CONF_FLAGS[@]}}" --add-dynamic-module="$0" >configure.log
           make -s -f objs/Makefile modules >make.log"#
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script]).args([sources, objects]);
    Ok((command, objects.join("objs/ngx_http_httparena_module.so")))
}

/// The command that builds a program against Debian's h2o, and the program.
fn against_h2o(sources: &Path, program: PathBuf) -> Result<(Command, PathBuf), String> {
    needed("/usr/include/h2o.h", "libh2o-evloop-dev")?;
    needed("/usr/include/cjson/cJSON.h", "libcjson-dev")?;
    let mut command = Command::new("cc");
    command.args(["-O3", "-march=native", "-flto", "-o"]);
    command.arg(&program).arg(sources.join("src/main.c"));
    command.args([
        "-lh2o-evloop",
        "-lcjson",
        "-lssl",
        "-lcrypto",
        "-lz",
        "-lpthread",
        "-lm",
    ]);
    Ok((command, program))
}

fn needed(file: &str, package: &str) -> Result<(), String> {
    match Path::new(file).exists() {
        true => Ok(()),
        false => Err(format!("no {file}: install the package {package}")),
    }
}

/// Copies the texts of a folder. A text that is the same already is left alone, so that cargo builds what has changed.
fn copy(from: &Path, to: &Path, checkout: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    std::fs::create_dir_all(to).map_err(failed)?;
    for entry in std::fs::read_dir(from).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let place = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &place, checkout)?;
            continue;
        }
        let text = here(&std::fs::read_to_string(&path).map_err(failed)?, &path, checkout);
        if std::fs::read_to_string(&place).ok().as_ref() != Some(&text) {
            std::fs::write(&place, text).map_err(failed)?;
        }
    }
    Ok(())
}

/// A text with the folders of the checkout in place of those of a container. A manifest is no part of the workspace around it.
fn here(text: &str, path: &Path, checkout: &Path) -> String {
    let mut text = text.to_string();
    for folder in ["data", "certs"] {
        let place = format!("\"{}/{folder}/", checkout.display());
        text = text.replace(&format!("\"/{folder}/"), &place);
    }
    if path.ends_with("Cargo.toml") && !text.contains("[workspace]") {
        text += "\n[workspace]\n";
    }
    if path.ends_with("main.c") {
        text = text.replace("sysconf(_SC_NPROCESSORS_ONLN)", "1");
        // Debian's h2o has a function where later ones have a macro that takes a type.
        text = text.replace(
            "h2o_mem_alloc_pool(&req->pool, char, ",
            "h2o_mem_alloc_pool(&req->pool, ",
        );
    }
    text
}

/// A configuration of nginx in the checkout, as Debian's nginx takes it: one worker, files in these folders, the backend and the
/// authentication server on these ports.
pub fn configuration_of_nginx(
    file: &str,
    scratch: &Path,
    backend: u16,
    authentication: u16,
) -> Result<PathBuf, String> {
    let checkout = checkout().ok_or("there is no checkout of HttpArena")?;
    let path = checkout.join("frameworks").join(file);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut text = older(&text)
        .replace("/certs/", &format!("{}/certs/", checkout.display()))
        .replace(" /data", &format!(" {}/data", checkout.display()))
        .replace("127.0.0.1:8080", &format!("127.0.0.1:{backend}"))
        .replace("127.0.0.1:9090", &format!("127.0.0.1:{authentication}"));
    let mut start = format!("pid {}/nginx-arena.pid;\n", scratch.display());
    if text.contains("brotli") {
        let ours = built("nginx")?;
        for module in ["brotli_filter", "brotli_static"] {
            let module = format!("/usr/lib/nginx/modules/ngx_http_{module}_module.so");
            needed(
                &module,
                "libnginx-mod-http-brotli-filter and libnginx-mod-http-brotli-static",
            )?;
            start += &format!("load_module {module};\n");
        }
        start += &format!("load_module {};\n", ours.display());
    }
    if !text.contains("daemon off;") {
        start += "daemon off;\n";
    }
    let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let folders = folders.map(|name| format!("{name}_temp_path {}/{name};\n", scratch.display()));
    text = text.replacen("http {", &format!("http {{\n{}", folders.concat()), 1);
    let place = scratch.join("nginx-arena.conf");
    std::fs::write(&place, start + &text).map_err(|error| format!("{}: {error}", place.display()))?;
    Ok(place)
}

/// The text without what Debian's nginx does not know: HTTP/3, and `http2` as a directive.
fn older(text: &str) -> String {
    let is_known = |line: &&str| {
        let line = line.trim();
        !line.contains("quic") && !line.contains("Alt-Svc") && line != "http2 on;" && line != "http3 on;"
    };
    let lines: Vec<&str> = text.lines().filter(is_known).collect();
    lines
        .join("\n")
        .replace("worker_processes auto;", "worker_processes 1;")
        .replace(" ssl reuseport;", " ssl http2 reuseport;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_manifests_are_put_here() {
        let here = |text, name| here(text, Path::new(name), Path::new("/there"));
        assert_eq!(
            here("open(\"/data/static/a\")", "src/main.rs"),
            "open(\"/there/data/static/a\")"
        );
        assert_eq!(
            here("\"/certs/server.crt\" /data/", "main.rs"),
            "\"/there/certs/server.crt\" /data/"
        );
        assert_eq!(here("[package]\n", "actix/Cargo.toml"), "[package]\n\n[workspace]\n");
        assert_eq!(
            here("int n = sysconf(_SC_NPROCESSORS_ONLN);", "src/main.c"),
            "int n = 1;"
        );
    }

    #[test]
    fn an_older_nginx_takes_the_configuration() {
        let text = "worker_processes auto;\nserver {\n    listen 8443 ssl reuseport;\n    listen 8443 quic reuseport;\n    \
                    http2 on;\n    http3 on;\n    add_header Alt-Svc 'h3=\":8443\"';\n}";
        assert_eq!(
            older(text),
            "worker_processes 1;\nserver {\n    listen 8443 ssl http2 reuseport;\n}"
        );
    }
}
