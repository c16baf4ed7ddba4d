//! The priority of a response (RFC 9218): the value of the `priority` field and of the frame PRIORITY_UPDATE.
//!
//! The value is a dictionary of structured fields (RFC 9651): `u=1, i`. Only the members `u` and `i` count; other members and all
//! parameters are checked for their syntax and ignored.

/// When a response should be sent, compared with the other responses of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// The order: 0 is the most urgent, 7 the least.
    pub urgency: u8,
    /// Whether the client can use a part of the response. Incremental responses of one urgency share the connection.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority {
            urgency: 3,
            incremental: false,
        }
    }
}

impl Priority {
    /// Reads the value of a field. Members that are absent, of a wrong type or out of range have their defaults. `None` if the
    /// value is not a dictionary: then the whole field is ignored (RFC 9651 4.2).
    ///
    /// ```
    /// use osier_http::h2::Priority;
    ///
    /// assert_eq!(Priority::parse(b"u=1, i"), Some(Priority { urgency: 1, incremental: true }));
    /// assert_eq!(Priority::parse(b"u=9, x=\"y\""), Some(Priority::default()));
    /// assert_eq!(Priority::parse(b"u=="), None);
    /// ```
    pub fn parse(value: &[u8]) -> Option<Priority> {
        let mut priority = Priority::default();
        let mut input = Input(value);
        input.skip(b" ");
        while !input.0.is_empty() {
            let key = input.key()?;
            let value = if input.take(b'=') {
                input.item_or_list()?
            } else {
                Item::Boolean(true)
            };
            input.parameters()?;
            // The last member of a name counts (RFC 9651 4.2.2).
            match (key, value) {
                (b"u", Item::Integer(urgency)) => {
                    priority.urgency = u8::try_from(urgency).ok().filter(|u| *u <= 7).unwrap_or(3);
                }
                (b"u", _) => priority.urgency = 3,
                (b"i", Item::Boolean(incremental)) => priority.incremental = incremental,
                (b"i", _) => priority.incremental = false,
                _ => {}
            }
            input.skip(b" \t");
            if input.0.is_empty() {
                break;
            }
            if !input.take(b',') {
                return None;
            }
            input.skip(b" \t");
            if input.0.is_empty() {
                return None; // a comma at the end
            }
        }
        Some(priority)
    }
}

/// The value of a member, as far as it matters here.
enum Item {
    Boolean(bool),
    Integer(i64),
    Other,
}

/// The rest of the value.
struct Input<'v>(&'v [u8]);

impl<'v> Input<'v> {
    fn take(&mut self, byte: u8) -> bool {
        match self.0.split_first() {
            Some((&first, rest)) if first == byte => {
                self.0 = rest;
                true
            }
            _ => false,
        }
    }

    fn skip(&mut self, bytes: &[u8]) {
        self.run(|byte| bytes.contains(&byte));
    }

    /// The bytes up to the first one that does not fit.
    fn run(&mut self, fits: impl Fn(u8) -> bool) -> &'v [u8] {
        let end = self.0.iter().position(|&byte| !fits(byte)).unwrap_or(self.0.len());
        let (run, rest) = self.0.split_at(end);
        self.0 = rest;
        run
    }

    fn key(&mut self) -> Option<&'v [u8]> {
        let first = *self.0.first()?;
        if !(first.is_ascii_lowercase() || first == b'*') {
            return None;
        }
        Some(self.run(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.*".contains(&b)))
    }

    fn item_or_list(&mut self) -> Option<Item> {
        if !self.take(b'(') {
            return self.item();
        }
        loop {
            self.skip(b" ");
            if self.take(b')') {
                return Some(Item::Other);
            }
            self.item()?;
            self.parameters()?;
            if !matches!(self.0.first(), Some(b' ' | b')')) {
                return None;
            }
        }
    }

    fn parameters(&mut self) -> Option<()> {
        while self.take(b';') {
            self.skip(b" ");
            self.key()?;
            if self.take(b'=') {
                self.item()?;
            }
        }
        Some(())
    }

    fn item(&mut self) -> Option<Item> {
        match *self.0.first()? {
            b'?' => self.boolean(),
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b':' => self.bytes(),
            b'A'..=b'Z' | b'a'..=b'z' | b'*' => {
                self.run(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&b));
                Some(Item::Other)
            }
            _ => None,
        }
    }

    fn boolean(&mut self) -> Option<Item> {
        let (value, rest) = self.0.split_at_checked(2)?;
        self.0 = rest;
        match value {
            b"?0" => Some(Item::Boolean(false)),
            b"?1" => Some(Item::Boolean(true)),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Item> {
        let negative = self.take(b'-');
        let digits = self.run(|b| b.is_ascii_digit());
        if digits.is_empty() || digits.len() > 15 {
            return None;
        }
        if self.take(b'.') {
            let fraction = self.run(|b| b.is_ascii_digit());
            let fits = digits.len() <= 12 && (1..=3).contains(&fraction.len());
            return fits.then_some(Item::Other);
        }
        let magnitude = digits.iter().fold(0, |sum, &b| sum * 10 + i64::from(b - b'0'));
        Some(Item::Integer(if negative { -magnitude } else { magnitude }))
    }

    fn string(&mut self) -> Option<Item> {
        self.take(b'"');
        loop {
            self.run(|b| (b' '..=b'~').contains(&b) && b != b'"' && b != b'\\');
            if self.take(b'"') {
                return Some(Item::Other);
            }
            if !(self.take(b'\\') && (self.take(b'"') || self.take(b'\\'))) {
                return None;
            }
        }
    }

    fn bytes(&mut self) -> Option<Item> {
        self.take(b':');
        self.run(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b));
        self.take(b':').then_some(Item::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::Priority;

    #[test]
    fn members_count_and_everything_else_is_only_checked() {
        let priority = |urgency, incremental| Some(Priority { urgency, incremental });
        for (value, expected) in [
            (&b""[..], priority(3, false)),
            (b"  ", priority(3, false)),
            (b"u=0", priority(0, false)),
            (b"u=7,i", priority(7, true)),
            (b"i=?1, u=5", priority(5, true)),
            (b"i=?0", priority(3, false)),
            (b"u=8", priority(3, false)),
            (b"u=-1", priority(3, false)),
            (b"u=1.5", priority(3, false)),
            (b"u=1, u=2", priority(2, false)),
            (b"u=1, u", priority(3, false)),
            (b"i, i=1", priority(3, false)),
            (b"u=1;p=2;q, i;r=?0", priority(1, true)),
            (b"a=(1 \"x\\\"\" tok;p :YQ==:), *b-c=-1.250, u=2", priority(2, false)),
            (b"U=1", None),
            (b"u=", None),
            (b"u=1,", None),
            (b"u=1 i", None),
            (b"u=1;", None),
            (b"i=?2", None),
            (b"a=\"x", None),
            (b"a=(1", None),
            (b"a=(1\"x\")", None),
            (b"a=1.2345", None),
            (b"u=1234567890123456", None),
            (b"a=\"\x7f\"", None),
            (b"\tu=1", None),
        ] {
            assert_eq!(Priority::parse(value), expected, "{}", value.escape_ascii());
        }
    }
}
