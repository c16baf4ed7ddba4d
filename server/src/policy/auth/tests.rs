//! Tests of the login: files and lists of users, the cache, what is logged, and the limits of the cost.

use super::gate::{WAITING, WAITING_AT_LAST, WAITING_OF_CLIENT};
use super::verified::{REMEMBERED, REMEMBERED_MAX};
use super::*;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::Folder;

const CLIENT: Client = Client(Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7))));
/// "sesame" with the lowest cost, made by libcrypt.
const SESAME: &str = "$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW";

/// The longest wait for a turn: longer than any test.
const PATIENCE: Duration = Duration::from_secs(3600);

type Lines = Arc<Mutex<Vec<String>>>;

fn listener() -> (Say, Lines) {
    let lines = Lines::default();
    let to = lines.clone();
    (Say::new(move |line| locked(&to).push(line.text.to_string())), lines)
}

fn open(folder: &Folder, file: &str) -> (Result<Auth, Vec<Trouble>>, Lines) {
    let (say, lines) = listener();
    let settings = Settings {
        realm: "the \"den\"".into(),
        users: Vec::new(),
        password_file: Some(folder.write("passwords", file)),
        only: None,
    };
    let auth = Auth::open(&settings, say).map(|auth| Auth {
        verified: Arc::default(),
        ..auth
    });
    (auth, lines)
}

fn hash(password: &str) -> String {
    bcrypt::hash(password, 4).unwrap()
}

fn field(user: &str, password: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = b"Basic ".to_vec();
    for group in format!("{user}:{password}").as_bytes().chunks(3) {
        let mut bytes = [0; 4];
        bytes[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(bytes);
        for at in 0..4 {
            let digit = digits[(bits >> (18 - 6 * at)) as usize % 64];
            text.push(if at <= group.len() { digit } else { b'=' });
        }
    }
    text
}

fn status(result: &Result<User, Response>) -> u16 {
    result
        .as_ref()
        .map_or_else(|response| response.status().as_u16(), |_| 200)
}

#[test]
fn users_come_in_with_their_password_and_nobody_else() {
    let folder = Folder::new();
    let argon2 = {
        use argon2::password_hash::PasswordHasher;
        let cheap = argon2::Params::new(8, 1, 1, None).unwrap();
        let hasher = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, cheap);
        hasher.hash_password("Pass£wort:".as_bytes()).unwrap().to_string()
    };
    let file = format!("# who may\n\nali:{SESAME}\nbea:{argon2}\r\n");
    let (auth, lines) = open(&folder, &file);
    let auth = auth.unwrap();
    let ask = |user: &str, password: &str| auth.decide(Some(&field(user, password)), CLIENT);

    for _ in 0..2 {
        assert_eq!(ask("ali", "sesame").unwrap(), User("ali".into()));
        assert_eq!(ask("bea", "Pass£wort:").unwrap(), User("bea".into()));
    }
    assert_eq!(locked(&auth.verified.until).len(), 2);
    assert!(locked(&lines).is_empty());

    for (user, password) in [
        ("ali", "Pass£wort:"),
        ("bea", "sesame"),
        ("ali", ""),
        ("ALI", "sesame"),
        ("cat", "sesame"),
    ] {
        assert_eq!(status(&ask(user, password)), 401, "{user} {password}");
    }
    let refused = auth.decide(None, CLIENT).unwrap_err();
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let challenge = refused.lookup("www-authenticate").unwrap();
    assert_eq!(challenge, b"Basic realm=\"the \\\"den\\\"\", charset=\"UTF-8\"");
    assert_eq!(status(&auth.decide(Some(b"Bearer x"), CLIENT)), 401);
    // No wrong credentials are in the cache.
    assert_eq!(locked(&auth.verified.until).len(), 2);
}

