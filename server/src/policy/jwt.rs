//! `jwt`: a signed token names the user. The check itself is `osier_web::wrap::jwt`; the keys are read again when their
//! file changes.

use std::path::PathBuf;

use osier_web::http::StatusCode;
use osier_web::wrap::jwt::{Claims, Jwt, Keys, Options};
use osier_web::{Request, Response};

use crate::log::operator::Say;
use crate::policy::watched::Watched;
use crate::reader::Reason;

/// The settings of `jwt`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The file with the keys: PEM, or a JWK set.
    pub keys: PathBuf,
    pub options: Options,
    /// The claim with the name of the user.
    pub user: String,
}

/// Verifies the tokens of requests.
pub struct Tokens {
    jwt: Watched<Jwt>,
    user: String,
}

impl Tokens {
    /// Reads the keys. A file that does not exist yet is no error: every request gets a 503 until it is there.
    ///
    /// # Errors
    /// One line: a mistake in the file or in the settings.
    pub fn open(settings: &Settings, say: Say) -> Result<Tokens, Reason> {
        let options = settings.options.clone();
        // A mistake in the settings shows also while there is no file.
        Jwt::with(Keys::secret(&[0; 32])?, options.clone())?;
        let (of_keys, path) = (say.clone(), settings.keys.clone());
        let parse = move |text: &str| {
            let keys = Keys::parse(text)?;
            for why in keys.skipped() {
                of_keys.warning(format_args!("key file {}: a key is left out: {why}", path.display()));
            }
            Jwt::with(keys, options.clone()).map_err(String::from)
        };
        let jwt = Watched::open(&settings.keys, "key file", say, parse)?;
        let user = settings.user.clone();
        Ok(Tokens { jwt, user })
    }

    /// Verifies the token of one request, and passes its claims on. Its user is known to the log then, unless `auth` has named one.
    ///
    /// # Errors
    /// The response to send: 401, 403, or 503 without keys.
    ///
    /// # Suspends
    /// While the file is read.
    pub fn check(&self, request: &mut Request<'_>) -> Result<(), Response> {
        let Some(jwt) = self.jwt.current() else {
            return Err(Response::new(StatusCode::SERVICE_UNAVAILABLE).body("503 Service Unavailable\n"));
        };
        jwt.check(request)?;
        let claims = request.extensions().get::<Claims>();
        if request.user().is_none()
            && let Some(name) = claims.and_then(|claims| claims.text(&self.user))
        {
            request.set_user(name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use osier_web::test::Client;
    use osier_web::{Next, Router};
    use std::sync::{Arc, Mutex};
    use testkit::Folder;

    #[test]
    fn keys_are_read_again_when_their_file_changes() {
        let folder = Folder::new();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&lines);
        let settings = Settings {
            keys: folder.path().join("keys.json"),
            options: Options {
                required: Vec::new(),
                ..Options::default()
            },
            user: "sub".into(),
        };
        let say = Say::new(move |line| log.lock().unwrap().push(line.text.to_string()));
        let tokens = Arc::new(Tokens::open(&settings, say).unwrap());
        let checked = Arc::clone(&tokens);
        let wrap = move |request: &mut Request<'_>, next: Next<'_>| match checked.check(request) {
            Ok(()) => next.run(request),
            Err(response) => response,
        };
        let client = Client::new(Router::new().get("/", |_| "in").wrap(wrap));
        // HS256, no claims, signed with 32 bytes of zero.
        let token = "Bearer eyJhbGciOiJIUzI1NiJ9.e30.4E_Bsx-pJi3kOW9wVXN8CgbATwP09D9V5gxh9-9zSZ0";
        let ask = || {
            tokens.jwt.look_again();
            client.get("/").header("authorization", token).send().status().as_u16()
        };
        let key = |byte: &str| format!("{{\"kty\":\"oct\",\"k\":\"{}\"}}", byte.repeat(43));
        assert_eq!(ask(), 503);
        assert!(
            lines.lock().unwrap()[0].contains("there is no such file; requests get 503"),
            "{lines:?}"
        );
        folder.write("keys.json", key("A"));
        assert_eq!(ask(), 200);
        folder.write("keys.json", key("E"));
        assert_eq!(ask(), 401);
        folder.write("keys.json", key("A"));
        assert_eq!(ask(), 200);
        folder.write("keys.json", format!("{{\"keys\":[{{\"kid\":\"a\"}},{}]}}", key("A")));
        assert_eq!((ask(), ask()), (200, 200));
        folder.write("keys.json", "nonsense");
        assert_eq!((ask(), ask()), (200, 200));
        let lines = lines.lock().unwrap();
        assert!(
            lines.len() == 3
                && lines[1].ends_with("keys.json: a key is left out: key 1: 'kty' is missing")
                && lines[2].ends_with("it stays as it was"),
            "{lines:?}"
        );
    }
}
