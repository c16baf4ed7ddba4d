//! The header fields of a received head, borrowed from its bytes.

use std::fmt;
use std::mem::MaybeUninit;

use super::byte::are_tokens;
use super::{FieldLines, HeaderError, Place, check_name, check_value, is_framing};

/// An iterator over the fields of a head, in the order received; see [`Head::headers`](crate::Head::headers).
#[derive(Clone)]
pub struct Headers<'a>(pub(crate) Fields<'a>);

/// The remaining fields, in the form of the parser that has read the head.
#[derive(Clone, Copy)]
pub(crate) enum Fields<'a> {
    Parsed(&'a [httparse::Header<'a>]),
    /// The head's text, and the places of the fields in it.
    Outlined(&'a str, &'a [Place]),
    /// The fields of an HTTP/2 head, from this one on.
    #[cfg(feature = "h2")]
    Section(&'a super::FieldSection, usize),
}

impl<'a> Headers<'a> {
    /// The value of the field at `place`, counted from 0, if it is text.
    #[inline]
    pub(crate) fn text(&self, place: usize) -> Option<&'a str> {
        match self.0 {
            Fields::Parsed(fields) => str::from_utf8(fields.get(place)?.value).ok(),
            Fields::Outlined(head, places) => places.get(place)?.text(head),
            #[cfg(feature = "h2")]
            Fields::Section(section, at) => str::from_utf8(section.get(at + place)?.1).ok(),
        }
    }

    /// The next field, with its name in bytes. That spares the tests of a cut out of a text, which has to lie between two characters.
    #[inline(always)]
    pub(crate) fn next_in_bytes(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        match &mut self.0 {
            Fields::Outlined(head, places) => places.split_off_first().map(|place| place.cut_bytes(head.as_bytes())),
            _ => self.next().map(|(name, value)| (name.as_bytes(), value)),
        }
    }

    /// Appends the lines of those fields that `passes` takes. Every field of a head has been checked by the parser that has read it.
    /// Fields that frame a message are left out.
    ///
    /// Lines that follow each other in the bytes of an outlined head are copied at once, if they are spelled as this function writes them.
    #[inline]
    pub(crate) fn write_lines(mut self, out: &mut Vec<u8>, mut passes: impl FnMut(&str, &[u8]) -> bool) {
        out.reserve(self.written());
        let text = match self.0 {
            Fields::Outlined(head, _) => head.as_bytes(),
            _ => &[],
        };
        // The lines to be copied, which end at `end`.
        let (mut start, mut end) = (0, 0);
        // One call of `passes` for all forms, so that it is inlined.
        loop {
            let place = match self.0 {
                Fields::Outlined(_, [place, ..]) => Some(place),
                _ => None,
            };
            let Some((name, value)) = self.next() else { break };
            if !passes(name, value) || is_framing(name) {
                continue;
            }
            let Some(place) = place else {
                write_line(out, name, value);
                continue;
            };
            let (colon, value_end) = (usize::from(place.colon), usize::from(place.end));
            let is_as_written = place.value == place.colon + 2
                && text[colon + 1] == b' '
                && text.get(value_end..value_end + 2) == Some(b"\r\n");
            if usize::from(place.name) != end || !is_as_written {
                out.extend_from_slice(&text[start..end]);
                start = usize::from(place.name);
                end = start;
            }
            match is_as_written {
                true => end = value_end + 2,
                false => write_line(out, name, value),
            }
        }
        out.extend_from_slice(&text[start..end]);
    }

    /// The bytes of the lines of all fields. A few more are needed for lines of an outlined head without a space behind the colon.
    fn written(&self) -> usize {
        match self.0 {
            Fields::Outlined(_, [first, .., last]) => usize::from(last.end + 2 - first.name),
            _ => self.clone().map(|(name, value)| name.len() + value.len() + 4).sum(),
        }
    }
}

impl FieldLines {
    /// Adds those fields of a received head that `passes` takes, by name and value. They are not checked again. Fields that frame a
    /// message are left out, whatever `passes` says.
    #[inline]
    pub fn pass(&mut self, fields: Headers<'_>, passes: impl FnMut(&str, &[u8]) -> bool) {
        fields.write_lines(&mut self.0, passes);
    }
}

fn write_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    debug_assert!(check_value(value).is_ok() && are_tokens(name.as_bytes()), "{name}");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a str, &'a [u8]);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Fields::Parsed(fields) => fields.split_off_first().map(|field| (field.name, field.value)),
            Fields::Outlined(head, places) => places.split_off_first().map(|place| place.cut(head)),
            #[cfg(feature = "h2")]
            Fields::Section(section, at) => {
                *at += 1;
                section.get(*at - 1)
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match self.0 {
            Fields::Parsed(fields) => fields.len(),
            Fields::Outlined(_, places) => places.len(),
            #[cfg(feature = "h2")]
            Fields::Section(section, at) => section.len().saturating_sub(at),
        };
        (left, Some(left))
    }
}

impl ExactSizeIterator for Headers<'_> {}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Field values may be secrets: names only.
        f.debug_list().entries(self.clone().map(|(name, _)| name)).finish()
    }
}

/// The fields of a head that a server has changed; see [`Head::with_fields`](crate::Head::with_fields).
#[derive(Clone, Default)]
pub struct FieldList<'a>(Vec<httparse::Header<'a>>);

impl<'a> FieldList<'a> {
    /// Makes a list of those `headers` whose name `keeps`.
    pub fn of(headers: Headers<'a>, keeps: impl Fn(&str) -> bool) -> FieldList<'a> {
        let kept = headers.filter(|(name, _)| keeps(name));
        FieldList(kept.map(|(name, value)| httparse::Header { name, value }).collect())
    }

    /// Adds a field.
    ///
    /// # Errors
    /// [`HeaderError`] for an invalid name or value, for the fields that frame a message, and for Host, Expect and Upgrade. The
    /// head keeps what it has read in those. Nothing is added then.
    pub fn push(&mut self, name: &'a str, value: &'a [u8]) -> Result<(), HeaderError> {
        check_name(name)?;
        if ["host", "expect", "upgrade"]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
        {
            return Err(HeaderError::Reserved);
        }
        check_value(value)?;
        self.0.push(httparse::Header { name, value });
        Ok(())
    }

    pub(crate) fn fields(&'a self) -> Fields<'a> {
        Fields::Parsed(&self.0)
    }
}

impl fmt::Debug for FieldList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Field values may be secrets: names only.
        f.debug_list().entries(self.0.iter().map(|field| field.name)).finish()
    }
}

/// Room for the fields of one head. It is uninitialised, so making it costs nothing.
///
/// A head may have at most `N` fields, and at most [`Limits::header_count`](crate::Limits::header_count). A slot takes 32 bytes of
/// stack.
pub struct Slots<'b, const N: usize = 100>([MaybeUninit<httparse::Header<'b>>; N]);

impl<const N: usize> Slots<'_, N> {
    /// Makes empty slots.
    #[inline(always)]
    pub const fn new() -> Self {
        Slots([const { MaybeUninit::uninit() }; N])
    }
}

impl<'b, const N: usize> Slots<'b, N> {
    /// The first `count` slots, or all if there are fewer.
    #[inline(always)]
    pub(crate) fn room(&mut self, count: usize) -> &mut [MaybeUninit<httparse::Header<'b>>] {
        &mut self.0[..count.min(N)]
    }
}

impl<const N: usize> Default for Slots<'_, N> {
    fn default() -> Self {
        Slots::new()
    }
}
