//! Hints for a key in the wrong table, for a key of another server, for a value that should be a table, and for a value that is almost
//! right.

use toml::de::{DeTable, DeValue};

use super::value::{DURATION, SIZE};

/// Keys that are easily put into a wrong table, and their tables. TOML puts a top-level key into the table before it.
const HOMES: [(&str, &str); 5] = [
    (
        "",
        "workers drain user group chroot landlock include error_log state ticket_keys",
    ),
    (
        "[[listen]]",
        "address proxy_protocol real_ip max_connections max_connections_per_client mode timeouts head http2",
    ),
    ("[[site]]", "host default error_pages redirect_https hsts route"),
    (
        "[[site.route]]",
        "path glob methods files fastcgi proxy redirect respond rewrite chat welcome",
    ),
    (
        "[[site]] or [[site.route]]",
        "auth forward_auth jwt html_errors headers request_headers cors limits allow deny rate compress types cache request_id server_timing slow trace",
    ),
];

/// The keys of a handler's table, which are easily put beside the handler, into the route.
const INSIDE: [(&str, &str); 7] = [
    ("files", "root index listing spa hidden precompressed symlinks strip"),
    (
        "proxy",
        "to host strip redirects forwarded trust upgrade tunnel_idle tunnel_half_closed http2 ca verify sni cert key internal_root internal_path",
    ),
    (
        "fastcgi",
        "to root index suffix front params files application_root internal_root symlinks server_name https hide",
    ),
    ("redirect", "to status"),
    ("respond", "status body file content_type"),
    (
        "chat",
        "history message rooms rooms_per_client burst every origins redis channel",
    ),
    ("welcome", "live_for_all"),
];

/// The keys that `proxy` and `fastcgi` have in common.
const GATEWAY: &str = "timeouts keep max_requests health balance sticky slow_start ejection read_ahead read_ahead_file read_ahead_total buffer buffer_total shared_memory";

/// How to write tables, or what stands for them, by the end of their names. A number takes the place of `$`.
const FORMS: [(&str, &str); 35] = [
    ("admin", "{ address = \"127.0.0.1:9090\" }"),
    ("auth", "{ users = { NAME = \"HASH\" } }"),
    ("cache", "{ default_ttl = \"10m\" }"),
    ("binding", "{ id = \"ID\", secret = \"SECRET\" }"),
    ("claims", "{ NAME = \"VALUE\" }"),
    ("compress", "{ codings = [\"gzip\"] }"),
    ("cors", "{ origins = \"https://example.org\" }"),
    ("ejection", "{ failures = $ }"),
    ("error_log", "{ file = \"error.log\" }"),
    ("error_pages", "{ 404 = \"404.html\" }"),
    ("fastcgi", "{ root = \"www\", to = \"unix:/run/php/php-fpm.sock\" }"),
    ("files", "{ root = \"www\" }"),
    ("head", "{ bytes = \"16KiB\" }"),
    ("headers", "{ NAME = \"VALUE\" }"),
    ("health", "{} for the defaults"),
    ("hsts", "\"180d\""),
    ("jwt", "{ keys = \"FILE\" }"),
    ("limits", "{ body = \"2MiB\" }"),
    ("listen.timeouts", "{ idle = \"60s\" }"),
    ("params", "{ NAME = \"VALUE\" }"),
    ("pass", "{ CLAIM = \"FIELD\" }"),
    ("proxy", "{ to = [\"127.0.0.1:3000\"] }"),
    ("queue", "{ running = $ }"),
    ("rate", "{ requests = $ }"),
    ("rates", "{ body = $ }"),
    ("real_ip", "{ from = \"10.0.0.0/8\" }"),
    ("redirect", "{ to = \"https://example.org/\", status = 301 }"),
    ("request_headers", "{ NAME = \"VALUE\" }"),
    ("respond", "{ status = 404, body = \"TEXT\" }"),
    ("rewrite", "{ pattern = \"^/old/\", to = \"/new/\" }"),
    ("sticky", "\"backend\""),
    ("timeouts", "{ first_byte = \"60s\" }"),
    ("types", "{ SUFFIX = \"TYPE\" }"),
    ("upgrade", "{ drain = \"1h\" }"),
    ("users", "{ NAME = \"HASH\" }"),
];

