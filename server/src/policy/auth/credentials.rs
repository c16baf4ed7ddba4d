//! Parses Basic credentials: user and password in base64 (RFC 7617, RFC 4648). Malformed credentials are treated as
//! none.

/// Bytes of the longest accepted credentials: user and password together, decoded. Password managers make shorter ones.
const CREDENTIALS_MAX: usize = 1024;

/// A user name and a password.
pub struct Credentials {
    /// User name, never empty.
    pub user: String,
    pub password: String,
}

impl Credentials {
    /// Parses the value of `Authorization`. It must be UTF-8, as the challenge demands, without control characters.
    pub fn parse(field: &[u8]) -> Option<Credentials> {
        let (scheme, token) = field.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") || token.len() > CREDENTIALS_MAX * 4 / 3 {
            return None;
        }
        let text = String::from_utf8(decode_base64(token.trim_ascii())?).ok()?;
        if text.contains(char::is_control) {
            return None;
        }
        let (user, password) = text.split_once(':')?;
        (!user.is_empty()).then(|| Credentials {
            user: user.into(),
            password: password.into(),
        })
    }
}

/// Decodes base64 with padding. Other characters and non-zero unused bits are refused.
pub fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    // The library accepts several texts in a row, each with its padding. A field has only one.
    let first = text.iter().position(|&byte| byte == b'=').unwrap_or(text.len());
    let is_one = text.len() - first <= 2;
    data_encoding::BASE64.decode(text).ok().filter(|_| is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc_and_no_other() {
        // RFC 4648, section 10.
        for (text, decoded) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decode_base64(text.as_bytes()), Some(decoded.into()), "{text}");
        }
        assert_eq!(decode_base64(b"+/+/"), Some(vec![0xfb, 0xff, 0xbf]));
        for text in [
            "Zg", "Zg=", "Z===", "====", "Zh==", "Zm9=", "Zg==Zg==", "Zm9v\n", "Zm 9", "-_-_", "Zm9v=", "Z=g=",
        ] {
            assert_eq!(decode_base64(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn only_what_rfc_7617_allows_is_somebody() {
        let parsed = |field: &str| Credentials::parse(field.as_bytes()).map(|c| (c.user, c.password));
        let both = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(
            parsed("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
            both("Aladdin", "open sesame")
        );
        assert_eq!(
            parsed("basic  QWxhZGRpbjpvcGVuIHNlc2FtZQ== "),
            both("Aladdin", "open sesame")
        );
        assert_eq!(parsed("BASIC dGVzdDoxMjPCow=="), both("test", "123£"));
        assert_eq!(parsed("Basic YTo="), both("a", ""));
        assert_eq!(parsed("Basic YTpiOmM="), both("a", "b:c"));
        for field in [
            "",
            "Basic",
            "Basic ",
            "Bearer YTpi",
            "BasicYTpi",
            "Basic YQ==",     // no colon
            "Basic OmI=",     // no user
            "Basic YTpiCg==", // a line break
            "Basic YTr/",     // not UTF-8
            "Basic YTpi, Basic YTpi",
        ] {
            assert_eq!(parsed(field), None, "{field}");
        }
        let long = format!("Basic {}", "YTph".repeat(CREDENTIALS_MAX / 3 + 1));
        assert_eq!(parsed(&long), None);
    }
}