#[test]
fn a_failure_is_a_line_with_the_client_and_without_the_password() {
    let folder = Folder::new();
    let (auth, lines) = open(&folder, &format!("ali:{SESAME}"));
    let auth = auth.unwrap();
    let _ = auth.decide(Some(&field("ali", "hunter2")), CLIENT);
    let _ = auth.decide(Some(&field("eve\" from 9.9.9.9", "hunter2")), CLIENT);
    let _ = auth.decide(Some(b"Basic ?"), CLIENT);
    let _ = auth.decide(None, CLIENT);
    let lines = locked(&lines).clone();
    let expected = [
        r#"authentication failed: client 192.0.2.7, user "ali", realm "the \"den\"": wrong password"#,
        r#"authentication failed: client 192.0.2.7, user "eve\" from 9.9.9.9", realm "the \"den\"": unknown user"#,
        r#"authentication failed: client 192.0.2.7, user "", realm "the \"den\"": the credentials are not basic or malformed"#,
    ];
    assert_eq!(lines, expected);
}

#[test]
fn only_slow_hashes_are_accepted_and_every_bad_line_is_named() {
    let folder = Folder::new();
    let good = hash("x");
    let costly = good.replacen("$04$", "$17$", 1);
    let file = format!(
        "ali:{good}\nclear:sesame\nmd5:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00\nsha:{{SHA}}VBPuJHI7uixaa6LQGWx4s+5GKNE=\n\
         crypt:rl5FQRHeTLRnQ\nnocolon\n:{good}\nali:{good}\ncut:{}\ncostly:{costly}\n\
         i:$argon2i$v=19$m=8,t=1,p=1$c29tZXNhbHQ$MDEyMzQ1Njc4OTAxMjM0NQ\nodd:$argon2id$what\n\
         huge:$argon2id$v=19$m=2097152,t=1,p=1$c29tZXNhbHQ$MDEyMzQ1Njc4OTAxMjM0NQ\nx:$2x${}\n",
        &good[..50],
        &good[4..]
    );
    let (auth, _) = open(&folder, &file);
    let auth = auth.unwrap();
    let troubles = auth.mistakes();
    let lines: Vec<_> = troubles.iter().map(|trouble| trouble.line.unwrap()).collect();
    assert_eq!(lines, [2, 5, 6, 7, 8, 9, 10, 12, 13, 14]);
    let message = troubles.iter().map(Trouble::to_string).collect::<Vec<_>>().join("\n");
    assert!(!message.contains("sesame") && !message.contains(&good), "{message}");
    assert!(
        message.contains("line 2: user \"clear\": the password is not hashed with bcrypt, argon2,"),
        "{message}"
    );
    assert!(message.contains("line 8: user \"ali\" is there twice"), "{message}");
    // The good line holds.
    assert_eq!(status(&auth.decide(Some(&field("ali", "x")), CLIENT)), 200);

    let missing = Settings {
        realm: "x".into(),
        users: Vec::new(),
        password_file: Some(folder.path().join("none")),
        only: None,
    };
    // A file that is not there yet keeps everybody out until it is there.
    let (say, lines) = listener();
    let auth = Auth::open(&missing, say).unwrap();
    let ask = |field: Option<&[u8]>| status(&auth.decide(field, CLIENT));
    assert_eq!((ask(None), ask(Some(&field("ali", "sesame")))), (503, 503));
    auth.file.as_ref().unwrap().look_again();
    assert_eq!(ask(None), 503);
    assert!(locked(&lines)[0].contains("/none': there is no such file; requests get 503"));
    folder.write("none", format!("ali:{SESAME}"));
    auth.file.as_ref().unwrap().look_again();
    assert_eq!((ask(None), ask(Some(&field("ali", "sesame")))), (401, 200));
}

