//! The rules of a shared cache: which responses are stored, how long they are fresh, and when one
//! answers a request.
//!
//! The functions are pure. They see facts about a response ([`Facts`]), the settings of the operator
//! ([`Rules`]), and an age. No clock is read here.
//!
//! ```text
//!   age      0 ────────── lifetime ───────── + stale-while-revalidate ───── + stale-if-error
//!   answer     stored         │  stored, and one fetch behind it │ a fetch; stored if that fails
//! ```
//!
//! Source: RFC 9111 sections 3, 3.5, 4, 4.2, 5.2; RFC 5861.

use std::time::{Duration, SystemTime};

use http::StatusCode;
use osier_http::FieldLines;

use super::directives::{RequestDirectives, ResponseDirectives, seconds};
use super::key;

/// The facts about a response that the rules need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    pub directives: ResponseDirectives,
    /// The first `Expires`.
    pub expires: Option<&'a [u8]>,
    /// The first `Date`.
    pub date: Option<&'a [u8]>,
    /// The first `Age`.
    pub age: Option<&'a [u8]>,
    pub sets_cookie: bool,
    /// `Vary` has the member `*`, or a field that a proxy makes anew or that names the client, so that the request's own value does not select
    /// the response.
    pub varies_by_all: bool,
    /// There is an `ETag` or a `Last-Modified`.
    pub has_validator: bool,
    /// It is a stream of server-sent events: the next client must not get them again. [`Facts::of`] does not look for that.
    pub is_event_stream: bool,
}

impl<'a> Facts<'a> {
    /// Reads the fields of a response.
    pub fn of(fields: &'a FieldLines) -> Facts<'a> {
        let mut facts = Facts::default();
        let mut has_directives = false;
        for (name, value) in fields.iter() {
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            match name.len() {
                3 if is("age") => facts.age = facts.age.or(Some(value)),
                4 if is("date") => facts.date = facts.date.or(Some(value)),
                4 if is("etag") => facts.has_validator = true,
                4 if is("vary") => {
                    let mut members = value.split(|&byte| byte == b',');
                    facts.varies_by_all |= members.any(|member| {
                        let member = member.trim_ascii();
                        let names_client = || str::from_utf8(member).is_ok_and(key::names_client);
                        member == b"*" || member.eq_ignore_ascii_case(b"forwarded") || names_client()
                    });
                }
                7 if is("expires") => facts.expires = facts.expires.or(Some(value)),
                10 if is("set-cookie") => facts.sets_cookie = true,
                13 if is("cache-control") => has_directives = true,
                13 if is("last-modified") => facts.has_validator = true,
                _ => {}
            }
        }
        if has_directives {
            let lines = fields
                .iter()
                .filter(|(name, _)| name.eq_ignore_ascii_case("cache-control"));
            facts.directives = ResponseDirectives::read(lines.map(|(_, value)| value));
        }
        facts
    }
}

/// Rules that an operator adds to the directives of responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// How long responses without a lifetime are fresh, by status. A status that is missing here has
    /// no lifetime: nothing is guessed from `Last-Modified`. Neither has a stream of server-sent events.
    pub default_ttl: Vec<(u16, Duration)>,
    /// `stale-while-revalidate` of responses that have none. It holds for responses with `s-maxage`, too, and so does
    /// `stale_if_error`: other than RFC 9111 section 5.2.2.10 says, `s-maxage` forbids only what a client asks for by `max-stale`.
    pub stale_while_revalidate: Option<Duration>,
    /// `stale-if-error` of responses that have none.
    pub stale_if_error: Option<Duration>,
    /// Store responses that set cookies, without their cookies.
    pub drop_set_cookie: bool,
}

/// How long a stored response may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// Age up to which the response is fresh.
    pub lifetime: Duration,
    /// Age at which the response was received.
    pub initial_age: Duration,
    /// Time after `lifetime` in which the response is sent while another one is fetched.
    pub while_revalidate: Duration,
    /// Time after `lifetime` in which the response is sent if a fetch fails.
    pub if_error: Duration,
    /// Whether a client may accept it when it is stale.
    pub may_be_stale: bool,
    /// The response is validated before each use.
    pub no_cache: bool,
}

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An interim response, a part of a body, or a 304.
    Status,
    NoStore,
    Private,
    /// The request had credentials, and the response does not say that it may be shared.
    Credentials,
    SetCookie,
    /// See [`Facts::varies_by_all`].
    Vary,
    /// Nothing says how long it is fresh, or it is stale already and cannot be validated.
    NotFresh,
}

