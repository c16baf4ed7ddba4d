//! The cookies of a test client.

/// Cookies as a browser keeps them that visits one host alone. Neither `Domain` nor `Secure` matters.
#[derive(Default)]
pub(super) struct Jar(Vec<Kept>);

struct Kept {
    name: String,
    value: String,
    path: String,
}

impl Jar {
    /// The value of the field `cookie` of a request. `None` if no cookie is for its path.
    pub(super) fn field(&self, target: &str) -> Option<String> {
        let path = path_of(target);
        let mut fitting: Vec<&Kept> = self.0.iter().filter(|kept| is_for(&kept.path, path)).collect();
        // The most specific one first (RFC 6265 section 5.4).
        fitting.sort_by_key(|kept| std::cmp::Reverse(kept.path.len()));
        let pairs: Vec<String> = fitting
            .iter()
            .map(|kept| format!("{}={}", kept.name, kept.value))
            .collect();
        (!pairs.is_empty()).then(|| pairs.join("; "))
    }

    /// Takes over a field `set-cookie` of the response for `target`.
    pub(super) fn set(&mut self, target: &str, field: &str) {
        let mut parts = field.split(';').map(str::trim);
        let Some((name, value)) = parts.next().and_then(|pair| pair.split_once('=')) else {
            return;
        };
        let (mut path, mut is_removed) = (folder_of(path_of(target)), false);
        for attribute in parts {
            match attribute.split_once('=') {
                Some((name, value)) if name.eq_ignore_ascii_case("path") && value.starts_with('/') => path = value,
                Some((name, value)) if name.eq_ignore_ascii_case("max-age") => {
                    is_removed = value.parse().is_ok_and(|seconds: i64| seconds <= 0);
                }
                _ => {}
            }
        }
        let (name, value, path) = (name.trim().to_owned(), value.trim().to_owned(), path.to_owned());
        self.0.retain(|kept| (&kept.name, &kept.path) != (&name, &path));
        if !is_removed {
            self.0.push(Kept { name, value, path });
        }
    }
}

fn path_of(target: &str) -> &str {
    let path = target.split('?').next().unwrap_or_default();
    if path.starts_with('/') { path } else { "/" }
}

/// The path of a cookie that names none (RFC 6265 section 5.1.4).
fn folder_of(path: &str) -> &str {
    match path.rfind('/') {
        None | Some(0) => "/",
        Some(end) => &path[..end],
    }
}

/// Whether a cookie for `prefix` is sent with a request for `path`.
fn is_for(prefix: &str, path: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || prefix.ends_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_go_to_their_paths_until_they_are_removed() {
        let mut jar = Jar::default();
        assert_eq!(jar.field("/"), None);
        jar.set("/login?next=/a", "session=1; HttpOnly; Secure; Path=/; Max-Age=60");
        jar.set("/shop/cart", "cart=a=b");
        jar.set("/", "theme=dark; path=/shop; Max-Age=x");
        jar.set("/", "nonsense; Path=/");
        assert_eq!(jar.field("/shop?x").as_deref(), Some("cart=a=b; theme=dark; session=1"));
        assert_eq!(jar.field("/shop/x").as_deref(), Some("cart=a=b; theme=dark; session=1"));
        assert_eq!(jar.field("/shopping").as_deref(), Some("session=1"));
        jar.set("/shop/", "theme=light");
        jar.set("/", "session=2; Path=/");
        assert_eq!(jar.field("/shop").as_deref(), Some("cart=a=b; theme=light; session=2"));
        jar.set("/", "cart=; Path=/; Max-Age=0");
        jar.set(
            "/",
            "session=; Path=/; Max-Age=0; Expires=Thu, 01 Jan 1970 00:00:00 GMT",
        );
        assert_eq!(jar.field("http://host/").as_deref(), None);
        assert_eq!(jar.field("/shop").as_deref(), Some("cart=a=b; theme=light"));
    }
}
