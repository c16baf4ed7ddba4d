//! A PostgreSQL of the bench's own, on the core of the load, with the tables of the arena and of TechEmpower.

use crate::bench::{Plan, pinned};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The user that it runs as where the bench runs as root, which it refuses: nobody.
const NOBODY: u32 = 65534;

const TABLES: &str = "
create table items (id int primary key, name text not null, category text not null, price int not null, quantity int not null,
    active boolean not null, tags jsonb not null, rating_score int not null, rating_count int not null);
insert into items select n, 'Item ' || n, (array['electronics', 'tools', 'books', 'office'])[1 + n % 4], 1 + n * 7919 % 500,
    1 + n % 1000, n % 2 = 0, '[\"fast\", \"new\"]', 1 + n % 50, 1 + n % 500 from generate_series(1, 100000) n;
create table users (id int primary key, name text not null, email text not null, plan text not null);
insert into users select n, 'User ' || n, 'user' || n || '@example.org', 'pro' from generate_series(1, 100) n;
create table world (id int primary key, randomnumber int not null);
insert into world select n, n from generate_series(1, 10000) n;
create table fortune (id int primary key, message text not null);
insert into fortune select n, 'A fortune of forty letters & some <more> ' || n from generate_series(1, 12) n;
analyze;";

/// A running server; ended by its drop.
pub struct Postgres {
    child: Child,
    pub url: String,
}

impl Postgres {
    pub fn start(plan: &Plan) -> Result<Postgres, String> {
        let folder = plan.scratch.join("postgres");
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let is_root = chown(&folder, Some(NOBODY), Some(NOBODY)).is_ok();
        let as_user = |mut command: Command| {
            command
                .current_dir(&folder)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if is_root {
                command.uid(NOBODY).gid(NOBODY);
            }
            command
        };
        let (port, data) = (crate::peers::free_port()?, folder.join("data"));
        let mut initdb = as_user(Command::new(program("initdb")?));
        initdb.args([
            "--auth=trust",
            "--username=bench",
            "--no-sync",
            "--no-locale",
            "--encoding=UTF8",
        ]);
        if !initdb.arg(&data).status().is_ok_and(|status| status.success()) {
            return Err("initdb has failed".into());
        }
        let mut postgres = as_user(pinned(plan.cores.1, program("postgres")?));
        postgres.args(["-F", "-c", "max_connections=256", "-c", "listen_addresses=127.0.0.1"]);
        postgres
            .args(["-p", &port.to_string(), "-k"])
            .arg(&folder)
            .arg("-D")
            .arg(&data);
        let child = postgres.spawn().map_err(|error| format!("postgres: {error}"))?;
        let postgres = Postgres {
            child,
            url: format!("postgres://bench:bench@127.0.0.1:{port}/postgres"),
        };
        let patience = Instant::now() + Duration::from_secs(30);
        while postgres.sql("select 1").is_err() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(100));
        }
        postgres.sql(TABLES)?;
        Ok(postgres)
    }

    fn sql(&self, text: &str) -> Result<(), String> {
        let mut psql = Command::new("psql");
        psql.args(["--quiet", "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-c", text, &self.url]);
        let output = psql
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("psql: {error}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("psql: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGINT: it ends its own children and then itself.
        let _ = Command::new("kill")
            .args(["-INT", &self.child.id().to_string()])
            .status();
        let _ = self.child.wait();
    }
}

/// A program of PostgreSQL: Debian keeps them in a folder of each version.
fn program(name: &str) -> Result<PathBuf, String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .map(|version| version.path().join("bin").join(name))
        .filter(|path| path.exists())
        .max();
    newest
        .or_else(|| Some(Path::new("/usr/local/bin").join(name)).filter(|path| path.exists()))
        .ok_or_else(|| format!("no {name}: install the package postgresql"))
}
