//! Parses texts with names in them: `$name`, `${name}`, and `$$` for a dollar sign.

/// A piece of a text. `N` is the meaning of a name.
#[derive(Clone, Debug, PartialEq)]
pub enum Part<N> {
    Text(String),
    Name(N),
}

/// Parses a text. `resolve` gives a name its meaning. A name may also be a number, or empty after a lone `$`.
///
/// # Errors
/// The errors of `resolve`, and a `${` without its `}`.
pub fn parse<N>(text: &str, resolve: impl Fn(&str) -> Result<N, String>) -> Result<Vec<Part<N>>, String> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        plain.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            plain.push('$');
            rest = after;
            continue;
        }
        let (name, after) = if let Some(braced) = after.strip_prefix('{') {
            braced.split_once('}').ok_or("'${' without its '}'")?
        } else {
            let digits = after.starts_with(|c: char| c.is_ascii_digit());
            let name = |c: char| {
                if digits {
                    c.is_ascii_digit()
                } else {
                    c.is_ascii_alphanumeric() || c == '_'
                }
            };
            after.split_at(after.find(|c| !name(c)).unwrap_or(after.len()))
        };
        let name = resolve(name)?;
        if !plain.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut plain)));
        }
        parts.push(Part::Name(name));
        rest = after;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok(parts)
}
