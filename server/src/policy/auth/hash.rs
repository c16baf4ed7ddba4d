//! Hashes of passwords, in the forms that password files have.
//!
//! | form | what | |
//! |---|---|---|
//! | `$2a$`, `$2b$`, `$2y$` | bcrypt, `htpasswd -B` | |
//! | `$argon2id$`, `$argon2i$`, `$argon2d$` | argon2 | |
//! | `$y$` | yescrypt, `mkpasswd` and today's `/etc/shadow` | |
//! | `$5$`, `$6$` | SHA-crypt, `openssl passwd -6` | |
//! | `$apr1$`, `$1$` | 1,000 rounds of MD5, `htpasswd -m` | weak |
//! | `{SHA}` | one SHA-1 without a salt, `htpasswd -s` | weak |
//!
//! A weak hash is accepted with a warning: whoever steals the file tries billions of passwords in a second. The DES
//! form of `crypt` and passwords in clear text are refused.

use argon2::Argon2;
use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc::PasswordHash;
use md5::Md5;
use osier_web::wrap::same_secret;
use sha_crypt::ShaCrypt;
use sha1::Sha1;
use sha1::digest::Digest;
use yescrypt::Yescrypt;

use super::credentials::decode_base64;

/// The highest accepted cost of bcrypt. A higher one takes at least seven seconds for each password.
const BCRYPT_COST_MAX: u32 = 16;
/// Measured times of one round of bcrypt, of argon2 and yescrypt over one KiB, and of one round of SHA-crypt and of
/// MD5. They serve only to compare the costs of hashes.
const BCRYPT_NANOS: u64 = 55_000;
const ARGON2_NANOS: u64 = 1_000;
const YESCRYPT_NANOS: u64 = 4_500;
const SHA_CRYPT_NANOS: u64 = 500;
const MD5_NANOS: u64 = 300;
/// The most memory for argon2 and yescrypt, in KiB: 1 GiB. Each comparison needs it.
const MEMORY_MAX: u64 = 1 << 20;
/// The most passes of argon2 over its memory.
const ARGON2_PASSES_MAX: u32 = 64;
/// The most rounds of SHA-crypt, and the rounds of a hash that names none by `rounds=`.
const SHA_CRYPT_ROUNDS_MAX: u64 = 5_000_000;
const SHA_CRYPT_ROUNDS: u64 = 5_000;
const MD5_ROUNDS: u32 = 1_000;

/// The digits of the base64 of crypt, from 0 to 63.
const CRYPT_DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A hash of an accepted form, checked to be well-formed.
#[derive(Debug)]
pub struct Hash {
    text: String,
    kind: Kind,
    /// About how long a comparison takes, in nanoseconds.
    pub cost: u64,
    /// How many passwords were compared with it.
    #[cfg(test)]
    pub comparisons: std::sync::atomic::AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bcrypt,
    Argon2,
    Yescrypt,
    ShaCrypt,
    /// The prefix is hashed too.
    Md5(&'static str),
    Sha1,
}

impl Hash {
    /// Reads a hash.
    ///
    /// # Errors
    /// One line, which never shows the text.
    pub fn parse(text: &str) -> Result<Hash, String> {
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| text.starts_with(prefix));
        let (kind, cost) = if begins(&["$2a$", "$2b$", "$2y$"]) {
            (Kind::Bcrypt, bcrypt(text)?)
        } else if begins(&["$argon2id$", "$argon2i$", "$argon2d$"]) {
            (Kind::Argon2, argon2(text)?)
        } else if begins(&["$y$"]) {
            (Kind::Yescrypt, yescrypt(text)?)
        } else if begins(&["$5$", "$6$"]) {
            (Kind::ShaCrypt, sha_crypt(text)?)
        } else if let Some(prefix) = ["$apr1$", "$1$"].into_iter().find(|prefix| text.starts_with(prefix)) {
            let (salt, hash) = split_md5(text, prefix).ok_or("the MD5 hash is malformed")?;
            if salt.len() > 8 || hash.len() != 22 || !is_crypt(salt) || !is_crypt(hash) {
                return Err("the MD5 hash is malformed".into());
            }
            (Kind::Md5(prefix), MD5_NANOS * u64::from(MD5_ROUNDS))
        } else if let Some(hash) = text.strip_prefix("{SHA}") {
            if decode_base64(hash.as_bytes()).is_none_or(|hash| hash.len() != 20) {
                return Err("the SHA-1 hash is malformed".into());
            }
            (Kind::Sha1, MD5_NANOS)
        } else {
            return Err(refused(text));
        };
        Ok(Hash {
            text: text.to_owned(),
            kind,
            cost,
            #[cfg(test)]
            comparisons: Default::default(),
        })
    }

