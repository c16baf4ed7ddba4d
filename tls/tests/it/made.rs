//! Certificates made for the tests, and pairs of connected streams.

use osier::net::UnixStream;
use osier_tls::{Acceptor, Connector, Identity, Stream};

/// A certificate with its key in PEM, which signs itself.
pub struct Made {
    pub chain: String,
    pub key: String,
}

pub fn self_signed(name: &str) -> Made {
    let made = rcgen::generate_simple_self_signed([name.to_string()]).expect("a certificate");
    Made {
        chain: made.cert.pem(),
        key: made.signing_key.serialize_pem(),
    }
}

impl Made {
    pub fn identity(&self) -> Identity {
        Identity::from_pem(self.chain.as_bytes(), self.key.as_bytes()).expect("an identity")
    }

    pub fn acceptor(&self) -> Acceptor {
        Acceptor::builder(self.identity()).build().expect("an acceptor")
    }

    pub fn connector(&self) -> Connector {
        let builder = Connector::builder().ca_pem(self.chain.as_bytes());
        builder.build().expect("a connector")
    }
}

/// A client and a server that have not yet done their handshake.
pub fn pair(connector: &Connector, acceptor: &Acceptor) -> (Stream, Stream) {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    let client = connector.connect("localhost", near).expect("a client");
    (client, acceptor.accept(far))
}
