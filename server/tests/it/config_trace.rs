//! TRACE shows a request to its client, with fields that a browser hides from scripts. It is refused by default.

use crate::support::sites::Sites;

#[test]
fn trace_is_refused_unless_a_route_names_it() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\nheaders = { X-Site = \"1\" }\n\
         [[site.route]]\npath = \"/traced\"\nmethods = \"TRACE\"\nrespond = \"traced\"\n\
         [[site.route]]\npath = \"/proxy\"\nproxy = \"127.0.0.1:1\"\n\
         [[site.route]]\npath = \"/rewritten\"\nrewrite = [{ pattern = \".*\", to = \"/text\" }]\n\
         [[site.route]]\npath = \"/text\"\nrespond = \"text\"\n",
    );
    for path in ["/", "/none", "/proxy", "/rewritten", "/text"] {
        let reply = sites.ask("TRACE", "x", path, &[]);
        assert_eq!((reply.status, reply.field("x-site")), (405, Some("1")), "{path}");
        assert!(reply.field("allow").unwrap().contains("GET"), "{path}");
    }
    assert_eq!(sites.ask("TRACE", "x", "/traced/x", &[]).text(), "traced");
    assert_eq!(sites.get("x", "/traced").status, 405);
    assert_eq!(sites.get("x", "/text").text(), "text");
}