/// Whether and how long a response may be stored. `delay` is the time from the request to the
/// response, and `now` the time of day at the response.
///
/// # Errors
///
/// The reason why it may not be stored.
pub fn judge(
    status: StatusCode,
    facts: &Facts<'_>,
    has_credentials: bool,
    (delay, now): (Duration, SystemTime),
    rules: &Rules,
) -> Result<Freshness, Refusal> {
    let directives = &facts.directives;
    if matches!(status.as_u16(), ..200 | 206 | 304) {
        return Err(Refusal::Status);
    }
    // `must-understand` overrides `no-store` for a status that is understood (RFC 9111 5.2.2.3).
    let is_understood = directives.must_understand && is_understood(status);
    if (directives.no_store || directives.must_understand) && !is_understood {
        return Err(Refusal::NoStore);
    }
    if directives.private {
        return Err(Refusal::Private);
    }
    if has_credentials && !directives.allow_sharing() {
        return Err(Refusal::Credentials);
    }
    if facts.sets_cookie && !rules.drop_set_cookie {
        return Err(Refusal::SetCookie);
    }
    if facts.varies_by_all {
        return Err(Refusal::Vary);
    }
    let lifetime = lifetime(status, facts, now, rules).ok_or(Refusal::NotFresh)?;
    let must_validate = directives.must_revalidate || directives.proxy_revalidate || directives.no_cache;
    let stale = |own: Option<Duration>, rule: Option<Duration>| match must_validate {
        true => Duration::ZERO,
        false => own.or(rule).unwrap_or_default(),
    };
    let freshness = Freshness {
        lifetime,
        initial_age: initial_age(facts, delay, now),
        while_revalidate: stale(directives.stale_while_revalidate, rules.stale_while_revalidate),
        if_error: stale(directives.stale_if_error, rules.stale_if_error),
        may_be_stale: !must_validate && directives.s_maxage.is_none(),
        no_cache: directives.no_cache,
    };
    let is_useful = facts.has_validator
        || (!freshness.no_cache && freshness.initial_age < lifetime.saturating_add(freshness.longest_stale()));
    is_useful.then_some(freshness).ok_or(Refusal::NotFresh)
}

/// Whether this cache knows what the status demands of it.
fn is_understood(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 300 | 301 | 302 | 303 | 307 | 308 | 404 | 405 | 410 | 414 | 451 | 501
    )
}

/// The freshness lifetime (RFC 9111 section 4.2.1). `None` if nothing names one.
fn lifetime(status: StatusCode, facts: &Facts<'_>, now: SystemTime, rules: &Rules) -> Option<Duration> {
    let directives = &facts.directives;
    if let Some(time) = directives.s_maxage.or(directives.max_age) {
        return Some(time);
    }
    if let Some(expires) = facts.expires {
        // An invalid date, "0" above all, is in the past.
        let begin = facts.date.and_then(date).unwrap_or(now);
        let time = date(expires).and_then(|end| end.duration_since(begin).ok());
        return Some(time.unwrap_or_default());
    }
    if directives.no_cache {
        return facts.has_validator.then_some(Duration::ZERO);
    }
    if facts.is_event_stream {
        return None;
    }
    let known = rules.default_ttl.iter().find(|(known, _)| *known == status.as_u16());
    known.map(|(_, time)| *time)
}

/// The age of a response when it arrived (RFC 9111 section 4.2.3, `corrected_initial_age`).
fn initial_age(facts: &Facts<'_>, delay: Duration, now: SystemTime) -> Duration {
    let date = facts.date.and_then(date);
    let apparent = date.and_then(|date| now.duration_since(date).ok()).unwrap_or_default();
    // An Age that is no number is ignored. The first member of a list counts.
    let first = facts.age.and_then(|age| age.split(|&byte| byte == b',').next());
    let told = first.and_then(|age| seconds(age.trim_ascii())).unwrap_or_default();
    // A Date has whole seconds, so an age below one says nothing.
    let apparent = Duration::from_secs(apparent.as_secs());
    apparent.max(told.saturating_add(Duration::from_secs(delay.as_secs())))
}