#[test]
fn users_may_be_named_without_a_file() {
    let open = |users: &[(&str, &str)], password_file| {
        let users = users
            .iter()
            .map(|(user, hash)| ((*user).into(), (*hash).into()))
            .collect();
        let realm = "x".into();
        Auth::open(
            &Settings {
                realm,
                users,
                password_file,
                only: None,
            },
            listener().0,
        )
    };
    let ask = |auth: &Auth, user| status(&auth.decide(Some(&field(user, "sesame")), CLIENT));
    let auth = open(&[("ali", SESAME)], None).unwrap();
    assert_eq!((ask(&auth, "ali"), ask(&auth, "bea")), (200, 401));
    let folder = Folder::new();
    let file = folder.write("passwords", format!("bea:{SESAME}"));
    let auth = open(&[("ali", SESAME)], Some(file)).unwrap();
    assert_eq!(
        (ask(&auth, "ali"), ask(&auth, "bea"), ask(&auth, "cat")),
        (200, 200, 401)
    );
    let troubles = open(&[("ali", "sesame"), ("a:b", SESAME)], None).err().unwrap();
    assert_eq!(troubles.len(), 2, "{troubles:?}");
}

#[test]
fn a_file_that_changes_counts_within_a_second_and_a_bad_one_does_not() {
    let folder = Folder::new();
    let (auth, lines) = open(&folder, &format!("ali:{}", hash("old")));
    let auth = auth.unwrap();
    let ask = |password: &str| status(&auth.decide(Some(&field("ali", password)), CLIENT));
    let later = || auth.file.as_ref().unwrap().look_again();
    assert_eq!((ask("old"), ask("new")), (200, 401));

    fs::write(folder.path().join("passwords"), format!("ali:{}", hash("new"))).unwrap();
    assert_eq!((ask("old"), ask("new")), (200, 401), "looked at too often");
    later();
    // The cached credentials do not match the new hash.
    assert_eq!((ask("old"), ask("new")), (401, 200));

    locked(&lines).clear();
    fs::write(folder.path().join("passwords"), "ali:new").unwrap();
    for _ in 0..3 {
        later();
        assert_eq!(ask("new"), 200);
    }
    fs::remove_file(folder.path().join("passwords")).unwrap();
    later();
    assert_eq!(ask("new"), 200);
    let lines = locked(&lines).clone();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains(", line 1: ") && lines[0].ends_with("the passwords stay as they were"),
        "{lines:?}"
    );
    assert!(lines[1].contains("there is no such file"), "{lines:?}");
}

#[test]
fn an_unknown_user_is_compared_with_always_the_same_hash() {
    let folder = Folder::new();
    let argon2 = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHRzb21lc2FsdA$MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE";
    let slow = bcrypt::hash("x", 5).unwrap();
    for file in [
        format!("ali:{SESAME}\nbea:{argon2}\ncat:{slow}\ndan:{SESAME}\n"),
        format!("cat:{slow}\nali:{argon2}\n"),
    ] {
        let passwords = open(&folder, &file).0.unwrap().passwords().unwrap();
        assert_eq!(passwords.slowest().unwrap().text(), slow);
        assert!(passwords.find("nobody").is_none());
    }
    let heavy = argon2.replace("m=8,t=1", "m=65536,t=3");
    let passwords = open(&folder, &format!("ali:{heavy}\ncat:{slow}\n"))
        .0
        .unwrap()
        .passwords()
        .unwrap();
    assert_eq!(passwords.slowest().unwrap().text(), heavy);
    // A password that matches the stand-in's hash does not log in an unknown user.
    let (auth, _) = open(&folder, &format!("ali:{SESAME}"));
    assert_eq!(
        status(&auth.unwrap().decide(Some(&field("eve", "sesame")), CLIENT)),
        401
    );
    // With an empty file nobody can log in.
    let (auth, _) = open(&folder, "# nobody\n");
    assert_eq!(
        status(&auth.unwrap().decide(Some(&field("eve", "sesame")), CLIENT)),
        401
    );
}

