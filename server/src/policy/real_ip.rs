//! `real_ip`: believes the trusted proxies in front of this server about the client.

use osier_web::{ForwardedBy, Request};

use super::client::{Client, client};
use crate::reader::{Section, values};

/// The fields that can name the client, as the file spells them.
const FIELDS: [(&str, ForwardedBy); 3] = [
    ("X-Forwarded-For", ForwardedBy::XForwardedFor),
    ("Forwarded", ForwardedBy::Forwarded),
    ("X-Real-IP", ForwardedBy::XRealIp),
];

/// The settings of `real_ip`, of a listener or a site.
#[derive(Debug, Clone, PartialEq)]
pub struct RealIp {
    /// The trusted proxies.
    from: Vec<Client>,
    header: ForwardedBy,
}

impl RealIp {
    /// Reads the table `real_ip` of a section.
    pub fn read(section: &Section<'_>) -> Option<RealIp> {
        let table = section.section("real_ip")?;
        table.require("from", "the trusted proxies, \"10.0.0.0/8\" for example");
        let real_ip = RealIp {
            from: values(table.parsed_list("from", client)),
            header: table.choice("header", &FIELDS).unwrap_or_default(),
        };
        table.finish();
        Some(real_ip)
    }

    /// Finds the client of a request.
    pub fn apply(&self, request: &Request<'_>) {
        request.trust_hops(self.header, |hop| self.from.iter().any(|trusted| trusted.is(hop)));
    }
}