/// Reads an HTTP date.
fn date(value: &[u8]) -> Option<SystemTime> {
    httpdate::parse_http_date(std::str::from_utf8(value).ok()?.trim_ascii()).ok()
}

/// The use of a stored response for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// It answers the request.
    Fresh,
    /// It answers the request, although it is stale. `refresh`: another one is fetched meanwhile.
    Stale { refresh: bool },
    /// It must be validated first.
    Validate,
}

impl Freshness {
    fn longest_stale(&self) -> Duration {
        self.while_revalidate.max(self.if_error)
    }

    /// Decides about a response of this `age` for a request with these directives.
    pub fn reuse(&self, age: Duration, request: &RequestDirectives) -> Reuse {
        if self.no_cache || request.no_cache || request.max_age.is_some_and(|most| age > most) {
            return Reuse::Validate;
        }
        if age < self.lifetime {
            let left = self.lifetime - age;
            return match request.min_fresh {
                Some(least) if left < least => Reuse::Validate,
                _ => Reuse::Fresh,
            };
        }
        if request.min_fresh.is_some() {
            return Reuse::Validate;
        }
        let staleness = age - self.lifetime;
        if staleness < self.while_revalidate {
            return Reuse::Stale { refresh: true };
        }
        match request.max_stale {
            Some(most) if self.may_be_stale && staleness <= most => Reuse::Stale { refresh: false },
            _ => Reuse::Validate,
        }
    }

    /// Whether a response of this `age` may be sent in place of an error.
    pub fn covers_error(&self, age: Duration) -> bool {
        !self.no_cache && age < self.lifetime.saturating_add(self.if_error)
    }

    /// Whether a response of this `age` can never be of use again, unless it can be validated.
    pub fn is_over(&self, age: Duration) -> bool {
        age >= self.lifetime.saturating_add(self.longest_stale())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    use super::*;

    const NOW: u64 = 784_111_777;
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const MINUTE_LATER: &str = "Sun, 06 Nov 1994 08:50:37 GMT";
    const MINUTE_BEFORE: &str = "Sun, 06 Nov 1994 08:48:37 GMT";

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(NOW)
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fields(text: &str) -> FieldLines {
        let mut fields = FieldLines::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ").unwrap();
            fields.push(name, value.as_bytes()).unwrap();
        }
        fields
    }

    fn judged(status: u16, text: &str, authorization: bool, rules: &Rules) -> Result<Freshness, Refusal> {
        let fields = fields(text);
        let facts = Facts::of(&fields);
        let status = StatusCode::from_u16(status).unwrap();
        judge(status, &facts, authorization, (Duration::ZERO, now()), rules)
    }

    fn lifetime_of(text: &str) -> Option<u64> {
        let judged = judged(200, text, false, &Rules::default());
        judged.ok().map(|freshness| freshness.lifetime.as_secs())
    }