#[test]
fn every_failure_takes_the_time_of_the_slowest_hash() {
    let folder = Folder::new();
    let slow = bcrypt::hash("x", 5).unwrap();
    let (auth, _) = open(&folder, &format!("ali:{SESAME}\nbea:{slow}\ncat:{SESAME}\n"));
    let auth = auth.unwrap();
    let passwords = auth.passwords().unwrap();
    let slowest = passwords.slowest().unwrap();
    assert_eq!(slowest.text(), slow);
    for user in ["ali", "bea", "cat", "eve", "nobody", "somebody"] {
        let before = slowest.comparisons.load(Ordering::Relaxed);
        assert_eq!(status(&auth.decide(Some(&field(user, "wrong")), CLIENT)), 401);
        let compared = slowest.comparisons.load(Ordering::Relaxed) - before;
        assert_eq!(compared, 1, "{user}: comparisons with the slowest hash");
    }
}

#[test]
fn what_is_remembered_has_an_end_and_a_bound() {
    let folder = Folder::new();
    let (auth, _) = open(&folder, &format!("ali:{SESAME}"));
    let auth = auth.unwrap();
    assert_eq!(status(&auth.decide(Some(&field("ali", "sesame")), CLIENT)), 200);
    let (verified, key) = (&auth.verified, [0, 1]);
    for number in 0..2 * REMEMBERED_MAX as u64 {
        verified.remember([number, 0]);
        assert!(locked(&verified.until).len() <= REMEMBERED_MAX);
    }
    let age = |by| locked(&verified.until).values_mut().for_each(|until| *until -= by);
    age(REMEMBERED);
    verified.remember(key);
    assert!(verified.has(key) && !verified.has([0, 0]));
    // They stay while they are used.
    for _ in 0..3 {
        age(REMEMBERED / 2);
        assert!(verified.has(key));
    }
    age(REMEMBERED);
    assert!(!verified.has(key));
}

#[test]
fn parallel_requests_of_a_user_compare_the_password_once() {
    let folder = Folder::new();
    let (auth, _) = open(&folder, &format!("ali:{}", bcrypt::hash("sesame", 8).unwrap()));
    let mut auth = auth.unwrap();
    auth.gate = Arc::new(Gate::new(2, PATIENCE));
    let auth = Arc::new(auth);
    let ask_at_once = |auth: &Arc<Auth>| {
        osier::run(|| {
            let ask = |_| {
                let auth = auth.clone();
                osier::spawn(move || status(&auth.decide(Some(&field("ali", "sesame")), CLIENT)))
            };
            // They need no place each.
            let fibers: Vec<_> = (0..WAITING_OF_CLIENT + 50).map(ask).collect();
            assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap() == 200));
        });
        let passwords = auth.passwords().unwrap();
        passwords.find("ali").unwrap().comparisons.load(Ordering::Relaxed)
    };
    assert_eq!(ask_at_once(&auth), 1);
    // A reload makes another one.
    let (again, _) = open(&folder, &fs::read_to_string(folder.join("passwords")).unwrap());
    let mut again = again.unwrap();
    again.verified = Arc::clone(&auth.verified);
    assert_eq!(ask_at_once(&Arc::new(again)), 0);
}

#[test]
fn all_logins_of_the_process_have_one_cache() {
    let folder = Folder::new();
    let settings = Settings {
        realm: "x".into(),
        users: Vec::new(),
        password_file: Some(folder.write("passwords", format!("ali:{SESAME}"))),
        only: None,
    };
    let [one, two] = [(); 2].map(|()| Auth::open(&settings, listener().0).unwrap());
    assert!(Arc::ptr_eq(&one.verified, &two.verified));
}

#[test]
fn of_all_users_only_some_may_come_in() {
    let folder = Folder::new();
    let settings = Settings {
        realm: "x".into(),
        users: vec![("ali".into(), SESAME.into())],
        password_file: Some(folder.write("passwords", format!("bea:{SESAME}\ncat:{SESAME}\n"))),
        only: Some(vec!["ali".into(), "bea".into(), "dan".into()]),
    };
    let (say, lines) = listener();
    let auth = Auth::open(&settings, say).unwrap();
    let ask = |user: &str, password: &str| status(&auth.decide(Some(&field(user, password)), CLIENT));
    assert_eq!((ask("ali", "sesame"), ask("bea", "sesame")), (200, 200));
    // Only who has the password learns that it is of no use here.
    assert_eq!(
        (ask("cat", "sesame"), ask("cat", "wrong"), ask("dan", "sesame")),
        (403, 401, 401)
    );
    assert_eq!((locked(&lines).len(), auth.unknown()), (2, vec!["dan"]));
}

