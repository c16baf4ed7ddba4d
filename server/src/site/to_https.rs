//! `redirect_https`: sends requests in the clear to https.

use osier_web::http::StatusCode;
use osier_web::{Request, Response};

use crate::handler::without_port;

/// The port that https addresses leave out.
const HTTPS: u16 = 443;

/// The redirect of a site. The port is that of its https addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToHttps {
    pub port: u16,
}

impl ToHttps {
    /// The redirect for a request that has not come over https.
    #[cold]
    pub fn redirect(self, request: &Request<'_>) -> Response {
        let Some(host) = request.host() else {
            return Response::new(StatusCode::BAD_REQUEST)
                .body("this site is served over https, and the request names no host\n")
                .because("a redirect to https needs a host");
        };
        Response::moved(request.method(), &self.target(host, request.path(), request.query()))
    }

    fn target(self, host: &str, path: &str, query: Option<&str>) -> String {
        let port = match self.port {
            HTTPS => String::new(),
            port => format!(":{port}"),
        };
        let query = query.map_or(String::new(), |query| format!("?{query}"));
        format!("https://{}{port}{path}{query}", without_port(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_left_out_where_it_is_the_usual_one() {
        let target = |port, host, query| ToHttps { port }.target(host, "/a%20b", query);
        assert_eq!(target(443, "example.org:80", None), "https://example.org/a%20b");
        assert_eq!(target(8443, "[::1]:8080", Some("x=1")), "https://[::1]:8443/a%20b?x=1");
    }
}
