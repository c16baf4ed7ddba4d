//! The changes of a request's head: targets and fields that code before the handler has set.
//!
//! The changes are a list, the oldest first. The request borrows from all of them, so none is dropped before the request. A new
//! head is made from the one before it. A change that holds for a part of the code only is undone after it, and counts no more.

use std::cell::{Cell, OnceCell};

use osier_http::{FieldLines, FieldList, Head, HeaderError, Reject};

/// The names of fields that stay as the client has sent them: the head keeps what it has read in them.
const KEPT: [&str; 7] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "transfer-encoding",
    "upgrade",
];

#[derive(Default)]
pub(crate) struct Changes<'a>(OnceCell<Box<Change<'a>>>);

struct Change<'a> {
    texts: Texts,
    /// The fields, if they have changed.
    fields: OnceCell<FieldList<'a>>,
    /// The result. Empty after a refused change.
    head: OnceCell<Head<'a>>,
    is_undone: Cell<bool>,
    /// The head before the change.
    before: &'a Head<'a>,
    next: Changes<'a>,
}

/// The target or the fields that a change adds. The new head borrows from them.
#[derive(Clone, Debug)]
pub(crate) enum Texts {
    Target(Box<str>),
    Fields {
        /// Names of fields, which are removed.
        removed: Vec<String>,
        added: Vec<(String, Vec<u8>)>,
    },
}

#[cfg(any(feature = "cache", feature = "fastcgi", feature = "proxy"))]
impl Change<'_> {
    /// Whether the request has this change.
    fn holds(&self) -> bool {
        self.head.get().is_some() && !self.is_undone.get()
    }
}

impl<'a> Changes<'a> {
    /// The head that the client has sent. `current` is the result of all changes.
    #[cfg_attr(
        not(feature = "proxy"),
        allow(dead_code, reason = "an authentication server is told the original target")
    )]
    pub(crate) fn original(&self, current: &'a Head<'a>) -> &'a Head<'a> {
        self.0.get().map_or(current, |first| first.before)
    }

    /// Returns `head` with another target.
    pub(crate) fn target(&'a self, head: &'a Head<'a>, target: &str) -> Result<&'a Head<'a>, Reject> {
        let change = self.append(head, Texts::Target(target.into()));
        let Texts::Target(target) = &change.texts else {
            unreachable!("made above")
        };
        let changed = head.with_target(target)?;
        Ok(change.head.get_or_init(|| changed))
    }

    /// The changes that were made, for another request with the same head.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn made(&self) -> Vec<Texts> {
        let (mut made, mut next) = (Vec::new(), self.0.get());
        while let Some(change) = next {
            if change.holds() {
                made.push(change.texts.clone());
            }
            next = change.next.0.get();
        }
        made
    }

    /// Returns `head` without the fields `removed`, and with those of `added`.
    pub(crate) fn fields(
        &'a self,
        head: &'a Head<'a>,
        removed: Vec<String>,
        added: Vec<(String, Vec<u8>)>,
    ) -> Result<&'a Head<'a>, HeaderError> {
        let change = self.append(head, Texts::Fields { removed, added });
        let Texts::Fields { removed, added } = &change.texts else {
            unreachable!("made above")
        };
        let keeps = |name: &str| !removed.iter().any(|removed| is_same_name(name, removed));
        let mut fields = FieldList::of(head.headers(), keeps);
        for (name, value) in added {
            check_added(name)?;
            fields.push(name, value)?;
        }
        let fields = change.fields.get_or_init(|| fields);
        Ok(change.head.get_or_init(|| head.with_fields(fields)))
    }

    /// Whether code before the handler has added a field of this name. The client's own fields of that name are removed then, so the
    /// client's `Connection` does not speak of it.
    #[cfg(any(feature = "cache", feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn adds(&self, name: &str) -> bool {
        let mut next = self.0.get();
        while let Some(change) = next {
            if let Texts::Fields { added, .. } = &change.texts
                && change.holds()
                && added.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
            {
                return true;
            }
            next = change.next.0.get();
        }
        false
    }

    /// The names of the fields that code before the handler has removed or added.
    #[cfg(feature = "proxy")]
    pub(crate) fn names(&self) -> Vec<String> {
        let (mut names, mut next) = (Vec::new(), self.0.get());
        while let Some(change) = next {
            if let Texts::Fields { removed, added } = &change.texts
                && change.holds()
            {
                names.extend(removed.iter().chain(added.iter().map(|(name, _)| name)).cloned());
            }
            next = change.next.0.get();
        }
        names
    }

    /// The fields that code before the handler has added, and not removed again.
    #[cfg(feature = "cache")]
    pub(crate) fn added(&self) -> Vec<(String, Vec<u8>)> {
        let (mut all, mut next) = (Vec::new(), self.0.get());
        while let Some(change) = next {
            if let Texts::Fields { removed, added } = &change.texts
                && change.holds()
            {
                all.retain(|(name, _): &(String, _)| !removed.iter().any(|removed| is_same_name(name, removed)));
                all.extend_from_slice(added);
            }
            next = change.next.0.get();
        }
        all
    }

    /// The number of changes.
    pub(crate) fn count(&self) -> usize {
        let (mut count, mut next) = (0, self.0.get());
        while let Some(change) = next {
            (count, next) = (count + 1, change.next.0.get());
        }
        count
    }

    /// Undoes all but the first `count` changes. The caller takes back the head.
    pub(crate) fn undo_from(&self, mut count: usize) {
        let mut next = self.0.get();
        while let Some(change) = next {
            match count.checked_sub(1) {
                Some(less) => count = less,
                None => change.is_undone.set(true),
            }
            next = change.next.0.get();
        }
    }

    fn append(&'a self, before: &'a Head<'a>, texts: Texts) -> &'a Change<'a> {
        let mut last = &self.0;
        while let Some(change) = last.get() {
            last = &change.next.0;
        }
        last.get_or_init(|| {
            Box::new(Change {
                texts,
                fields: OnceCell::new(),
                head: OnceCell::new(),
                is_undone: Cell::new(false),
                before,
                next: Changes::default(),
            })
        })
    }
}

/// Checks the name of a field that code before the handler adds to a request: it is a token, and none of the names that stay as
/// the client has sent them, in any spelling.
pub(crate) fn check_added(name: &str) -> Result<(), HeaderError> {
    match KEPT.iter().any(|kept| is_same_name(kept, name)) {
        true => Err(HeaderError::Reserved),
        false => FieldLines::new().push(name, b""),
    }
}

/// Whether two field names are the same to every reader: case does not matter, and a CGI program reads `-` as `_`.
pub(crate) fn is_same_name(one: &str, other: &str) -> bool {
    let plain = |byte: u8| match byte {
        b'_' => b'-',
        _ => byte.to_ascii_lowercase(),
    };
    one.len() == other.len()
        && one
            .bytes()
            .zip(other.bytes())
            .all(|(one, other)| plain(one) == plain(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_stays_as_the_client_has_sent_it_is_added_in_no_spelling() {
        for kept in KEPT {
            for name in [kept.to_owned(), kept.to_uppercase(), kept.replace('-', "_")] {
                assert_eq!(check_added(&name), Err(HeaderError::Reserved), "{name}");
            }
        }
        assert!(!is_same_name("client-certs", "client-cert"));
        assert_eq!(check_added("x user"), Err(HeaderError::Name));
        assert_eq!(check_added("x_user"), Ok(()));
    }
}