    /// The text of the hash, as the file spells it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The name of a weak form.
    pub fn weakness(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Md5("$1$") => Some("MD5-crypt"),
            Kind::Md5(_) => Some("apr1"),
            Kind::Sha1 => Some("{SHA}"),
            _ => None,
        }
    }

    /// Compares a password. The time does not depend on where they differ. It takes as long as the hash's cost demands,
    /// so it runs on the blocking pool.
    pub fn verify(&self, password: &str) -> bool {
        #[cfg(test)]
        self.comparisons.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (text, bytes) = (self.text.as_str(), password.as_bytes());
        match self.kind {
            // bcrypt uses only the first 72 bytes of a password, in every implementation.
            Kind::Bcrypt => bcrypt::verify(password, text).unwrap_or(false),
            Kind::Argon2 => {
                PasswordHash::new(text).is_ok_and(|hash| Argon2::default().verify_password(bytes, &hash).is_ok())
            }
            Kind::Yescrypt => Yescrypt::default().verify_password(bytes, text).is_ok(),
            Kind::ShaCrypt => ShaCrypt::default().verify_password(bytes, text).is_ok(),
            Kind::Md5(prefix) => split_md5(text, prefix)
                .is_some_and(|(salt, hash)| same_secret(&md5_crypt(bytes, salt.as_bytes(), prefix.as_bytes()), hash)),
            Kind::Sha1 => {
                let expected = text
                    .strip_prefix("{SHA}")
                    .and_then(|text| decode_base64(text.as_bytes()));
                let actual = Sha1::digest(bytes);
                expected.is_some_and(|expected| {
                    let differ = expected
                        .iter()
                        .zip(actual.iter())
                        .fold(0, |differ, (one, other)| differ | (one ^ other));
                    expected.len() == actual.len() && std::hint::black_box(differ) == 0
                })
            }
        }
    }
}

fn refused(text: &str) -> String {
    let advice = "make the line with 'htpasswd -B -C 12'";
    match text.len() == 13 && is_crypt(text) {
        true => format!("the password is hashed with the DES form of crypt, which uses 8 characters of it; {advice}"),
        false => {
            format!("the password is not hashed with bcrypt, argon2, yescrypt, SHA-crypt, apr1 or {{SHA}}; {advice}")
        }
    }
}

fn bcrypt(text: &str) -> Result<u64, String> {
    let parts: bcrypt::HashParts = text.parse().map_err(|_| "the bcrypt hash is malformed")?;
    match parts.get_cost() {
        cost @ 4..=BCRYPT_COST_MAX => Ok(BCRYPT_NANOS << cost),
        _ => Err(format!(
            "the cost of the bcrypt hash is not from 4 to {BCRYPT_COST_MAX}"
        )),
    }
}

