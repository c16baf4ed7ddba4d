//! Tokens of every algorithm, made with openssl, and hostile ones.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use osier_web::test::Client;
use osier_web::wrap::jwt::{Algorithm, Invalid, Jwt, Keys, Options};
use osier_web::{Request, Router};

use crate::common::site;
use crate::ws_client::Peer;

const SET: &str = include_str!("keys.json");
const RSA: &str = include_str!("rsa.pem");

/// A token of the test keys. It is valid from 2001 to 2033.
fn token(name: &str) -> &'static str {
    let lines = include_str!("tokens.txt")
        .lines()
        .filter_map(|line| line.split_once(' '));
    lines
        .filter(|(known, _)| *known == name)
        .map(|(_, token)| token)
        .next()
        .unwrap()
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

const NOW: u64 = 1_700_000_000;

fn options() -> Options {
    Options {
        audiences: vec!["app".into()],
        ..Options::default()
    }
}

fn jwt(keys: &str, change: impl FnOnce(&mut Options)) -> Jwt {
    let mut options = options();
    change(&mut options);
    Jwt::with(Keys::parse(keys).unwrap(), options).unwrap()
}

fn outcome(jwt: &Jwt, token: &str) -> Result<(), Invalid> {
    jwt.verify(token, at(NOW)).map(drop)
}

/// Base64url, for tokens that are made up.
fn encode(text: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut encoded = String::new();
    for group in text.as_bytes().chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        let digit = |at: usize| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
        encoded.extend((0..=group.len()).map(digit));
    }
    encoded
}

#[test]
fn each_algorithm_is_verified_by_the_keys_of_a_set() {
    let all = jwt(SET, |_| {});
    for (name, algorithm) in Algorithm::ALL {
        let token = token(name);
        assert_eq!(outcome(&all, token), Ok(()), "{name}");
        // Only the algorithms that are named are accepted.
        let one = jwt(SET, |options| options.algorithms = vec![*algorithm]);
        for (other, _) in Algorithm::ALL {
            let expected = if other == name { Ok(()) } else { Err(Invalid::Algorithm) };
            assert_eq!(outcome(&one, self::token(other)), expected, "{other} for {name}");
        }
        // A changed signature, claim or header is noticed.
        for part in 0..3 {
            let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
            let replaced = match parts[part].as_bytes()[3] {
                b'A' => "B",
                _ => "A",
            };
            parts[part].replace_range(3..4, replaced);
            assert!(outcome(&all, &parts.join(".")).is_err(), "{name}, part {part}");
        }
    }
}

#[test]
fn each_key_is_read_from_pem() {
    for (pem, names) in [
        (RSA, &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"][..]),
        (include_str!("rsa_pkcs1.pem"), &["RS256", "PS512"]),
        (include_str!("p256.pem"), &["ES256"]),
        (include_str!("p384.pem"), &["ES384"]),
        (include_str!("ed25519.pem"), &["EdDSA"]),
    ] {
        let one = jwt(pem, |_| {});
        for (name, _) in Algorithm::ALL {
            if names.contains(name) {
                assert_eq!(outcome(&one, token(name)), Ok(()), "{name}");
            } else if !name.starts_with("RS") && !name.starts_with("PS") {
                assert_eq!(outcome(&one, token(name)), Err(Invalid::Algorithm), "{name}");
            }
        }
    }
    let two = [include_str!("p256.pem"), include_str!("ed25519.pem")].concat();
    assert_eq!(outcome(&jwt(&two, |_| {}), token("EdDSA")), Ok(()));
    assert_eq!(outcome(&jwt(&two, |_| {}), token("ES256")), Ok(()));
}

#[test]
fn keys_that_verify_nothing_are_mistakes() {
    let small = include_str!("small.pem");
    let cut = RSA.replace("MII", "MIJ");
    for (text, expected) in [
        ("", "neither PEM"),
        ("secret", "neither PEM"),
        (small, "1024 bits"),
        (&cut, "malformed"),
        (
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
            "private key",
        ),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
            "certificate",
        ),
        ("-----BEGIN PUBLIC KEY-----\nAAAA", "lacks its"),
        ("{", "malformed"),
        ("{\"keys\":[]}", "no key"),
        (
            "{\"keys\":[{\"kty\":\"RSA\",\"use\":\"enc\",\"n\":\"AA\",\"e\":\"AQAB\"}]}",
            "no key",
        ),
        ("{\"keys\":[{}]}", "key 1: 'kty' is missing"),
        ("{\"kty\":\"oct\",\"k\":\"AAAA\"}", "3 bytes"),
        (
            "{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"AA\",\"y\":\"AA\"}",
            "wrong length",
        ),
        ("{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"AA==\"}", "base64url"),
    ] {
        let error = Keys::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text:.60}: {error}");
    }
}