#[test]
fn a_user_of_the_configuration_keeps_no_change_of_the_file_away() {
    let folder = Folder::new();
    let path = folder.write(
        "passwords",
        format!("\u{feff}bob:{}\nali:{}\n", hash("old"), hash("else")),
    );
    let settings = Settings {
        realm: "x".into(),
        users: vec![("ali".into(), SESAME.into())],
        password_file: Some(path.clone()),
        only: None,
    };
    let (say, lines) = listener();
    let auth = Auth::open(&settings, say).unwrap();
    let ask = |user: &str, password: &str| status(&auth.decide(Some(&field(user, password)), CLIENT));
    let double =
        "line 2: user \"ali\" is in 'users' too, where the hash counts; remove one of them; the other lines hold";
    assert!(auth.mistakes().len() == 1 && auth.mistakes()[0].to_string().ends_with(double));
    // The byte order mark is no part of the name.
    assert_eq!(
        (ask("ali", "sesame"), ask("ali", "else"), ask("bob", "old")),
        (200, 401, 200)
    );
    locked(&lines).clear();
    fs::write(path, format!("bob:{}\nali:{}\n", hash("new"), hash("else"))).unwrap();
    auth.file.as_ref().unwrap().look_again();
    assert_eq!(
        (ask("bob", "new"), ask("bob", "old"), ask("ali", "sesame")),
        (200, 401, 200)
    );
    assert!(locked(&lines)[0].ends_with(double), "{lines:?}");
}

/// A field of a request loses the spaces at its ends, so a backend would take the user for another one.
#[test]
fn nobody_has_a_name_with_a_space_at_its_end_and_such_a_line_keeps_no_change_away() {
    let folder = Folder::new();
    let file = |password: &str| format!("ada:{}\nada :{SESAME}\n", hash(password));
    let (auth, lines) = open(&folder, &file("old"));
    let auth = auth.unwrap();
    let ask = |user: &str, password: &str| status(&auth.decide(Some(&field(user, password)), CLIENT));
    let mistake = "line 2: the name of user \"ada \" begins or ends with a space; the other lines hold";
    assert!(auth.mistakes()[0].to_string().ends_with(mistake));
    assert_eq!((ask("ada", "old"), ask("ada ", "sesame")), (200, 401));
    locked(&lines).clear();
    fs::write(folder.join("passwords"), file("new")).unwrap();
    auth.file.as_ref().unwrap().look_again();
    assert_eq!((ask("ada", "new"), ask("ada", "old")), (200, 401));
    assert!(locked(&lines)[0].ends_with(mistake), "{lines:?}");
}

#[test]
fn comparisons_are_bounded_and_the_rest_is_told_to_come_again() {
    let folder = Folder::new();
    let (auth, _) = open(&folder, &format!("ali:{SESAME}"));
    let mut auth = auth.unwrap();
    auth.gate = Arc::new(Gate::new(2, PATIENCE));
    let auth = Arc::new(auth);
    let asked = WAITING_OF_CLIENT + 40;
    let answers: Vec<u16> = osier::run(|| {
        let fibers: Vec<_> = (0..asked)
            .map(|n| {
                let auth = auth.clone();
                osier::spawn(move || status(&auth.decide(Some(&field("ali", &format!("wrong{n}"))), CLIENT)))
            })
            .collect();
        fibers.into_iter().map(|fiber| fiber.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|status| [401, 503].contains(status)));
    assert!(answers.iter().filter(|status| **status == 401).count() >= WAITING_OF_CLIENT);
    assert_eq!(auth.gate.waiting(), 0);
    assert_eq!(auth.gate.permits.available_permits(), 2);
    // Without a free place the password is not compared.
    osier::run(|| {
        let _all = auth.gate.permits.acquire_many(2);
        let ask = |n| {
            let auth = Arc::clone(&auth);
            osier::spawn(move || drop(auth.decide(Some(&field("ali", &format!("wrong{n}"))), CLIENT)))
        };
        let waiting: Vec<_> = (0..WAITING_OF_CLIENT).map(ask).collect();
        testkit::eventually("all wait", || {
            osier::yield_now();
            auth.gate.waiting() == WAITING_OF_CLIENT
        });
        let refused = auth.decide(Some(&field("ali", "sesame")), CLIENT).unwrap_err();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.lookup("retry-after").is_some());
        waiting.iter().for_each(|fiber| fiber.cancel());
        waiting.into_iter().for_each(|fiber| drop(fiber.join()));
        assert_eq!(auth.gate.waiting(), 0);
    });
}

