//! Certificates made for the tests, and pairs of connected streams.

use std::io;
use std::sync::LazyLock;

use osier::net::UnixStream;
use osier_tls::{Acceptor, Connector, Identity, Stream};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    RevokedCertParams, date_time_ymd,
};

/// A certificate with its key, in PEM.
pub struct Made {
    pub chain: String,
    pub key: String,
}

impl Made {
    pub fn identity(&self) -> Identity {
        Identity::from_pem(self.chain.as_bytes(), self.key.as_bytes()).expect("an identity")
    }

    pub fn acceptor(&self) -> Acceptor {
        Acceptor::builder(self.identity()).build().expect("an acceptor")
    }
}

/// An authority that issues certificates for tests.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    pub fn issue(&self, name: &str) -> Made {
        self.issue_with(name, |_| ())
    }

    pub fn issue_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Made {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([name.to_string()]).expect("a name");
        change(&mut params);
        Made {
            chain: params.signed_by(&key, &self.issuer).expect("a certificate").pem(),
            key: key.serialize_pem(),
        }
    }

    /// A list of revoked certificates with these serial numbers.
    pub fn revoke(&self, serials: &[u64]) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2026, 1, 2),
            crl_number: 1_u64.into(),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("a list");
        list.pem().expect("a list")
    }

    /// A client that trusts this authority alone.
    pub fn connector(&self) -> Connector {
        let builder = Connector::builder().ca_pem(self.pem.as_bytes());
        builder.build().expect("a connector")
    }
}

/// The authority that most tests share.
pub static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("Osier tests"));

/// The certificate for `localhost` that most tests share.
pub static LOCALHOST: LazyLock<Made> = LazyLock::new(|| AUTHORITY.issue("localhost"));

/// A client and a server that have not yet done their handshake.
pub fn pair(connector: &Connector, acceptor: &Acceptor) -> (Stream, Stream) {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    let client = connector.connect("localhost", near).expect("a client");
    (client, acceptor.accept(far))
}

/// Does both handshakes at once, and returns how each ended.
pub fn shake(client: &Stream, server: &Stream) -> (io::Result<()>, io::Result<()>) {
    osier::scope(|scope| {
        let serving = scope.spawn(|| server.handshake());
        (client.handshake(), serving.join().expect("no panic"))
    })
}