fn argon2(text: &str) -> Result<u64, String> {
    let malformed = || "the argon2 hash is malformed";
    let hash = PasswordHash::new(text).map_err(|_| malformed())?;
    let params = argon2::Params::try_from(&hash).map_err(|_| malformed())?;
    if hash.salt.is_none() || hash.hash.is_none() {
        return Err(malformed().into());
    }
    if u64::from(params.m_cost()) > MEMORY_MAX || params.t_cost() > ARGON2_PASSES_MAX {
        return Err(format!(
            "the argon2 hash asks for more than {MEMORY_MAX} KiB or {ARGON2_PASSES_MAX} passes"
        ));
    }
    Ok(u64::from(params.m_cost()) * u64::from(params.t_cost()) * ARGON2_NANOS)
}

fn yescrypt(text: &str) -> Result<u64, String> {
    let malformed = || "the yescrypt hash is malformed, or has a parameter that is not supported".to_owned();
    let [params, salt, hash] = text[3..].split('$').collect::<Vec<_>>()[..] else {
        return Err(malformed());
    };
    let params: yescrypt::Params = params.parse().map_err(|_| malformed())?;
    if !is_crypt(salt) || !is_crypt(hash) || hash.len() != 43 {
        return Err(malformed());
    }
    let kib = params.n().saturating_mul(u64::from(params.r())) / 8;
    let work = kib.saturating_mul(u64::from(params.p()));
    match work <= MEMORY_MAX {
        true => Ok(work * YESCRYPT_NANOS),
        false => Err(format!("the yescrypt hash asks for more than {MEMORY_MAX} KiB")),
    }
}

fn sha_crypt(text: &str) -> Result<u64, String> {
    let malformed = || "the SHA-crypt hash is malformed".to_owned();
    let length = if text.starts_with("$5$") { 43 } else { 86 };
    let parts: Vec<&str> = text[3..].split('$').collect();
    let (rounds, salt, hash) = match parts[..] {
        [rounds, salt, hash] => (rounds.strip_prefix("rounds=").ok_or_else(malformed)?, salt, hash),
        [salt, hash] => ("", salt, hash),
        _ => return Err(malformed()),
    };
    let rounds: u64 = match rounds {
        "" => SHA_CRYPT_ROUNDS,
        _ => rounds.parse().map_err(|_| malformed())?,
    };
    if salt.len() > 16 || hash.len() != length || !is_crypt(hash) || rounds < 1_000 {
        return Err(malformed());
    }
    match rounds <= SHA_CRYPT_ROUNDS_MAX {
        true => Ok(rounds * SHA_CRYPT_NANOS),
        false => Err(format!(
            "the SHA-crypt hash asks for more than {SHA_CRYPT_ROUNDS_MAX} rounds"
        )),
    }
}

fn is_crypt(text: &str) -> bool {
    text.bytes().all(|byte| CRYPT_DIGITS.contains(&byte))
}

/// The salt and the hash of the MD5 form.
fn split_md5<'t>(text: &'t str, prefix: &str) -> Option<(&'t str, &'t str)> {
    text.strip_prefix(prefix)?.split_once('$')
}