fn client(number: u8) -> Client {
    Client(Some(IpAddr::V4(Ipv4Addr::new(198, 51, 100, number))))
}

/// An `Auth` of these users, all with the password "sesame", of which `at_once` are compared at once.
fn of_users(folder: &Folder, users: usize, at_once: usize) -> Arc<Auth> {
    let file: String = (0..users).map(|user| format!("user{user}:{SESAME}\n")).collect();
    let mut auth = open(folder, &file).0.unwrap();
    auth.gate = Arc::new(Gate::new(at_once, PATIENCE));
    Arc::new(auth)
}

#[test]
fn a_first_burst_of_many_users_waits_for_its_turn() {
    let folder = Folder::new();
    let auth = of_users(&folder, 200, 2);
    osier::run(|| {
        let ask = |user: usize| {
            let auth = Arc::clone(&auth);
            let from = client((user / 100) as u8);
            osier::spawn(move || status(&auth.decide(Some(&field(&format!("user{user}"), "sesame")), from)))
        };
        let fibers: Vec<_> = (0..200).map(ask).collect();
        assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap() == 200));
    });
}

#[test]
fn a_client_that_tries_passwords_does_not_keep_others_waiting() {
    let folder = Folder::new();
    let auth = of_users(&folder, 1, 1);
    osier::run(|| {
        let all = auth.gate.permits.acquire();
        let ask = |n: usize| {
            let auth = Arc::clone(&auth);
            osier::spawn(move || status(&auth.decide(Some(&field("user0", &format!("wrong{n}"))), client(1))))
        };
        let wrong: Vec<_> = (1..WAITING_OF_CLIENT).map(ask).collect();
        testkit::eventually("all wait", || {
            osier::yield_now();
            auth.gate.waiting() == WAITING_OF_CLIENT - 1
        });
        // The right password behind the wrong ones keeps nobody back who sends it, too.
        let last = osier::spawn({
            let auth = Arc::clone(&auth);
            move || status(&auth.decide(Some(&field("user0", "sesame")), client(1)))
        });
        testkit::eventually("the last one waits", || {
            osier::yield_now();
            auth.gate.waiting() == WAITING_OF_CLIENT
        });
        drop(all);
        assert_eq!(status(&auth.decide(Some(&field("user0", "sesame")), client(2))), 200);
        let left = auth.gate.waiting();
        assert!(left > WAITING_OF_CLIENT / 2, "{left}");
        wrong.iter().for_each(|fiber| fiber.cancel());
        assert_eq!(last.join().unwrap(), 200);
    });
}

#[test]
fn clients_that_fill_the_line_keep_nobody_else_out_of_it() {
    let folder = Folder::new();
    let auth = of_users(&folder, 1, 1);
    osier::run(|| {
        let all = auth.gate.permits.acquire();
        let ask = |n: usize| {
            let (auth, from) = (Arc::clone(&auth), client((n / WAITING_OF_CLIENT) as u8));
            osier::spawn(move || status(&auth.decide(Some(&field("user0", &format!("wrong{n}"))), from)))
        };
        let wrong: Vec<_> = (0..WAITING).map(ask).collect();
        testkit::eventually("all wait", || {
            osier::yield_now();
            auth.gate.waiting() == WAITING
        });
        drop(all);
        assert_eq!(status(&auth.decide(Some(&field("user0", "sesame")), client(100))), 200);
        wrong.iter().for_each(|fiber| fiber.cancel());
    });
}

