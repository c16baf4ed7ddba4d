//! Makes keys and certificates: for the internal authority, and for sites that have none yet.

use osier_tls::Identity;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::x509::Time;

/// Days from now to the end of a certificate's validity.
pub const LEAF_DAYS: i64 = 30;
/// Days from now to the end of an authority's validity: ten years.
const AUTHORITY_DAYS: i64 = 3653;

/// The common name in a self-signed certificate.
const NAME_OF_SELF_SIGNED: &str = "Osier: no certificate yet";

/// An authority that signs certificates.
pub type Signer = Issuer<'static, KeyPair>;

/// Makes a self-signed certificate for `names`.
///
/// # Errors
/// One line: a name that no certificate can have.
pub fn self_signed(names: &[String], now: Time) -> Result<Identity, String> {
    let key = KeyPair::generate().map_err(text)?;
    let made = leaf(names, NAME_OF_SELF_SIGNED, now)?.self_signed(&key).map_err(text)?;
    identity(vec![made.der().to_vec()], &key)
}

/// Makes a certificate for `names`, signed by an authority.
///
/// # Errors
/// One line: a name that no certificate can have.
pub fn signed(names: &[String], signer: &Signer, now: Time) -> Result<Identity, String> {
    let key = KeyPair::generate().map_err(text)?;
    let name = names.first().map_or("localhost", String::as_str);
    let made = leaf(names, name, now)?.signed_by(&key, signer).map_err(text)?;
    identity(vec![made.der().to_vec()], &key)
}

/// Makes an authority. Returns its certificate, in DER, and its key.
///
/// # Errors
/// One line: the system has no random bytes.
pub fn authority(now: Time) -> Result<(Vec<u8>, KeyPair), String> {
    let key = KeyPair::generate().map_err(text)?;
    // Two authorities with one name confuse browsers. The key tells them apart.
    let id = CertificateParams::default().key_identifier(&key);
    let id: String = id.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let mut params = authority_params(&format!("Osier local authority {id}"));
    limit(&mut params, now, AUTHORITY_DAYS);
    let made = params.self_signed(&key).map_err(text)?;
    Ok((made.der().to_vec(), key))
}

/// The signer of an authority with this common name.
pub fn signer(name: &str, key: KeyPair) -> Signer {
    Issuer::new(authority_params(name), key)
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// The content of a site's certificate.
fn leaf(names: &[String], name: &str, now: Time) -> Result<CertificateParams, String> {
    let bare = |name: &String| name.trim_matches(['[', ']']).to_owned();
    let mut params = CertificateParams::new(names.iter().map(bare).collect::<Vec<_>>()).map_err(text)?;
    params.distinguished_name = distinguished(name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    limit(&mut params, now, LEAF_DAYS);
    Ok(params)
}

fn distinguished(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// Sets the validity: from yesterday on, for clients whose clock is slow.
fn limit(params: &mut CertificateParams, now: Time, days: i64) {
    let date = |days: i64| {
        let (year, month, day) = Time(now.0 + days * 86_400).date();
        (i32::try_from(year).unwrap_or(9999), month, day)
    };
    let ((year, month, day), end) = (date(-1), date(days));
    params.not_before = rcgen::date_time_ymd(year, month, day);
    params.not_after = rcgen::date_time_ymd(end.0, end.1, end.2);
}

fn identity(chain: Vec<Vec<u8>>, key: &KeyPair) -> Result<Identity, String> {
    Identity::from_der(chain, key.serialized_der()).map_err(|error| error.to_string())
}

fn text(error: rcgen::Error) -> String {
    error.to_string()
}