#[test]
fn no_token_chooses_its_own_rules() {
    let (all, rsa) = (jwt(SET, |_| {}), jwt(RSA, |_| {}));
    // The public key as the secret of HS256.
    assert_eq!(outcome(&rsa, token("confused")), Err(Invalid::Algorithm));
    assert_eq!(outcome(&all, token("confused")), Err(Invalid::Signature));
    let claims = token("HS256").split('.').nth(1).unwrap();
    let signature = token("HS256").split('.').nth(2).unwrap();
    let with = |head: &str, signature: &str| outcome(&all, &format!("{}.{claims}.{signature}", encode(head)));
    for name in ["none", "None", "NONE", "hs256", "RS1", "HS1", "ES256K", ""] {
        for signature in ["", signature] {
            let head = format!("{{\"alg\":\"{name}\"}}");
            assert_eq!(with(&head, signature), Err(Invalid::Algorithm), "{name}");
        }
    }
    assert_eq!(
        with("{\"alg\":\"HS256\",\"crit\":[\"exp\"],\"exp\":1}", signature),
        Err(Invalid::Critical)
    );
    assert_eq!(
        with("{\"alg\":\"HS256\",\"kid\":\"rs\"}", signature),
        Err(Invalid::Algorithm)
    );
    assert_eq!(
        with("{\"alg\":\"HS256\",\"kid\":\"nobody\"}", signature),
        Err(Invalid::Algorithm)
    );
    for head in [
        "{}",
        "[]",
        "{\"alg\":1}",
        "{\"alg\":\"HS256\",\"kid\":1}",
        "{\"alg\":\"HS256\"",
        "\"HS256\"",
    ] {
        assert_eq!(with(head, signature), Err(Invalid::Malformed), "{head}");
    }
    // Every truncation, other forms, and one that is too long.
    for name in ["HS256", "ES256"] {
        let token = token(name);
        for length in 0..token.len() {
            assert!(outcome(&all, &token[..length]).is_err(), "{name}: {length}");
        }
        assert!(outcome(&all, &format!("{token}=")).is_err() && outcome(&all, &format!("{token}.")).is_err());
        assert!(outcome(&all, &format!(".{token}")).is_err() && outcome(&all, &token.replace('.', "..")).is_err());
    }
    assert_eq!(outcome(&all, &"a".repeat(1 << 20)), Err(Invalid::Malformed));
    assert_eq!(
        outcome(&all, &format!("{}.{claims}.{signature}", "e".repeat(15_000))),
        Err(Invalid::Malformed)
    );
}

#[test]
fn times_issuer_audience_and_claims_decide() {
    let token = token("EdDSA");
    let verify = |seconds, change: &dyn Fn(&mut Options)| jwt(SET, change).verify(token, at(seconds)).map(drop);
    let (end, begin) = (2_000_000_000, 1_000_000_000);
    for (seconds, expected) in [
        (begin - 61, Err(Invalid::NotYet)),
        (begin - 60, Ok(())),
        (NOW, Ok(())),
        (end + 59, Ok(())),
        (end + 60, Err(Invalid::Expired)),
        (0, Err(Invalid::NotYet)),
    ] {
        assert_eq!(verify(seconds, &|_| {}), expected, "{seconds}");
    }
    assert_eq!(
        verify(end, &|options| options.leeway = Duration::ZERO),
        Err(Invalid::Expired)
    );
    let demand = |change: &dyn Fn(&mut Options)| verify(NOW, change);
    assert_eq!(
        demand(&|options| options.issuers = vec!["https://issuer.example".into()]),
        Ok(())
    );
    assert_eq!(
        demand(&|options| options.issuers = vec!["https://other.example".into()]),
        Err(Invalid::Issuer)
    );
    assert_eq!(demand(&|options| options.audiences.clear()), Err(Invalid::Audience));
    assert_eq!(
        demand(&|options| options.audiences = vec!["x".into(), "other".into()]),
        Ok(())
    );
    assert_eq!(
        demand(&|options| options.audiences = vec!["x".into()]),
        Err(Invalid::Audience)
    );
    assert_eq!(
        demand(&|options| options.required.push("email".into())),
        Err(Invalid::Missing)
    );
    for (claim, value, expected) in [
        ("groups", "b", Ok(())),
        ("groups", "c", Err(Invalid::Claim)),
        ("admin", "true", Ok(())),
        ("sub", "ada", Ok(())),
        ("sub", "ad", Err(Invalid::Claim)),
        ("scope", "write", Ok(())),
        ("scope", "rea", Err(Invalid::Claim)),
        ("none", "x", Err(Invalid::Claim)),
    ] {
        let claims = vec![(claim.to_owned(), vec!["?".to_owned(), value.to_owned()])];
        assert_eq!(
            demand(&|options| options.claims = claims.clone()),
            expected,
            "{claim} {value}"
        );
    }
}

/// A client of an application behind the keys of the test, that tells its fields.
fn app(change: impl FnOnce(&mut Options)) -> Client {
    Client::new(router(change))
}