    /// Each row: what RFC 9111 says, the response, whether the request had credentials, the outcome.
    #[test]
    fn what_may_be_stored() {
        use Refusal::{Credentials, NoStore, NotFresh, Private, SetCookie, Status, Vary};
        for (rule, status, text, authorization, expected) in [
            ("3: explicit freshness", 200, "Cache-Control: max-age=60", false, None),
            (
                "3: a final status",
                103,
                "Cache-Control: max-age=60",
                false,
                Some(Status),
            ),
            ("3.3: no parts", 206, "Cache-Control: max-age=60", false, Some(Status)),
            ("4.3.4: no 304", 304, "Cache-Control: max-age=60", false, Some(Status)),
            (
                "3: no-store",
                200,
                "Cache-Control: max-age=60, no-store",
                false,
                Some(NoStore),
            ),
            (
                "3: no-store in another line",
                200,
                "Cache-Control: max-age=60\nCACHE-CONTROL: no-store",
                false,
                Some(NoStore),
            ),
            (
                "3: private",
                200,
                "Cache-Control: private, max-age=60",
                false,
                Some(Private),
            ),
            (
                "5.2.2.7: private with names",
                200,
                "Cache-Control: private=\"x\", max-age=60",
                false,
                Some(Private),
            ),
            (
                "3.5: credentials",
                200,
                "Cache-Control: max-age=60",
                true,
                Some(Credentials),
            ),
            ("3.5: public", 200, "Cache-Control: public, max-age=60", true, None),
            (
                "3.5: must-revalidate",
                200,
                "Cache-Control: must-revalidate, max-age=60",
                true,
                None,
            ),
            ("3.5: s-maxage", 200, "Cache-Control: s-maxage=60", true, None),
            (
                "3.5: proxy-revalidate is not enough",
                200,
                "Cache-Control: proxy-revalidate, max-age=60",
                true,
                Some(Credentials),
            ),
            (
                "5.2.2.3: must-understand, a known status",
                200,
                "Cache-Control: must-understand, no-store, max-age=60",
                false,
                None,
            ),
            (
                "5.2.2.3: must-understand, another status",
                299,
                "Cache-Control: must-understand, max-age=60",
                false,
                Some(NoStore),
            ),
            (
                "4.1: Vary by a field that the proxy makes",
                200,
                "Cache-Control: max-age=60\nVary: a, X-Forwarded-For",
                false,
                Some(Vary),
            ),
            (
                "4.1: Vary by a field that names the client",
                200,
                "Cache-Control: max-age=60\nVary: X-Original-Forwarded-For",
                false,
                Some(Vary),
            ),
            (
                "4.1: Vary *",
                200,
                "Cache-Control: max-age=60\nVary: a, *",
                false,
                Some(Vary),
            ),
            (
                "7.3: cookies",
                200,
                "Cache-Control: max-age=60\nSet-Cookie: a=b",
                false,
                Some(SetCookie),
            ),
            (
                "4.2.2: nothing is guessed",
                200,
                "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT",
                false,
                Some(NotFresh),
            ),
            ("3: nothing says how long", 200, "", false, Some(NotFresh)),
            ("stale at once", 200, "Cache-Control: max-age=0", false, Some(NotFresh)),
            (
                "stale at once, but it can be validated",
                200,
                "Cache-Control: max-age=0\nETag: \"a\"",
                false,
                None,
            ),
            (
                "stale at once, but it may be sent stale",
                200,
                "Cache-Control: max-age=0, stale-while-revalidate=9",
                false,
                None,
            ),
            (
                "5.2.2.4: no-cache, and it can be validated",
                200,
                "Cache-Control: no-cache\nETag: \"a\"",
                false,
                None,
            ),
            (
                "5.2.2.4: no-cache, and it cannot",
                200,
                "Cache-Control: no-cache, max-age=60",
                false,
                Some(NotFresh),
            ),
            (
                "other statuses with explicit freshness",
                302,
                "Cache-Control: max-age=60",
                false,
                None,
            ),
            (
                "errors with explicit freshness",
                503,
                "Cache-Control: max-age=60",
                false,
                None,
            ),
        ] {
            let outcome = judged(status, text, authorization, &Rules::default()).err();
            assert_eq!(outcome, expected, "{rule}: {status} {text}");
        }
    }

    #[test]
    fn lifetimes() {
        for (text, expected) in [
            ("Cache-Control: max-age=60", Some(60)),
            ("Cache-Control: max-age=60, s-maxage=30", Some(30)),
            ("Cache-Control: max-age=60, max-age=20", Some(20)),
            ("Cache-Control: max-age=60\nExpires: 0", Some(60)),
            (&format!("Date: {DATE}\nExpires: {MINUTE_LATER}"), Some(60)),
            (&format!("Expires: {MINUTE_LATER}"), Some(60)),
            (&format!("Date: {MINUTE_BEFORE}\nExpires: {MINUTE_LATER}"), Some(120)),
            (&format!("Date: {DATE}\nExpires: {MINUTE_BEFORE}\nETag: \"a\""), Some(0)),
            ("Expires: 0\nETag: \"a\"", Some(0)),
            (&format!("Expires: 0\nExpires: {MINUTE_LATER}\nETag: \"a\""), Some(0)),
            ("Expires: 0", None),
        ] {
            assert_eq!(lifetime_of(text), expected, "{text}");
        }
    }

