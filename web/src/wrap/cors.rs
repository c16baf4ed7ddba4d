//! CORS: lets pages of other origins read responses (Fetch standard, "CORS protocol").
//!
//! ```
//! use osier_web::wrap::cors::{Cors, Options};
//! use osier_web::{Router, test::Client};
//!
//! let options = Options {
//!     origins: vec!["https://app.example".to_owned()],
//!     methods: vec!["PUT".to_owned()],
//!     ..Options::default()
//! };
//! let api = Router::new().put("/name", |_| "stored\n").wrap(Cors::new(&options)?.wrap());
//! let client = Client::new(api);
//! let preflight = client.request("OPTIONS", "/name").header("origin", "https://app.example");
//! let preflight = preflight.header("access-control-request-method", "PUT").send();
//! assert_eq!(preflight.status(), 204);
//! let stored = client.put("/name").header("origin", "https://app.example").send();
//! assert_eq!(stored.header("access-control-allow-origin"), Some("https://app.example"));
//! # Ok::<(), String>(())
//! ```
//!
//! [`Cors::preflight`] runs before every other policy, authentication included, because a browser sends no credentials
//! with a preflight. Every other response of the route passes [`Cors::allow`], refusals too, so that a page can read
//! the 401. So [`Cors::wrap`] is the outermost function around a handler: the first one that is added.
//!
//! - For an origin that is not listed no field is set, so the browser hides the response from the page. The request
//!   itself is served as usual: CORS protects what is read, not what is done.
//! - With credentials the response names the one origin, never `*`. A configuration with both is refused.
//! - `Vary: Origin` is on every response of a route that lists origins, also without an `Origin` in the request.
//!   Otherwise a cache would send the response for one origin to another.
//! - Fields that a backend has set are replaced, because a browser ignores these fields when they occur twice.

use std::time::Duration;

use http::StatusCode;

use crate::{InvalidSetting, Next, Request, Response};

/// The rights of other origins: none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Origins in lower case, such as `https://example.org`, or `*`.
    pub origins: Vec<String>,
    /// Methods that are allowed besides GET, HEAD and POST.
    pub methods: Vec<String>,
    /// Header fields that a page may send besides the safe ones. `*` for any.
    pub headers: Vec<String>,
    /// Header fields that a page may read besides the safe ones.
    pub expose: Vec<String>,
    /// Whether cookies and passwords may be sent along.
    pub credentials: bool,
    /// How long a browser may keep the response to a preflight.
    pub max_age: Option<Duration>,
}

/// The options, ready to answer requests.
#[derive(Clone, Debug)]
#[doc(alias = "CorsLayer")]
pub struct Cors {
    /// Whether every origin is allowed.
    any: bool,
    origins: Vec<String>,
    /// All methods that are allowed.
    methods: Vec<String>,
    /// Whether every header field is allowed.
    any_header: bool,
    /// Header field names in lower case.
    headers: Vec<String>,
    expose: String,
    credentials: bool,
    max_age: Option<String>,
}

/// The response fields that only this policy sets.
const OWNED: [&str; 3] = [
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "access-control-expose-headers",
];

impl Cors {
    /// Prepares the options.
    ///
    /// # Errors
    ///
    /// One line: every origin is allowed, with credentials.
    pub fn new(settings: &Options) -> Result<Cors, InvalidSetting> {
        let any = settings.origins.iter().any(|origin| origin == "*");
        if any && settings.credentials {
            return Err(InvalidSetting::new(
                "cors: credentials need named origins: browsers refuse \"*\" with them",
            ));
        }
        let mut methods: Vec<String> = ["GET", "HEAD", "POST"].map(String::from).into();
        methods.extend(
            settings
                .methods
                .iter()
                .filter(|method| !["GET", "HEAD", "POST"].contains(&method.as_str()))
                .cloned(),
        );
        Ok(Cors {
            any,
            origins: settings
                .origins
                .iter()
                .map(|origin| origin.to_ascii_lowercase())
                .collect(),
            methods,
            any_header: settings.headers.iter().any(|header| header == "*"),
            headers: settings
                .headers
                .iter()
                .map(|header| header.to_ascii_lowercase())
                .collect(),
            expose: settings.expose.join(", "),
            credentials: settings.credentials,
            max_age: settings.max_age.map(|age| age.as_secs().to_string()),
        })
    }