/// Keys of nginx and Caddy, and what has their place here.
const FOREIGN: [(&str, &str); 17] = [
    ("server", "[[site]], and its address in [[listen]]"),
    ("server_name", "host = \"example.org\" in [[site]]"),
    (
        "location handle handle_path",
        "[[site.route]] with path = \"/PATH\" or a glob",
    ),
    (
        "root alias file_server document_root",
        "files = \"FOLDER\" in [[site.route]]",
    ),
    (
        "try_files",
        "files = { root = \"FOLDER\", spa = true } in [[site.route]]",
    ),
    (
        "autoindex",
        "files = { root = \"FOLDER\", listing = true } in [[site.route]]",
    ),
    (
        "proxy_pass reverse_proxy upstream",
        "proxy = \"HOST:PORT\" or proxy = { to = [\"HOST:PORT\"] } in [[site.route]]",
    ),
    (
        "fastcgi_pass php_fastcgi php",
        "fastcgi = { root = \"FOLDER\", to = \"unix:SOCKET\" } in [[site.route]]",
    ),
    (
        "return redir error",
        "redirect = \"https://example.org/\" or respond = 404 in [[site.route]]",
    ),
    (
        "ssl_certificate ssl_certificate_key",
        "tls = { cert = \"FILE\", key = \"FILE\" } in [[site]]",
    ),
    ("gzip encode", "compress = true"),
    ("port ports", "address = \"127.0.0.1:8080\" in [[listen]]"),
    ("default_type mime_types", "types = { \"*\" = \"text/plain\" }"),
    ("client_max_body_size", "limits = { body = \"10MiB\" }"),
    ("access_log", "log = { file = \"FILE\" }"),
    ("add_header header", "headers = { NAME = \"VALUE\" }"),
    ("auth_basic basic_auth", "auth = { file = \"FILE\" }"),
];

/// Keys by which people ask for WebSockets, which need none.
const WEBSOCKETS: &str = "websocket websockets ws";

/// The remedy for a key of [`WEBSOCKETS`].
const THEY_PASS: &str = "leave it out: WebSockets pass unless 'upgrade' of 'proxy' is false";

/// Shows what to write for a key of another server.
pub fn foreign(key: &str) -> Option<String> {
    if has(WEBSOCKETS, key) {
        return Some(THEY_PASS.into());
    }
    let (_, here) = FOREIGN.iter().find(|(keys, _)| has(keys, key))?;
    Some(format!("write {here}"))
}

/// How to write a value that misses the `wanted` form by little.
pub fn spelled(value: &DeValue<'_>, wanted: &str) -> Option<String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let spelled = match value {
        DeValue::Integer(number) if wanted == DURATION && is_number(&number.to_string()) => format!("\"{number}s\""),
        DeValue::String(text) if wanted == DURATION && is_number(text) => format!("\"{text}s\""),
        DeValue::Integer(number) if wanted.starts_with("a string") => format!("\"{}\"", number.as_str()),
        DeValue::String(text) if wanted == SIZE => {
            let unit = text.find(|char: char| !char.is_ascii_digit()).filter(|at| *at > 0)?;
            let (number, unit) = text.split_at(unit);
            let unit = match unit.trim() {
                "k" | "K" => "KiB",
                "m" | "M" => "MiB",
                "g" | "G" => "GiB",
                _ => return None,
            };
            format!("\"{number}{unit}\"")
        }
        DeValue::String(text) if wanted.starts_with("true") => match &**text {
            "true" | "on" | "yes" => "true".into(),
            "false" | "off" | "no" => "false".into(),
            _ => return None,
        },
        _ => return None,
    };
    Some(format!("write {spelled}"))
}

/// Whether a table is one of [`HOMES`].
pub fn is_home(title: &str) -> bool {
    HOMES.iter().any(|(home, _)| *home == title)
}

/// The table that a key of the table `title` belongs to. A key of a nested table may only come from the top of the
/// file.
pub fn home(title: &str, key: &str) -> Option<&'static str> {
    let mut homes = HOMES.iter().filter(|(home, _)| is_home(title) || home.is_empty());
    let found = homes.find(|(home, keys)| *home != title && has(keys, key));
    found.map(|(home, _)| *home)
}

/// The remedy for a key that the table `title` of a handler does not have.
pub fn in_handler(title: &str, key: &str) -> Option<String> {
    let handler = title.strip_prefix("[site.route.")?.strip_suffix(']')?;
    match (handler, key) {
        ("proxy", key) if has(WEBSOCKETS, key) => Some(THEY_PASS.into()),
        ("proxy", "insecure" | "tls_insecure_skip_verify") => Some("write verify = false".into()),
        ("proxy.timeouts" | "fastcgi.timeouts", "read" | "send") => {
            Some("write first_byte, until the response begins, and between, for its next bytes".into())
        }
        ("files", "autoindex" | "browse") => Some("write listing = true".into()),
        ("files", "try_files" | "fallback") => Some("write spa = true".into()),
        ("proxy" | "fastcgi", "backend" | "backends" | "upstream" | "upstreams" | "url" | "server" | "servers") => {
            Some("write to = \"HOST:PORT\"".into())
        }
        ("redirect" | "respond", "code") => Some("write status".into()),
        ("redirect", "url" | "target" | "location") => Some("write to".into()),
        ("respond", "text" | "content") => Some("write body".into()),
        ("fastcgi", "try_files") => Some("write files = true, front = \"/index.php\"".into()),
        ("files" | "fastcgi", "expires") => Some("write cache = \"max-age=3600\"".into()),
        ("proxy" | "fastcgi", "read_timeout" | "proxy_read_timeout" | "fastcgi_read_timeout") => {
            Some("write timeouts = { first_byte = \"5m\", between = \"5m\" }".into())
        }
        ("fastcgi", "strip") => {
            Some("put a link with the name of the path into 'root', to the folder of the scripts".into())
        }
        _ => {
            let mut homes = HOMES.iter().filter(|(home, _)| home.ends_with("[[site.route]]"));
            let is_beside = INSIDE.iter().any(|(name, _)| *name == handler) && homes.any(|(_, keys)| has(keys, key));
            is_beside.then(|| format!("it belongs beside '{handler}', into [[site.route]]"))
        }
    }
}