    #[test]
    fn default_lifetimes_are_by_status_and_for_silent_responses_only() {
        let rules = Rules {
            default_ttl: vec![(200, s(600)), (404, s(10))],
            ..Rules::default()
        };
        let lifetime = |status, text| {
            judged(status, text, false, &rules)
                .ok()
                .map(|known| known.lifetime.as_secs())
        };
        assert_eq!(lifetime(200, ""), Some(600));
        assert_eq!(lifetime(404, ""), Some(10));
        assert_eq!(lifetime(500, ""), None);
        assert_eq!(lifetime(200, "Cache-Control: max-age=5"), Some(5));
        assert_eq!(lifetime(200, "Cache-Control: no-cache"), None);
        assert_eq!(lifetime(200, "Cache-Control: private"), None);
        assert_eq!(lifetime(200, "Expires: 0"), None);
        assert_eq!(lifetime(200, "Set-Cookie: a=b"), None);
        let stripped = Rules {
            drop_set_cookie: true,
            ..rules
        };
        assert!(judged(200, "Set-Cookie: a=b", false, &stripped).is_ok());
    }

    #[test]
    fn ages() {
        let age = |text: &str, delay: u64| {
            let fields = fields(text);
            initial_age(&Facts::of(&fields), s(delay), now()).as_secs()
        };
        assert_eq!(age("", 0), 0);
        assert_eq!(age(&format!("Date: {DATE}"), 0), 0);
        assert_eq!(age(&format!("Date: {MINUTE_BEFORE}"), 0), 60);
        assert_eq!(age(&format!("Date: {MINUTE_LATER}"), 0), 0, "a clock ahead of ours");
        assert_eq!(age("Age: 10", 0), 10);
        assert_eq!(age("Age: 10", 3), 13);
        assert_eq!(age("Age: 10, 99", 0), 10);
        assert_eq!(age("Age: -1", 2), 2);
        assert_eq!(age("Age: x", 0), 0);
        assert_eq!(age(&format!("Date: {MINUTE_BEFORE}\nAge: 10"), 3), 60);
    }

    const FRESH: Freshness = Freshness {
        lifetime: Duration::from_secs(60),
        initial_age: Duration::ZERO,
        while_revalidate: Duration::from_secs(10),
        if_error: Duration::from_secs(100),
        may_be_stale: true,
        no_cache: false,
    };

    /// Each row: the age, the directives of the request, the decision.
    #[test]
    fn when_a_stored_response_answers() {
        use Reuse::{Fresh, Stale, Validate};
        for (age, line, expected) in [
            (0, "", Fresh),
            (59, "", Fresh),
            (60, "", Stale { refresh: true }),
            (69, "", Stale { refresh: true }),
            (70, "", Validate),
            (0, "no-cache", Validate),
            (30, "max-age=30", Fresh),
            (31, "max-age=30", Validate),
            (65, "max-age=30", Validate),
            (50, "min-fresh=10", Fresh),
            (51, "min-fresh=10", Validate),
            (65, "min-fresh=0", Validate),
            (75, "max-stale", Stale { refresh: false }),
            (75, "max-stale=15", Stale { refresh: false }),
            (76, "max-stale=15", Validate),
            (65, "max-stale=3", Stale { refresh: true }),
            (75, "max-stale, max-age=70", Validate),
        ] {
            let request = RequestDirectives::read([line.as_bytes()]);
            assert_eq!(FRESH.reuse(s(age), &request), expected, "{age} {line}");
        }
        let strict = Freshness {
            may_be_stale: false,
            while_revalidate: Duration::ZERO,
            ..FRESH
        };
        let lenient = RequestDirectives {
            max_stale: Some(Duration::MAX),
            ..RequestDirectives::default()
        };
        assert_eq!(strict.reuse(s(60), &lenient), Validate);
        let checked = Freshness {
            no_cache: true,
            ..FRESH
        };
        assert_eq!(checked.reuse(s(0), &RequestDirectives::default()), Validate);
        assert!(!checked.covers_error(s(0)));
        assert!(FRESH.covers_error(s(159)) && !FRESH.covers_error(s(160)));
    }

