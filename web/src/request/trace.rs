//! W3C Trace Context (the recommendation of 23 November 2021): the fields `traceparent` and `tracestate`.
//!
//! ```text
//!   traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//!                version  trace id                    parent id        flags
//! ```
//!
//! A request that [starts a trace](crate::Request::start_trace) goes on with the trace of its client, if the fields are valid, or
//! begins one. Gateways pass it on with an id of this server in place of the parent's. A field that breaks a rule counts as absent.

use std::fmt;

use osier_http::Headers;

use crate::RequestId;

pub(crate) const PARENT: &str = "traceparent";
pub(crate) const STATE: &str = "tracestate";

/// The length of a field of version 00. One of a later version begins in the same way.
const LENGTH: usize = 55;
/// The flags that this version knows: sampled, and, from the next level, a random trace id.
const FLAGS: u8 = 0b11;
const SAMPLED: u8 = 0b01;
/// The most members of `tracestate`.
const MEMBERS: usize = 32;
/// The longest `tracestate` that is passed on, in bytes. The recommendation asks for 512.
const STATE_BYTES: usize = 2048;

/// The place of a request in a trace that spans several programs. It is displayed as the field `traceparent` of the requests that
/// follow from this one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace: u128,
    span: u64,
    /// 0 for none: no valid id is zero.
    parent: u64,
    flags: u8,
    /// Whether `tracestate` of the client belongs to it.
    has_state: bool,
}

impl TraceContext {
    /// Begins a trace.
    pub fn begin(is_sampled: bool) -> TraceContext {
        TraceContext {
            trace: u128::from(random()) << 64 | u128::from(random()),
            span: random(),
            parent: 0,
            flags: if is_sampled { SAMPLED } else { 0 },
            has_state: false,
        }
    }

    /// The context of a step below that of `traceparent`. `None` if the field breaks a rule.
    ///
    /// ```
    /// use osier_web::TraceContext;
    ///
    /// let context = TraceContext::below(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
    /// assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
    /// assert_eq!(context.parent_id().as_deref(), Some("00f067aa0ba902b7"));
    /// assert!(context.is_sampled() && context.span_id() != "00f067aa0ba902b7");
    /// assert!(TraceContext::below(b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01").is_none());
    /// ```
    pub fn below(traceparent: &[u8]) -> Option<TraceContext> {
        let (known, more) = traceparent.split_at_checked(LENGTH)?;
        let version = number(&known[..2])?;
        let may_go_on = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.first().is_none_or(|byte| *byte == b'-'),
        };
        let has_dashes = [2, 35, 52].into_iter().all(|at| known[at] == b'-');
        let (trace, parent) = (number(&known[3..35])?, number(&known[36..52])?);
        let flags = number(&known[53..])? as u8;
        (may_go_on && has_dashes && trace != 0 && parent != 0).then(|| TraceContext {
            trace,
            span: random(),
            parent: parent as u64,
            flags: flags & FLAGS,
            has_state: false,
        })
    }

    /// The context of a request with these fields, below that of its client.
    pub(crate) fn of(headers: &Headers<'_>) -> Option<TraceContext> {
        let mut parents = values(headers, PARENT);
        let (first, second) = (parents.next()?, parents.next());
        let context = TraceContext::below(first).filter(|_| second.is_none())?;
        let has_state = state(headers).is_some();
        Some(TraceContext { has_state, ..context })
    }

    /// The id of the trace: 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    /// The id of this step of the trace: 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span)
    }

    /// The id of the client's step. `None` if the trace begins here.
    pub fn parent_id(&self) -> Option<String> {
        (self.parent != 0).then(|| format!("{:016x}", self.parent))
    }

    /// Whether the trace is recorded, as its beginning decided.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The value of `tracestate` for the next program.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn state(&self, headers: &Headers<'_>) -> Option<Vec<u8>> {
        state(headers).filter(|_| self.has_state)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceContext({self} below {:016x})", self.parent)
    }
}

/// Whether a gateway replaces this field of a request that has started a trace.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) fn is_replaced(name: &str) -> bool {
    name.eq_ignore_ascii_case(PARENT) || name.eq_ignore_ascii_case(STATE)
}

/// A random number other than 0.
fn random() -> u64 {
    let id = RequestId::random();
    u64::from_str_radix(id.as_str(), 16).unwrap_or(1).max(1)
}

/// Reads hexadecimal digits in lower case.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

fn values<'h>(headers: &Headers<'h>, name: &'static str) -> impl Iterator<Item = &'h [u8]> + use<'h> {
    let fields = headers
        .clone()
        .filter(move |(known, _)| known.eq_ignore_ascii_case(name));
    fields.map(|(_, value)| value)
}

/// The members of all fields `tracestate`, as one value. `None` if there are none, or if one breaks a rule.
fn state(headers: &Headers<'_>) -> Option<Vec<u8>> {
    join(values(headers, STATE))
}

fn join<'v>(values: impl Iterator<Item = &'v [u8]>) -> Option<Vec<u8>> {
    let mut members: Vec<(&[u8], &[u8])> = Vec::new();
    for member in values.flat_map(|value| value.split(|byte| *byte == b',')) {
        let member = member.trim_ascii();
        if member.is_empty() {
            continue;
        }
        let at = member.iter().position(|byte| *byte == b'=')?;
        let (key, value) = (&member[..at], &member[at + 1..]);
        let is_known = members.iter().any(|(known, _)| *known == key);
        if !is_key(key) || !is_value(value) || is_known || members.len() == MEMBERS {
            return None;
        }
        members.push((key, value));
    }
    let members: Vec<Vec<u8>> = members
        .iter()
        .map(|(key, value)| [key, &b"="[..], value].concat())
        .collect();
    let state = members.join(&b","[..]);
    (!state.is_empty() && state.len() <= STATE_BYTES).then_some(state)
}