fn router(change: impl FnOnce(&mut Options)) -> Router {
    let tell = |request: &mut Request<'_>| {
        let fields = request
            .headers()
            .filter(|(name, _)| name.to_ascii_lowercase().starts_with('x'));
        let fields = fields.map(|(name, value)| format!("{name}={} ", String::from_utf8_lossy(value)));
        fields.collect::<String>()
    };
    Router::new().get("/", tell).wrap(jwt(SET, change).wrap())
}

#[test]
fn claims_reach_the_handler_and_a_client_cannot_send_them() {
    let client = app(|options| {
        let pass = [
            ("sub", "X-User"),
            ("groups", "X-Groups"),
            ("admin", "X-Admin"),
            ("email", "X-Email"),
        ];
        options.pass = pass.map(|(claim, field)| (claim.to_owned(), field.to_owned())).into();
        options.cookie = Some("session".into());
    });
    let bearer = format!("bearer {}", token("ES384"));
    let spoofed = client
        .get("/")
        .header("x_user", "root")
        .header("X-EMAIL", "e@x")
        .header("x-own", "1");
    let reply = spoofed.header("authorization", &bearer).send();
    assert_eq!(reply.text(), "x-own=1 X-User=ada X-Groups=a,b X-Admin=true ");
    let reply = client
        .get("/")
        .header("cookie", format!("a=1; session={}", token("PS256")))
        .send();
    assert_eq!(reply.status(), 200);
    // Authorization comes first, also if it is wrong.
    let both = client.get("/").header("cookie", format!("session={}", token("PS256")));
    assert_eq!(both.header("authorization", "Bearer x.y.z").send().status(), 401);
}

#[test]
fn a_handler_finds_no_token_that_was_not_verified() {
    let site = site(router(|options| options.cookie = Some("session".into())));
    // `V` and `F` stand for a valid and a forged token.
    let ask = |fields: &[u8]| {
        let mut bytes = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n".to_vec();
        for byte in fields {
            match byte {
                b'V' => bytes.extend(token("PS256").bytes()),
                b'F' => bytes.extend(token("confused").bytes()),
                byte => bytes.push(*byte),
            }
        }
        bytes.extend(b"\r\n");
        let head = Peer::with(site.addr, &bytes).head;
        head[9..12].parse::<u16>().unwrap()
    };
    for good in [
        &b"Cookie: session=V\r\n"[..],
        b"cookie: session=V; session=\"V\"\r\nauthorization: bearer V\r\n",
        b"cookie: session=V\r\nauthorization: bearer\tV\r\n",
        b"cookie: session=V\r\nauthorization: Basic dTpw\r\n",
        b"cookie: a=b, c d=session; my-session=1; session = V\r\n",
    ] {
        assert_eq!(ask(good), 200, "{}", good.escape_ascii());
    }
    for bad in [
        &b"cookie: session=V; session=F\r\n"[..],
        b"cookie: session=F; session=V\r\n",
        b"cookie: session=V\r\ncookie: session=F\r\n",
        b"cookie: session=F\r\nauthorization: bearer V\r\n",
        b"cookie: session=V; session=V; session=V; session=V; session=V\r\n",
        b"cookie: session=F; x=\xff\r\ncookie: session=V\r\n",
        b"cookie: session=F; x=\xff\r\nauthorization: bearer V\r\n",
        b"cookie: session=V\r\nauthorization: bearer\tF\r\n",
        b"cookie: session=V\r\nauthorization: bearer F\xff\r\n",
        b"cookie: session=V\r\nauthorization: F\r\n",
        b"cookie: session=V\r\nauthorization: JWT F\r\n",
        b"cookie: session=V\r\nauthorization: Basic F\r\n",
        b"cookie: session=V\r\nauthorization: Basic dTpw, Bearer F\r\n",
        b"cookie: a=b, session=F; session=V\r\n",
        b"cookie: session=V; a=b session =F\r\n",
    ] {
        assert_eq!(ask(bad), 401, "{}", bad.escape_ascii());
    }
}

#[test]
fn a_refusal_says_why_as_rfc_6750_has_it() {
    let client = app(|options| {
        options.realm = Some("api".into());
        options.claims = vec![("groups".into(), vec!["root".into()])];
    });
    let ask = |authorization: &str| {
        let reply = client.get("/").header("authorization", authorization).send();
        (
            reply.status().as_u16(),
            reply.header("www-authenticate").unwrap_or_default().to_owned(),
        )
    };
    let bare = (401, "Bearer realm=\"api\"".to_owned());
    let reply = client.get("/").send();
    assert_eq!(
        (reply.status().as_u16(), reply.header("www-authenticate")),
        (401, Some("Bearer realm=\"api\""))
    );
    assert_eq!((ask("Basic YTpi"), ask("Bearer")), (bare.clone(), bare));
    assert_eq!(
        ask("Bearer x"),
        (
            401,
            "Bearer realm=\"api\", error=\"invalid_token\", error_description=\"the token is malformed\"".into()
        )
    );
    let expected =
        "Bearer realm=\"api\", error=\"insufficient_scope\", error_description=\"the token does not allow this\"";
    assert_eq!(ask(&format!("Bearer {}", token("HS512"))), (403, expected.into()));
}
