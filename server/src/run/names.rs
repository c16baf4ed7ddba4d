//! The names by which both processes of an upgrade know a server: its address.
//!
//! Port 0 is another port each time, so several servers may have it. Their names tell them apart.

use crate::config::{self, Bind};

/// The name of the server of a `[[listen]]`.
pub fn of_listener(settings: &config::Listener) -> String {
    let address = settings.bind.to_string();
    match settings.bind.has_any_port() && settings.name != address {
        true => format!("{address} {}", settings.name),
        false => address,
    }
}

/// The name of the server of `[admin]`. No address begins like it.
pub fn of_admin(bind: &Bind) -> String {
    match bind.has_any_port() {
        true => format!("admin {bind}"),
        false => bind.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_on_ports_that_the_system_chooses_have_different_names() {
        let bind = |text: &str| Bind::Tcp(text.parse().unwrap());
        let named = |text: &str, name: &str| config::Listener {
            name: name.into(),
            ..config::Listener::new(bind(text))
        };
        assert_eq!(of_listener(&named("127.0.0.1:80", "web")), "127.0.0.1:80");
        assert_eq!(of_admin(&bind("127.0.0.1:80")), "127.0.0.1:80");
        let any = "127.0.0.1:0";
        let names = [
            of_listener(&config::Listener::new(bind(any))),
            of_listener(&named(any, "web")),
            of_admin(&bind(any)),
        ];
        assert_eq!(names, [any, "127.0.0.1:0 web", "admin 127.0.0.1:0"]);
    }
}
