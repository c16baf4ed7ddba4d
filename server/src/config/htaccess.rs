//! Finds the folders that an application closes by an `.htaccess`, which this server does not read, and that a route
//! serves all the same.
//!
//! Each served folder is looked through to a bounded depth and number of entries, so a large one does not hold up
//! `osier check`. A folder is closed if the file denies access to all of it. A rule for some of its files only, and one
//! that rewrites requests, are not understood.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use crate::handler::{HandlerSettings, Published};
use crate::policy::path;
use crate::policy::rewrite::Verdict;

use super::settings::{Config, Route, Setting, Site};

/// How many folders below its start are looked into.
const DEPTH: usize = 6;
/// The most entries of folders that are looked at for one route.
const ENTRIES: usize = 20_000;
/// The longest file that is read.
const BYTES: u64 = 64 << 10;
/// The most folders of one route that are named.
const NAMED: usize = 8;

/// Warnings about closed folders that a route serves, for `osier check`.
///
/// # Blocks the thread
/// While the folders are looked through.
pub fn served(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    for site in &config.sites {
        for (number, route) in site.routes.iter().enumerate() {
            let Some(published) = route.handler.published() else {
                continue;
            };
            let closed = closed_folders(&published, route.matches.path.as_deref());
            let mut open = closed.iter().filter(|(_, url)| is_open(site, number, url));
            let named = open.by_ref().take(NAMED).map(|(folder, url)| {
                format!(
                    "'{}' denies access to its folder, but no .htaccess is read and '{url}/' of {} is served; give that path a \
                     route with respond = 404 in front",
                    folder.join(".htaccess").display(),
                    name(site)
                )
            });
            warnings.extend(named);
            let more = open.count();
            if more > 0 {
                let root = published.root.display();
                warnings.push(format!(
                    "{more} more folders below '{root}' have an .htaccess of this kind"
                ));
            }
        }
    }
    warnings
}

fn name(site: &Site) -> String {
    match site.hosts.first() {
        Some(host) => format!("the site '{host}'"),
        None => "the default site".into(),
    }
}

/// The closed folders among those that requests below `start` can reach, each with its path in URLs.
fn closed_folders(published: &Published<'_>, start: Option<&str>) -> Vec<(PathBuf, String)> {
    let start = start.unwrap_or_default();
    let Some(inside) = start.strip_prefix(published.strip.unwrap_or_default()) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut left = ENTRIES;
    let first = published.root.join(inside.trim_start_matches('/'));
    let mut folders = VecDeque::from([(first, start.to_owned(), 0)]);
    while let Some((folder, url, depth)) = folders.pop_front() {
        if is_closed(&folder) {
            found.push((folder, url));
            continue;
        }
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        for entry in entries.take(if depth < DEPTH { left } else { 0 }) {
            left -= 1;
            let name = entry.file_name();
            let is_folder = entry.file_type().is_ok_and(|kind| {
                kind.is_dir() || (published.follows_links && kind.is_symlink() && entry.path().is_dir())
            });
            if let Some(name) = name.to_str().filter(|name| is_folder && !name.starts_with('.')) {
                folders.push_back((entry.path(), format!("{url}/{name}"), depth + 1));
            }
        }
    }
    found.sort();
    found
}

/// Whether a folder has an `.htaccess` that denies access to all of it.
fn is_closed(folder: &Path) -> bool {
    let file = folder.join(".htaccess");
    let is_short = fs::metadata(&file).is_ok_and(|found| found.is_file() && found.len() <= BYTES);
    is_short && fs::read_to_string(file).is_ok_and(|text| denies_all(&text))
}

fn denies_all(text: &str) -> bool {
    // The sections that a line is in and that hold for some files, methods or requests only.
    let mut narrow = 0_usize;
    text.lines().any(|line| {
        let words: Vec<String> = line.split_ascii_whitespace().map(str::to_ascii_lowercase).collect();
        let first = words.first().map_or("", |word| word.trim_end_matches('>'));
        match first {
            "<files" | "<filesmatch" | "<limit" | "<limitexcept" | "<if" => narrow += 1,
            "</files" | "</filesmatch" | "</limit" | "</limitexcept" | "</if" => narrow = narrow.saturating_sub(1),
            _ => {}
        }
        narrow == 0 && (words == ["deny", "from", "all"] || words == ["require", "all", "denied"])
    })
}

/// Whether the route with this number answers requests below `url`, for everybody.
fn is_open(site: &Site, number: usize, url: &str) -> bool {
    let file = format!("{url}/file");
    if site.routes.iter().position(|route| takes(route, &file)) != Some(number) {
        return false;
    }
    let policies = site.routes[number].policies.clone().over(&site.policies);
    let is_asked = matches!(policies.auth, Setting::On(_))
        || matches!(policies.jwt, Setting::On(_))
        || matches!(policies.forward_auth, Setting::On(_));
    !is_asked && policies.allow.is_empty() && policies.deny.is_empty()
}

/// Whether a route may answer a `GET` for a path. Rules that depend on the request count as if they applied.
fn takes(route: &Route, text: &str) -> bool {
    let matches = &route.matches;
    let bytes = text.as_bytes();
    let is_below = matches
        .path
        .as_deref()
        .is_none_or(|prefix| path::is_below(bytes, prefix));
    let is_named = || {
        let globs = matches.globs.iter().filter_map(|glob| super::glob(glob).ok());
        matches.globs.is_empty() || globs.into_iter().any(|glob| glob.compile_matcher().is_match(text))
    };
    let applies = || match &route.handler {
        HandlerSettings::Rewrite(settings) => {
            let verdict = settings.compiled().map(|rules| rules.foresee(bytes, None));
            !matches!(verdict, Some(Some(Verdict::Nothing)))
        }
        _ => true,
    };
    let is_of_method = matches.methods.is_empty() || matches.methods.iter().any(|method| method == "GET");
    is_below && is_of_method && is_named() && applies()
}

#[cfg(test)]
mod tests {
    use super::denies_all;

    #[test]
    fn a_file_that_denies_everything_is_told_from_one_that_denies_something() {
        let modern = "<IfModule mod_authz_core.c>\n  Require all denied\n</IfModule>\n";
        for text in ["Deny from all", "Order allow,deny\r\ndeny  from all\r\n", modern] {
            assert!(denies_all(text), "{text}");
        }
        let ended = "<Files \"a\">\nRequire all granted\n</Files>\nDeny from all\n";
        assert!(denies_all(ended));
        for text in [
            "",
            "# Deny from all",
            "Options -Indexes",
            "<Files xmlrpc.php>\nRequire all denied\n</Files>",
            "<FilesMatch \"[.]php$\">\n<IfModule x>\nDeny from all\n</IfModule>\n</FilesMatch>",
            "Deny from 192.0.2.1",
        ] {
            assert!(!denies_all(text), "{text}");
        }
    }
}
