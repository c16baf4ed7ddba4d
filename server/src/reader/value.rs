//! Parses the small languages inside strings: durations, sizes, environment variables, origins, methods and field
//! names.
//!
//! Every function is pure.

use std::time::Duration;

/// The expected form of a duration, for messages.
pub const DURATION: &str = "a duration like \"10s\", \"1m30s\" or \"500ms\"";
/// The expected form of a size, for messages.
pub const SIZE: &str = "a size like \"64KiB\", \"10MiB\" or 4096 (bytes)";

/// Parses a sum of numbers with units (`ms`, `s`, `m`, `h`, `d`). Each unit occurs at most once, larger ones first.
pub fn duration(text: &str) -> Option<Duration> {
    let units = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ];
    let (mut rest, mut total, mut next) = (text, 0_u64, 0);
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let after = &rest[digits..];
        let letters = after.find(|char: char| char.is_ascii_digit()).unwrap_or(after.len());
        let at = units.iter().position(|(unit, _)| *unit == &after[..letters])?;
        if at < next {
            return None;
        }
        next = at + 1;
        total = total.checked_add(number.checked_mul(units[at].1)?)?;
        rest = &after[letters..];
    }
    (!text.is_empty()).then(|| Duration::from_millis(total))
}

/// Parses bytes with `B`, `KiB`, `MiB`, `GiB` (powers of 1024) or `kB`, `MB`, `GB` (powers of 1000).
pub fn size(text: &str) -> Option<u64> {
    let digits = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit: u64 = match text[digits..].trim_start_matches(' ') {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return None,
    };
    number.checked_mul(unit)
}

/// Replaces `${NAME}` and `${NAME:-default}` by the values of environment variables. `$$` is a dollar sign. Any other
/// `$` stays. As in a shell, an empty variable takes the default too. The default itself holds no variables.
///
/// Returns the text and whether a variable was replaced.
///
/// # Errors
/// One line: a variable that is not set, or a malformed `${`.
pub fn substitute(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<(String, bool), String> {
    let (mut out, mut rest, mut replaced) = (String::with_capacity(text.len()), text, false);
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let Some(inner) = rest.strip_prefix('{') else {
            out.push('$');
            continue;
        };
        let Some(end) = inner.find('}') else {
            return Err("'${' without '}'; write $${ for the characters themselves".into());
        };
        let (name, default) = match inner[..end].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&inner[..end], None),
        };
        let first = name.bytes().next();
        let word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !word || first.is_none_or(|byte| byte.is_ascii_digit()) {
            // The text between the braces may be part of a password.
            return Err(
                "'${…}' does not name an environment variable; write ${NAME} or ${NAME:-default}, and $${ for the characters \
                 themselves"
                    .into(),
            );
        }
        match (
            lookup(name).filter(|value| default.is_none() || !value.is_empty()),
            default,
        ) {
            (Some(value), _) => out.push_str(&value),
            (None, Some(default)) => out.push_str(default),
            (None, None) => {
                return Err(format!(
                    "environment variable '{name}' is not set; set it, or write ${{{name}:-default}}"
                ));
            }
        }
        replaced = true;
        rest = &inner[end + 1..];
    }
    out.push_str(rest);
    Ok((out, replaced))
}

/// Parses `*` or an origin, into lower case.
pub fn origin(text: &str) -> Result<String, &'static str> {
    let host = text.split_once("://").map(|(_, host)| host);
    let named = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', ' ', '*', '?', '#']));
    if text == "*" || named {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("write an origin as \"https://example.org\", without a path, or \"*\"")
    }
}

/// Parses a method, which is case-sensitive.
pub fn method(text: &str) -> Result<String, String> {
    token(text)?;
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(format!(
            "methods are case-sensitive; did you mean \"{}\"?",
            text.to_ascii_uppercase()
        ));
    }
    Ok(text.into())
}

/// Parses the name of a header field.
pub fn token(text: &str) -> Result<String, String> {
    let byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || !text.bytes().all(byte) {
        return Err("it is not a name that HTTP allows".into());
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, millis) in [
            ("0s", 0),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1s500ms", 1500),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "10",
            "s",
            "10 s",
            "1.5s",
            "30s1m",
            "1s1s",
            "-1s",
            "10sec",
            "99999999999999999999s",
            "1y",
            "é",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1B", 1),
            ("64KiB", 65_536),
            ("10 MiB", 10 << 20),
            ("1GiB", 1 << 30),
            ("1kB", 1000),
            ("2MB", 2_000_000),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5MiB", "1M", "64kib", "99999999999GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn variables() {
        let lookup = |name: &str| match name {
            "HOME" => Some("/home/me".to_string()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        for (text, expected) in [
            ("plain", "plain"),
            ("${HOME}/www", "/home/me/www"),
            ("a${HOME}b${HOME}", "a/home/meb/home/me"),
            ("${NONE:-x y}", "x y"),
            ("${NONE:-}", ""),
            ("${EMPTY}", ""),
            ("${EMPTY:-x}", "x"),
            ("${HOME:-x}", "/home/me"),
            ("$$", "$"),
            ("$${HOME}", "${HOME}"),
            ("$2b$12$abc", "$2b$12$abc"),
            ("end$", "end$"),
        ] {
            assert_eq!(
                substitute(text, &lookup).map(|(text, _)| text),
                Ok(expected.to_string()),
                "{text}"
            );
        }
        assert_eq!(substitute("$HOME", &lookup), Ok(("$HOME".to_string(), false)));
        assert!(substitute("${HOME}", &lookup).unwrap().1);
        for (text, part) in [
            ("${NONE}", "'NONE' is not set"),
            ("${", "without '}'"),
            ("${}", "does not name"),
            ("${1A}", "does not name"),
            ("${A-b}", "does not name"),
        ] {
            assert!(substitute(text, &lookup).unwrap_err().contains(part), "{text}");
        }
    }
}