/// How to write a key that belongs into the table of a handler beside it.
pub fn inside(route: &DeTable<'_>, key: &str, value: &DeValue<'_>) -> Option<String> {
    let belongs = |handler: &str, keys| has(keys, key) || matches!(handler, "proxy" | "fastcgi") && has(GATEWAY, key);
    let mut present = INSIDE.iter().filter(|(handler, _)| route.contains_key(*handler));
    let (handler, _) = present.find(|(handler, keys)| belongs(handler, keys))?;
    // The key that the handler's value stands for: `files = "www"` means `files = { root = "www" }`.
    let short = match (*handler, route.get(*handler)?.get_ref()) {
        (_, DeValue::Table(_)) => return Some(format!("it belongs into the table of '{handler}'")),
        ("files", _) => "root = ..., ",
        ("proxy" | "redirect", _) => "to = ..., ",
        ("respond", DeValue::Integer(_)) => "status = ..., ",
        // It is one or the other.
        ("respond", _) if key == "file" => "",
        ("respond", _) => "body = ..., ",
        _ => "",
    };
    let short = if short.starts_with(key) { "" } else { short };
    let value = match value {
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Integer(value) => value.to_string(),
        _ => "...".into(),
    };
    Some(format!("write {handler} = {{ {short}{key} = {value} }}"))
}

/// How to write the table `title` of the key `key`, whose value is not a table.
pub fn form(title: &str, key: &str, value: &DeValue<'_>) -> Option<String> {
    let title = title.trim_matches(['[', ']']);
    let is_end = |end: &str| {
        let before = title.strip_suffix(end);
        before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    if let (true, DeValue::String(_)) = (is_end("auth"), value) {
        return Some(format!("write {key} = {{ file = \"FILE\" }}"));
    }
    if let (true, DeValue::String(path)) = (is_end("proxy.health"), value)
        && path.starts_with('/')
    {
        return Some(format!("write {key} = {{ path = \"{}\" }}", path.escape_debug()));
    }
    let (_, form) = FORMS.iter().find(|(end, _)| is_end(end))?;
    let number = match value {
        DeValue::Integer(number) if !number.to_string().starts_with(['-', '0']) => number.to_string(),
        _ => "10".into(),
    };
    Some(format!("write {key} = {}", form.replace('$', &number)))
}

/// Whether a list of words has this one.
fn has(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys in the tables below a heading of docs/configuration.md, and in the headings one level below. A line
    /// that begins in bold explains one key, so tables behind it are of that key.
    fn documented(heading: &str) -> Vec<&'static str> {
        let text = include_str!("../../../docs/configuration.md");
        let depth = heading.find(' ');
        let lines = text.lines().skip_while(|line| *line != heading).skip(1);
        let section: Vec<&str> = lines
            .take_while(|line| !line.starts_with('#') || line.find(' ') > depth)
            .collect();
        let own = section
            .iter()
            .take_while(|line| !line.starts_with('#') && !line.starts_with("**"));
        let rows = own.filter_map(|line| line.strip_prefix('|')?.split('|').next());
        let headings = section
            .iter()
            .copied()
            .filter(|line| line.starts_with('#') && line.find(' ') == depth.map(|depth| depth + 1));
        // A row may have `cert`, `key`, or `head.bytes`.
        let names = rows.chain(headings).flat_map(|cell| cell.split('`').skip(1).step_by(2));
        names.filter_map(|name| name.split('.').next()).collect()
    }

    #[test]
    fn every_key_that_a_hint_names_exists_in_its_table() {
        let has_all = |heading: &str, known: &[&str], keys: &str| {
            let mut keys = keys.split(' ');
            let unknown = keys.find(|key| !known.contains(key));
            assert_eq!(unknown, None, "{heading}");
        };
        for (home, keys) in HOMES {
            let heading = match home {
                "" => "## Top-level keys".into(),
                "[[site]] or [[site.route]]" => "## Policies".into(),
                table => format!("## `{table}`"),
            };
            has_all(&heading, &documented(&heading), keys);
        }
        for (handler, keys) in INSIDE {
            let heading = format!("### `{handler}`");
            let known = documented(&heading);
            has_all(&heading, &known, keys);
            if matches!(handler, "proxy" | "fastcgi") {
                has_all(&heading, &[known, documented("### Backends")].concat(), GATEWAY);
            }
        }
    }
}
