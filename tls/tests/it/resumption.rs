//! Session tickets: resumed in one process, across acceptors with the same keys, and until the keys change.

use std::fs;
use std::io::{Read, Write};
use std::time::Duration;

use osier::time::VirtualClock;
use osier_tls::{Acceptor, ClientCertificates, Connector, Tickets, Version};

use crate::made::{AUTHORITY, LOCALHOST, pair};

/// Connects, exchanges bytes so that the client gets its ticket, and says whether both ends have resumed a session.
fn resumes(connector: &Connector, acceptor: &Acceptor) -> bool {
    let (mut client, mut server) = pair(connector, acceptor);
    osier::scope(|scope| {
        let serving = scope.spawn(move || {
            server.read_exact(&mut [0; 5]).unwrap();
            server.write_all(b"world").unwrap();
            server.is_resumed()
        });
        client.write_all(b"hello").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        let is_resumed = client.is_resumed();
        assert_eq!(serving.join().unwrap(), is_resumed);
        is_resumed
    })
}

fn with_tickets(tickets: &Tickets) -> Acceptor {
    let builder = Acceptor::builder(LOCALHOST.identity()).tickets(tickets.clone());
    builder.build().unwrap()
}

#[test]
fn a_second_connection_resumes() {
    for oldest in [Version::Tls12, Version::Tls13] {
        let connector = Connector::builder()
            .ca_pem(AUTHORITY.pem.as_bytes())
            .min_version(oldest);
        let (connector, acceptor) = (connector.build().unwrap(), LOCALHOST.acceptor());
        osier::run(move || {
            let found: Vec<bool> = (0..3).map(|_| resumes(&connector, &acceptor)).collect();
            assert_eq!(found, [false, true, true]);
            assert!(!resumes(&AUTHORITY.connector(), &acceptor));
        });
    }
}

#[test]
fn acceptors_with_one_key_file_resume_each_others_sessions() {
    let path = std::env::temp_dir().join(format!("osier-tls-tickets-{}", std::process::id()));
    fs::write(&path, [1; 48]).unwrap();
    let [first, second] = [(); 2].map(|()| with_tickets(&Tickets::from_file(&path).unwrap()));
    osier::run(move || {
        let connector = AUTHORITY.connector();
        assert!(!resumes(&connector, &first));
        assert!(resumes(&connector, &second));
        assert!(!resumes(&connector, &LOCALHOST.acceptor()));
    });
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_key_file_is_read_again() {
    let path = std::env::temp_dir().join(format!("osier-tls-tickets-again-{}", std::process::id()));
    fs::write(&path, [1; 48]).unwrap();
    let (one, of) = (
        Tickets::from_keys(&[1; 48]).unwrap(),
        Tickets::from_keys(&[2; 48]).unwrap(),
    );
    let file = Tickets::from_file(&path).unwrap();
    assert!(!file.reload().unwrap());
    // Another file with the same date and length, as `rsync -a` leaves it.
    let (dated, next) = (
        fs::metadata(&path).unwrap().modified().unwrap(),
        path.with_extension("next"),
    );
    fs::write(&next, [3; 48]).unwrap();
    fs::File::options()
        .write(true)
        .open(&next)
        .unwrap()
        .set_modified(dated)
        .unwrap();
    fs::rename(&next, &path).unwrap();
    assert!(file.reload().unwrap());
    assert!(!file.reload().unwrap());
    fs::write(&path, [2; 96]).unwrap();
    assert!(file.reload().unwrap());
    fs::write(&path, [3; 47]).unwrap();
    let error = file.reload().unwrap_err().to_string();
    assert!(
        error.ends_with("47 bytes are not ticket keys: a key has 48 bytes, and there are 1 to 16"),
        "{error}"
    );
    fs::remove_file(&path).unwrap();
    assert!(file.reload().is_err());
    osier::run(move || {
        let connector = AUTHORITY.connector();
        assert!(!resumes(&connector, &with_tickets(&one)));
        assert!(!resumes(&connector, &with_tickets(&file)));
        assert!(resumes(&connector, &with_tickets(&of)));
    });
}

#[test]
fn keys_rotate_and_the_last_one_stays() {
    let every = Duration::from_secs(60 * 60);
    let clock = VirtualClock::new();
    let runtime = osier::Runtime::builder()
        .workers(1)
        .clock(clock.clone())
        .build()
        .unwrap();
    runtime.run(move || {
        let acceptor = with_tickets(&Tickets::rotating(every).unwrap());
        let connector = AUTHORITY.connector();
        assert!(!resumes(&connector, &acceptor));
        clock.advance(every);
        assert!(resumes(&connector, &acceptor), "sealed with the last key");
        clock.advance(2 * every);
        assert!(!resumes(&connector, &acceptor), "too old");
    });
}

#[test]
fn a_ticket_does_not_replace_a_client_certificate() {
    let tickets = Tickets::rotating(Duration::from_secs(60)).unwrap();
    let ca = AUTHORITY.pem.clone().into_bytes();
    let strict = Acceptor::builder(LOCALHOST.identity())
        .tickets(tickets.clone())
        .client_certificates(ClientCertificates::Optional(ca))
        .build()
        .unwrap();
    osier::run(move || {
        let connector = AUTHORITY.connector();
        assert!(!resumes(&connector, &with_tickets(&tickets)));
        assert!(!resumes(&connector, &strict));
    });
}