    #[test]
    fn stale_use_is_a_matter_of_the_response_first() {
        let rules = Rules {
            stale_while_revalidate: Some(s(30)),
            stale_if_error: Some(s(3600)),
            ..Rules::default()
        };
        let stale = |text: &str| {
            let known = judged(200, text, false, &rules).unwrap();
            (
                known.while_revalidate.as_secs(),
                known.if_error.as_secs(),
                known.may_be_stale,
            )
        };
        assert_eq!(stale("Cache-Control: max-age=1"), (30, 3600, true));
        assert_eq!(
            stale("Cache-Control: max-age=1, stale-while-revalidate=0"),
            (0, 3600, true)
        );
        assert_eq!(stale("Cache-Control: max-age=1, stale-if-error=5"), (30, 5, true));
        assert_eq!(stale("Cache-Control: max-age=1, must-revalidate"), (0, 0, false));
        assert_eq!(
            stale("Cache-Control: max-age=1, proxy-revalidate, stale-if-error=5"),
            (0, 0, false)
        );
        assert_eq!(stale("Cache-Control: no-cache\nETag: \"a\""), (0, 0, false));
        // The operator, or the response itself, may allow what `s-maxage` alone would forbid.
        assert_eq!(stale("Cache-Control: s-maxage=1"), (30, 3600, false));
    }

    proptest! {
        /// A stricter request never gets an older response than a plain one.
        #[test]
        fn directives_of_a_request_only_demand_more(
            age in 0u64..200, lifetime in 0u64..100, while_revalidate in 0u64..50,
            most in proptest::option::of(0u64..200), least in proptest::option::of(0u64..200), no_cache: bool,
        ) {
            let freshness = Freshness { lifetime: s(lifetime), while_revalidate: s(while_revalidate), ..FRESH };
            let request = RequestDirectives {
                no_cache,
                max_age: most.map(s),
                min_fresh: least.map(s),
                ..RequestDirectives::default()
            };
            let strict = freshness.reuse(s(age), &request);
            let plain = freshness.reuse(s(age), &RequestDirectives::default());
            prop_assert!(strict == Reuse::Validate || strict == plain);
            prop_assert!(strict == Reuse::Validate || most.is_none_or(|most| age <= most));
        }

        /// Nothing that must be validated is ever sent stale.
        #[test]
        fn must_revalidate_is_obeyed(
            age in 0u64..10_000, name in "(must|proxy)-revalidate", lifetime in 0u64..100, allowed in 0u64..10_000,
        ) {
            let rules = Rules {
                stale_while_revalidate: Some(s(allowed)),
                stale_if_error: Some(s(allowed)),
                ..Rules::default()
            };
            let text = format!("Cache-Control: max-age={lifetime}, {name}\nETag: \"a\"");
            let freshness = judged(200, &text, false, &rules).unwrap();
            let lenient = RequestDirectives { max_stale: Some(Duration::MAX), ..RequestDirectives::default() };
            let reuse = freshness.reuse(s(age), &lenient);
            prop_assert_eq!(reuse, if age < lifetime { Reuse::Fresh } else { Reuse::Validate });
            prop_assert!(!freshness.covers_error(s(age)) || age < lifetime);
        }

        /// No response that forbids it is stored, whatever else it says.
        #[test]
        fn a_prohibition_wins(other in "(max-age=[0-9]{1,4}|public|s-maxage=[0-9]{1,4}|immutable)", bar in "(no-store|private)", first: bool) {
            let line = if first { format!("{bar}, {other}") } else { format!("{other}, {bar}") };
            let text = format!("Cache-Control: {line}\nETag: \"a\"");
            let rules = Rules { default_ttl: vec![(200, s(60))], ..Rules::default() };
            prop_assert!(judged(200, &text, false, &rules).is_err());
        }
    }
}
