//! `osier trust`: where the root certificate of the internal authority is, and how others learn to trust it.

use std::path::Path;

use super::internal::root_of;

/// The text of `osier trust`, for the authority in this state folder.
///
/// # Errors
/// One line, when there is no authority yet.
pub fn text(state: &Path) -> Result<String, String> {
    let root = root_of(state);
    match root.metadata() {
        Ok(_) => Ok(instructions(&root.display().to_string())),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(format!(
            "this user may not enter '{}': run it as the user of the server, or as root",
            state.display()
        )),
        Err(_) => Err(format!(
            "there is no root certificate '{}' yet: it is made when a site with tls = \"internal\" is first served, as the built-in \
             site is by 'osier'",
            root.display()
        )),
    }
}

fn instructions(root: &str) -> String {
    let root = quoted(root);
    format!(
        "\
The root certificate of the internal authority is
  {root}
Trust it on machines for development only: who has the file 'authority.pem' beside it can pose as any site there.

Debian, Ubuntu
  sudo install -m 644 {root} /usr/local/share/ca-certificates/osier.crt && sudo update-ca-certificates
Fedora, RHEL, SUSE
  sudo install -m 644 {root} /etc/pki/ca-trust/source/anchors/osier.pem && sudo update-ca-trust
Arch
  sudo trust anchor --store {root}
Chromium and Chrome (certutil is in libnss3-tools or nss-tools)
  certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n osier -i {root}
Firefox
  Settings, Privacy & Security, View Certificates, Authorities, Import: choose the file
curl
  curl --cacert {root} https://localhost:8443/"
    )
}

/// A path as a word of a shell.
fn quoted(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte);
    match path.bytes().all(is_plain) {
        true => path.to_owned(),
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_names_the_file_for_a_shell() {
        let text = instructions("/home/ann's/root.pem");
        assert_eq!(text.matches("'/home/ann'\\''s/root.pem'").count(), 6, "{text}");
        assert_eq!(
            quoted("/var/lib/osier/internal/root.pem"),
            "/var/lib/osier/internal/root.pem"
        );
    }
}