    /// Answers preflights, and sets the fields of every other response: for
    /// [`Router::wrap`](crate::Router::wrap).
    pub fn wrap(self) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
        move |request, next| match self.preflight(request) {
            Some(response) => response,
            None => {
                let origin = request.header("origin");
                self.allow(origin, next.run(request))
            }
        }
    }

    /// Answers a preflight. `None` for any other request.
    pub fn preflight(&self, request: &Request<'_>) -> Option<Response> {
        let field = |name| request.header_str(name);
        let wanted = field("access-control-request-method")?;
        if request.method() != "OPTIONS" {
            return None;
        }
        Some(self.answer(
            field("origin")?,
            wanted,
            field("access-control-request-headers").unwrap_or_default(),
        ))
    }

    /// Answers a preflight for `method` with the listed `headers`.
    fn answer(&self, origin: &str, method: &str, headers: &str) -> Response {
        let vary = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers";
        let wanted: Vec<String> = headers
            .split(',')
            .map(|header| header.trim().to_ascii_lowercase())
            .collect();
        let known = |header: &String| header.is_empty() || self.any_header || self.headers.contains(header);
        let refusal = if !self.allows(origin) {
            Some("origin")
        } else if !self.methods.iter().any(|known| known == method) {
            Some("method")
        } else if !wanted.iter().all(known) {
            Some("header")
        } else {
            None
        };
        if let Some(what) = refusal {
            return Response::new(StatusCode::FORBIDDEN)
                .header("vary", vary)
                .body(format!("403: cors does not allow this {what} here\n"));
        }
        let mut response = self
            .allow_origin(Response::new(StatusCode::NO_CONTENT).header("vary", vary), origin)
            .header("access-control-allow-methods", self.methods.join(", "));
        if !headers.is_empty() {
            // Each name is a known one, or any name is allowed. The codec checks that the value is valid.
            response = response.header("access-control-allow-headers", wanted.join(", "));
        }
        if let Some(age) = &self.max_age {
            response = response.header("access-control-max-age", age);
        }
        response
    }

    /// Sets the fields that a browser expects in the response to a request with this `Origin`.
    pub fn allow(&self, origin: Option<&[u8]>, mut response: Response) -> Response {
        for name in OWNED {
            response = response.remove(name);
        }
        if !self.any {
            response = response.header("vary", "Origin");
        }
        let origin = origin.and_then(|origin| str::from_utf8(origin).ok());
        let Some(origin) = origin.filter(|origin| self.allows(origin)) else {
            return response;
        };
        response = self.allow_origin(response, origin);
        if !self.expose.is_empty() {
            response = response.header("access-control-expose-headers", &self.expose);
        }
        response
    }

    fn allows(&self, origin: &str) -> bool {
        self.any || self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin))
    }

    /// Sets the fields that name an allowed origin.
    fn allow_origin(&self, response: Response, origin: &str) -> Response {
        let origin = if self.any { "*" } else { origin };
        let response = response.header("access-control-allow-origin", origin);
        if self.credentials {
            return response.header("access-control-allow-credentials", "true");
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(change: impl FnOnce(&mut Options)) -> Cors {
        let mut settings = Options {
            origins: vec!["https://app.example".into(), "http://localhost:3000".into()],
            methods: vec!["PUT".into(), "DELETE".into()],
            headers: vec!["Content-Type".into(), "X-Token".into()],
            expose: vec!["ETag".into(), "X-Count".into()],
            credentials: false,
            max_age: Some(Duration::from_secs(600)),
        };
        change(&mut settings);
        Cors::new(&settings).unwrap()
    }

    fn field(response: &Response, name: &str) -> String {
        response
            .lookup(name)
            .map_or("-".into(), |value| String::from_utf8(value.to_vec()).unwrap())
    }

    fn allowed(response: &Response) -> String {
        field(response, "access-control-allow-origin")
    }

    #[test]
    fn a_preflight_is_answered_for_what_is_listed() {
        let cors = cors(|_| ());
        let yes = cors.answer("https://app.example", "PUT", "x-token, Content-Type");
        assert_eq!(yes.status(), 204);
        assert_eq!(allowed(&yes), "https://app.example");
        assert_eq!(
            field(&yes, "access-control-allow-methods"),
            "GET, HEAD, POST, PUT, DELETE"
        );
        assert_eq!(field(&yes, "access-control-allow-headers"), "x-token, content-type");
        assert_eq!(field(&yes, "access-control-max-age"), "600");
        assert_eq!(field(&yes, "access-control-allow-credentials"), "-");
        assert!(field(&yes, "vary").starts_with("Origin, "));
        assert_eq!(
            field(
                &cors.answer("http://localhost:3000", "GET", ""),
                "access-control-allow-headers"
            ),
            "-"
        );

        for (origin, method, headers) in [
            ("https://evil.example", "PUT", ""),
            ("https://app.example.evil.example", "PUT", ""),
            ("http://app.example", "PUT", ""),
            ("https://app.example:8443", "PUT", ""),
            ("null", "PUT", ""),
            ("*", "PUT", ""),
            ("https://app.example", "PATCH", ""),
            ("https://app.example", "put", ""),
            ("https://app.example", "PUT", "x-token, x-other"),
        ] {
            let no = cors.answer(origin, method, headers);
            assert_eq!(
                (no.status().as_u16(), allowed(&no)),
                (403, "-".into()),
                "{origin} {method} {headers}"
            );
            assert!(field(&no, "vary").starts_with("Origin, "));
        }
    }

    #[test]
    fn any_origin_and_any_header() {
        let cors = cors(|settings| {
            settings.origins = vec!["*".into()];
            settings.headers = vec!["*".into()];
        });
        let yes = cors.answer("https://anybody.example", "GET", "X-Any, y");
        assert_eq!((yes.status().as_u16(), allowed(&yes)), (204, "*".into()));
        assert_eq!(field(&yes, "access-control-allow-headers"), "x-any, y");
        let answer = cors.allow(Some(b"https://anybody.example"), Response::new(StatusCode::OK));
        assert_eq!((allowed(&answer), field(&answer, "vary")), ("*".into(), "-".into()));
    }

    #[test]
    fn credentials_name_the_origin_and_never_all() {
        let named = cors(|settings| settings.credentials = true);
        for response in [
            named.answer("https://app.example", "GET", ""),
            named.allow(Some(b"https://app.example"), Response::new(StatusCode::OK)),
        ] {
            assert_eq!(allowed(&response), "https://app.example");
            assert_eq!(field(&response, "access-control-allow-credentials"), "true");
        }
        let both = Options {
            origins: vec!["*".into()],
            methods: Vec::new(),
            headers: Vec::new(),
            expose: Vec::new(),
            credentials: true,
            max_age: None,
        };
        assert!(Cors::new(&both).is_err());
    }

    #[test]
    fn answers_carry_one_set_of_fields_and_vary() {
        let cors = cors(|_| ());
        let of_an_application = || {
            Response::new(StatusCode::OK)
                .header("Access-Control-Allow-Origin", "*")
                .header("access-control-allow-credentials", "true")
                .header("x-count", "3")
        };
        let answer = cors.allow(Some(b"https://app.example"), of_an_application());
        assert_eq!(allowed(&answer), "https://app.example");
        assert_eq!(field(&answer, "access-control-allow-credentials"), "-");
        assert_eq!(field(&answer, "access-control-expose-headers"), "ETag, X-Count");
        assert_eq!(
            (field(&answer, "vary"), field(&answer, "x-count")),
            ("Origin".into(), "3".into())
        );
        for origin in [None, Some(&b"https://evil.example"[..]), Some(b"\xff")] {
            let answer = cors.allow(origin, of_an_application());
            assert_eq!(
                (allowed(&answer), field(&answer, "vary")),
                ("-".into(), "Origin".into())
            );
        }
    }
}