/// The MD5 form of crypt, and Apache's variant of it, which differ in the prefix. Source: crypt(5) of FreeBSD,
/// `apr_md5.h`.
fn md5_crypt(password: &[u8], salt: &[u8], prefix: &[u8]) -> String {
    let hash = |parts: &[&[u8]]| -> [u8; 16] {
        let mut md5 = Md5::new();
        parts.iter().for_each(|part| md5.update(part));
        md5.finalize().into()
    };
    let other = hash(&[password, salt, password]);
    let mut first = Md5::new();
    [password, prefix, salt].iter().for_each(|part| first.update(part));
    for at in (0..password.len()).step_by(16) {
        first.update(&other[..(password.len() - at).min(16)]);
    }
    let mut bits = password.len();
    while bits > 0 {
        match bits & 1 {
            1 => first.update([0]),
            _ => first.update(&password[..1]),
        }
        bits >>= 1;
    }
    let mut last: [u8; 16] = first.finalize().into();
    for round in 0..MD5_ROUNDS {
        let (begin, end): (&[u8], &[u8]) = match round & 1 {
            1 => (password, &last),
            _ => (&last, password),
        };
        let salt = if round % 3 == 0 { b"" } else { salt };
        let middle = if round % 7 == 0 { b"" } else { password };
        last = hash(&[begin, salt, middle, end]);
    }
    let mut text = String::with_capacity(22);
    let mut push = |bits: u32, digits: u32| {
        (0..digits).for_each(|digit| text.push(char::from(CRYPT_DIGITS[(bits >> (6 * digit) & 63) as usize])));
    };
    let byte = |at: usize| u32::from(last[at]);
    for (high, middle, low) in [(0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5)] {
        push(byte(high) << 16 | byte(middle) << 8 | byte(low), 4);
    }
    push(byte(11), 2);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The password "sesame", hashed by the crypt(3) of Debian, and by openssl.
    const SESAME: [(&str, bool); 7] = [
        (
            "$6$saltstring$zw6YcBRuwlGueZoWIkK6CRJbQmJbhVf1zPxCfDBsJpbBlxfJ610F8Vp0i93QFh0AmoYe0z/GrJISxBfRQSsGe1",
            false,
        ),
        (
            "$5$rounds=10000$saltstringsaltst$e.ba9rBHx93qCCXA8745YXzNyn5v4Lvu4Fg.3GhUisD",
            false,
        ),
        (
            "$y$j9T$F5Jx5fExrKuPp53xLKQ..1$2XG8TbeFGEUHepjXSRRwTEN/pknneEfp/PquC6DSDN4",
            false,
        ),
        ("$2y$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW", false),
        ("$1$abcdefgh$5XhrJpGu.bBXAZh4lT8oY/", true),
        ("$apr1$abcdefgh$GQVaHFsauSKl0cgw4bVFJ/", true),
        ("{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw=", true),
    ];

    #[test]
    fn each_form_accepts_its_password_and_no_other() {
        for (text, is_weak) in SESAME {
            let hash = Hash::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert!(hash.verify("sesame"), "{text}");
            for wrong in ["", "sesam", "sesame ", "Sesame", "sesamesesamesesamesesamesesame"] {
                assert!(!hash.verify(wrong), "{text}: {wrong}");
            }
            assert_eq!(hash.weakness().is_some(), is_weak, "{text}");
        }
    }

    #[test]
    fn malformed_hashes_are_refused() {
        for (text, _) in SESAME {
            for length in 0..text.len() {
                assert!(Hash::parse(&text[..length]).is_err(), "{}", &text[..length]);
            }
        }
        for text in [
            "sesame",
            "{PLAIN}sesame",
            "{SSHA}AAAA",
            "abnqrLigH.z/s",
            "$6$rounds=10$salt$zw6YcBRuwlGueZoWIkK6CRJbQmJbhVf1zPxCfDBsJpbBlxfJ610F8Vp0i93QFh0AmoYe0z/GrJISxBfRQSsGe1",
            "$6$rounds=999999999$s$zw6YcBRuwlGueZoWIkK6CRJbQmJbhVf1zPxCfDBsJpbBlxfJ610F8Vp0i93QFh0AmoYe0z/GrJISxBfRQSsGe1",
            "$y$jMT$F5Jx5fExrKuPp53xLKQ..1$2XG8TbeFGEUHepjXSRRwTEN/pknneEfp/PquC6DSDN4",
            "$y$j9T$F5Jx5fExrKuPp53xLKQ..1$2XG8TbeFGEUHepjXSRRwTEN/pknneEfp/PquC6DSDN4$x",
            "$apr1$abcdefghi$GQVaHFsauSKl0cgw4bVFJ/",
            "$apr1$abc$GQVaHFsauSKl0cgw4bVFJ",
            "{SHA}AAAA",
            "$7$x",
        ] {
            assert!(Hash::parse(text).is_err(), "{text}");
        }
        assert!(Hash::parse("abnqrLigH.z/s").unwrap_err().contains("DES"));
    }
}