/// Whether it is `key`, or `tenant@system`.
fn is_key(key: &[u8]) -> bool {
    let has_form = |part: &[u8], longest: usize, may_begin_with_digit: bool| {
        let begins = part
            .first()
            .is_some_and(|byte| byte.is_ascii_lowercase() || (may_begin_with_digit && byte.is_ascii_digit()));
        let is_fine = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/".contains(byte);
        begins && part.len() <= longest && part.iter().all(is_fine)
    };
    match key.iter().position(|byte| *byte == b'@') {
        None => has_form(key, 256, false),
        Some(at) => has_form(&key[..at], 241, true) && has_form(&key[at + 1..], 14, false),
    }
}

/// Whether it has 1 to 256 printable characters without `,` and `=`, and no space at its end.
fn is_value(value: &[u8]) -> bool {
    let is_fine = |byte: &u8| matches!(byte, b' '..=b'~') && !b",=".contains(byte);
    (1..=256).contains(&value.len()) && value.iter().all(is_fine) && !value.ends_with(b" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT_ID: &str = "00f067aa0ba902b7";

    #[test]
    fn only_a_field_that_keeps_all_rules_is_read() {
        let fine = |version: &str, more: &str| format!("{version}-{TRACE}-{PARENT_ID}-01{more}");
        for (field, is_valid) in [
            (fine("00", ""), true),
            // A later version may have more fields.
            (fine("01", ""), true),
            (fine("cc", "-what-the-future-will-be-like"), true),
            (fine("cc", "."), false),
            (fine("cc", "x-y"), false),
            (fine("00", "-more"), false),
            (fine("00", " "), false),
            (fine("ff", ""), false),
            (fine("0x", ""), false),
            (fine("00", "").to_uppercase(), false),
            (fine("00", "").replace('-', "_"), false),
            (format!("00-{}-{PARENT_ID}-01", "0".repeat(32)), false),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), false),
            (format!("00-{TRACE}-{PARENT_ID}-0"), false),
            (format!("00-{TRACE}-{PARENT_ID}-0g"), false),
            (format!("00-{TRACE}-{PARENT_ID}"), false),
            (String::new(), false),
        ] {
            let context = TraceContext::below(field.as_bytes());
            assert_eq!(context.is_some(), is_valid, "{field}");
            if let Some(context) = context {
                assert_eq!(
                    (context.trace_id(), context.parent_id().unwrap()),
                    (TRACE.into(), PARENT_ID.into())
                );
                assert!(context.is_sampled());
                // The field for the next program is valid, too.
                let next = TraceContext::below(context.to_string().as_bytes()).unwrap();
                assert_eq!(
                    (next.trace_id(), next.parent_id().unwrap()),
                    (TRACE.into(), context.span_id())
                );
            }
        }
        // Flags that are not known are not passed on.
        let context = TraceContext::below(format!("00-{TRACE}-{PARENT_ID}-fe").as_bytes()).unwrap();
        assert!(
            !context.is_sampled() && context.to_string().ends_with("-02"),
            "{context}"
        );
    }

    #[test]
    fn a_trace_begins_with_ids_of_its_own() {
        let [first, second] = [TraceContext::begin(true), TraceContext::begin(false)];
        assert!(first.trace != second.trace && first.span != second.span);
        assert_eq!(
            (first.parent_id(), first.is_sampled(), second.is_sampled()),
            (None, true, false)
        );
        assert_eq!(first.to_string().len(), LENGTH);
    }

    #[test]
    fn the_state_is_passed_on_whole_or_not_at_all() {
        let join = |fields: &[&str]| {
            let joined = join(fields.iter().map(|field| field.as_bytes()));
            joined.map(|state| String::from_utf8(state).unwrap())
        };
        let long = format!("{}={}", "k".repeat(256), "v".repeat(256));
        let many: Vec<String> = (0..33).map(|n| format!("k{n}=v")).collect();
        for (fields, expected) in [
            (&["a=1"][..], Some("a=1")),
            (&["a=1, b=2 ,", "c@d=3"], Some("a=1,b=2,c@d=3")),
            (&["0tenant@sys=x y"], Some("0tenant@sys=x y")),
            (&[&long], Some(&*long)),
            (&[&many[..32].join(",")], Some(&*many[..32].join(","))),
            (&[&many.join(",")], None),
            (&["", " , "], None),
            (&["a"], None),
            (&["a="], None),
            (&["=1"], None),
            (&["A=1"], None),
            (&["0a=1"], None),
            (&["a@b@c=1"], None),
            (&["a@0b=1"], None),
            (&["a=1,a=2"], None),
            (&["a=1=2"], None),
            (&["a=\u{e4}"], None),
            (&["a=\t"], None),
            (&[&format!("{}=1", "k".repeat(257))], None),
            (&[&format!("a={}", "v".repeat(257))], None),
        ] {
            assert_eq!(join(fields).as_deref(), expected, "{fields:?}");
        }
    }
}