/// Each further client added its share to the requests that wait, without an end.
#[test]
fn the_places_for_further_clients_have_an_end() {
    let folder = Folder::new();
    // A client may have all of its places when the line is full.
    let auth = of_users(&folder, 1, WAITING_OF_CLIENT);
    osier::run(|| {
        let all = auth.gate.permits.acquire_many(WAITING_OF_CLIENT as u32);
        let ask = |n: usize| {
            let (auth, from) = (Arc::clone(&auth), client((n / WAITING_OF_CLIENT) as u8));
            osier::spawn(move || status(&auth.decide(Some(&field("user0", &format!("wrong{n}"))), from)))
        };
        let wrong: Vec<_> = (0..WAITING + WAITING_AT_LAST).map(ask).collect();
        testkit::eventually("all wait", || {
            osier::yield_now();
            auth.gate.waiting() == WAITING + WAITING_AT_LAST
        });
        assert_eq!(status(&auth.decide(Some(&field("user0", "sesame")), client(100))), 503);
        wrong.iter().for_each(|fiber| fiber.cancel());
        wrong.into_iter().for_each(|fiber| drop(fiber.join()));
        drop(all);
        assert_eq!(status(&auth.decide(Some(&field("user0", "sesame")), client(100))), 200);
    });
}

#[test]
fn a_turn_that_does_not_come_gives_everything_back_and_another_one_leads() {
    let folder = Folder::new();
    let file = format!("ali:{SESAME}\n");
    let mut auth = open(&folder, &file).0.unwrap();
    auth.gate = Arc::new(Gate::new(1, Duration::from_secs(4)));
    let auth = Arc::new(auth);
    osier::run(|| {
        let all = auth.gate.permits.acquire();
        let ask = || {
            let auth = Arc::clone(&auth);
            osier::spawn(move || {
                let decided = auth.decide(Some(&field("ali", "sesame")), CLIENT);
                decided.map_or_else(|refused| refused.status().as_u16(), |_| 200)
            })
        };
        let first = ask();
        osier::sleep(Duration::from_secs(2));
        let second = ask();
        assert_eq!(first.join().unwrap(), 503);
        testkit::eventually("the second one leads", || {
            osier::yield_now();
            auth.gate.waiting() == 1
        });
        drop(all);
        assert_eq!(second.join().unwrap(), 200);
        assert_eq!(auth.gate.waiting(), 0);
    });
}

#[test]
fn those_who_share_a_comparison_get_its_outcome_also_if_the_first_leaves() {
    let folder = Folder::new();
    let auth = of_users(&folder, 1, 1);
    let compared = || {
        let passwords = auth.passwords().unwrap();
        passwords.find("user0").unwrap().comparisons.load(Ordering::Relaxed)
    };
    osier::run(|| {
        let ask = |password: &'static str| {
            let auth = Arc::clone(&auth);
            osier::spawn(move || status(&auth.decide(Some(&field("user0", password)), CLIENT)))
        };
        for (password, expected) in [("wrong", 401), ("sesame", 200)] {
            let before = compared();
            let all = auth.gate.permits.acquire();
            let first = ask(password);
            testkit::eventually("it waits", || {
                osier::yield_now();
                auth.gate.waiting() == 1
            });
            let others: Vec<_> = (0..20).map(|_| ask(password)).collect();
            osier::sleep(Duration::from_millis(20));
            assert_eq!(auth.gate.waiting(), 1);
            first.cancel();
            let _ = first.join();
            // One of the others is the first now.
            osier::sleep(Duration::from_millis(20));
            drop(all);
            assert!(others.into_iter().all(|fiber| fiber.join().unwrap() == expected));
            assert_eq!(compared() - before, 1, "{password}");
        }
    });
}
