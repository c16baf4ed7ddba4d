//! The values of environment variables: they may be secrets, so no message about the file shows one.
//!
//! A message is made by code that knows nothing of variables. So it is searched for their values before it is noted. A value becomes
//! `${NAME}` again, and a quoted piece of it `…`. The report shows the line of the file below. A text of the file itself is
//! no secret of a variable: names of keys, above all. If a message said `${NAME}` in place of the name of a key, it would tell
//! the value to everybody who knows the key.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ops::Range;

/// The least length of a value that is looked for in a message about its text, and in one about another text. Shorter ones are common
/// words.
const LEAST: (usize, usize) = (3, 6);

/// The variables that a file has used so far.
pub struct Variables<'s> {
    file: &'s str,
    /// The file in lower case.
    lower: OnceCell<String>,
    /// The longest value comes first. One that is a part of another would leave the rest of that in a message.
    filled: RefCell<Vec<Filled>>,
    /// Whether a text of a message stands in the file, too. A file is long, and has many messages about the same variable.
    in_file: RefCell<HashMap<String, bool>>,
}

/// A variable, with the places of the texts that it is in.
struct Filled {
    name: String,
    value: String,
    places: Vec<Range<usize>>,
    /// The value as messages show it: they escape what they quote, and names of hosts are in lower case.
    shown: [String; 2],
}

impl Filled {
    /// The least length of what is looked for in a message about the place `at`.
    fn least(&self, at: &Range<usize>) -> usize {
        let mut places = self.places.iter();
        match places.any(|place| place.start < at.end && at.start < place.end) {
            true => LEAST.0,
            false => LEAST.1,
        }
    }

    /// Whether this text is the value, and looked for in such a message.
    fn is_shown_as(&self, text: &str, at: &Range<usize>) -> bool {
        self.shown.iter().any(|value| value == text) && text.len() >= self.least(at)
    }
}

impl<'s> Variables<'s> {
    pub fn new(file: &'s str) -> Variables<'s> {
        Variables {
            file,
            lower: OnceCell::new(),
            filled: RefCell::default(),
            in_file: RefCell::default(),
        }
    }

    /// Notes that a variable was filled into the text at this place.
    pub fn note(&self, name: &str, value: &str, at: &Range<usize>) {
        let mut filled = self.filled.borrow_mut();
        if let Some(known) = filled
            .iter_mut()
            .find(|known| known.name == name && known.value == value)
        {
            return known.places.push(at.clone());
        }
        let lower = value.to_ascii_lowercase();
        let new = Filled {
            name: name.to_owned(),
            value: value.to_owned(),
            places: vec![at.clone()],
            shown: [lower.clone(), lower.escape_debug().to_string()],
        };
        let place = filled.partition_point(|other| other.value.len() >= value.len());
        filled.insert(place, new);
    }

    /// Hides the values of variables in a message about the place `at`.
    pub fn hide(&self, mut message: String, at: &Range<usize>) -> String {
        let filled = self.filled.borrow();
        // It becomes its variable, also where a longer value has it, too.
        let is_whole = |text: &str| filled.iter().any(|other| other.is_shown_as(text, at));
        for variable in &*filled {
            let (name, least) = (&variable.name, variable.least(at));
            for value in &variable.shown {
                let is_shown = value.len() >= least && message.to_ascii_lowercase().contains(value);
                if is_shown && !self.is_in_file(value) {
                    message = without_value(&message, value, &format!("${{{name}}}"));
                }
                let is_piece = |piece: &str| {
                    let piece = piece.to_ascii_lowercase();
                    piece.len() >= least && value.contains(&piece) && !is_whole(&piece) && !self.is_in_file(&piece)
                };
                message = without_pieces(&message, is_piece);
            }
        }
        message
    }

    /// Whether the file has this text, which is in lower case. Searches for it once.
    fn is_in_file(&self, text: &str) -> bool {
        if let Some(known) = self.in_file.borrow().get(text) {
            return *known;
        }
        let is_in_file = self.lower.get_or_init(|| self.file.to_ascii_lowercase()).contains(text);
        self.in_file.borrow_mut().insert(text.to_owned(), is_in_file);
        is_in_file
    }
}

/// Puts `name` in place of a value. A short value does not count within a word.
fn without_value(message: &str, value: &str, name: &str) -> String {
    let is_letter = |char: Option<char>| char.is_some_and(char::is_alphanumeric);
    let (mut out, mut done) = (String::new(), 0);
    for (start, _) in message.to_ascii_lowercase().match_indices(value) {
        let end = start + value.len();
        let [before, first] = [message[..start].chars().next_back(), message[start..].chars().next()];
        let [last, after] = [message[..end].chars().next_back(), message[end..].chars().next()];
        let goes_on = (is_letter(before) && is_letter(first)) || (is_letter(last) && is_letter(after));
        if value.len() >= LEAST.1 || !goes_on {
            out.push_str(&message[done..start]);
            out.push_str(name);
            done = end;
        }
    }
    out + &message[done..]
}

/// Hides what stands between quotes and is a piece of a value, also behind the folder that a path begins with.
fn without_pieces(message: &str, is_piece: impl Fn(&str) -> bool) -> String {
    let (mut out, mut rest) = (String::new(), message);
    while let Some(begin) = rest.find(['"', '\'']) {
        let (before, quoted) = rest.split_at(begin + 1);
        let quote = if before.ends_with('"') { '"' } else { '\'' };
        let mut ends = quoted.match_indices(quote).map(|(end, _)| end);
        out.push_str(before);
        let piece_in = |text: &str| {
            let starts = text.match_indices(['/', ':']).map(|(at, _)| at + 1);
            let mut starts = std::iter::once(0).chain(starts);
            starts.find(|&start| !text[..start].contains(quote) && is_piece(&text[start..]))
        };
        let found = ends.rfind(|&end| piece_in(&quoted[..end]).is_some());
        rest = match found {
            Some(end) => {
                out.push_str(&quoted[..piece_in(&quoted[..end]).unwrap_or(0)]);
                out.push('…');
                out.push(quote);
                &quoted[end + 1..]
            }
            None => quoted,
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_value_becomes_its_variable_and_a_piece_of_it_nothing() {
        let file = "proxy = \"${KEY}\"\nlevel = \"${LEVEL}\"\n";
        let filled = [("KEY", 8..16, "http://Hunter2\"x"), ("LEVEL", 25..35, "warn")];
        let of = |file| {
            let variables = Variables::new(file);
            for (name, at, value) in &filled {
                variables.note(name, value, at);
            }
            variables
        };
        let variables = of(file);
        for (at, message, expected) in [
            (8, "'proxy': 'http://hunter2\"x' is wrong", "'proxy': '${KEY}' is wrong"),
            (8, "\"/http://Hunter2\\\"x\" is wrong", "\"/${KEY}\" is wrong"),
            (
                8,
                "'hunter2' is not a host; write HOST",
                "'…' is not a host; write HOST",
            ),
            (8, "'2\"x' is wrong, 'ht' is not", "'…' is wrong, 'ht' is not"),
            (8, "there is no '/etc/http://hunter2'", "there is no '/etc/…'"),
            (8, "'proxy' has no 'http://X'", "'proxy' has no 'http://X'"),
            (0, "'hunter2' is not for \"Hunter2\"", "'…' is not for \"…\""),
            (25, "\"warn\", one of \"warning\"", "\"${LEVEL}\", one of \"warning\""),
            (8, "one of \"warn\", 'http'", "one of \"warn\", '…'"),
        ] {
            assert_eq!(variables.hide(message.into(), &(at..at + 1)), expected, "{message}");
        }
        // A text of the file is no secret.
        let file = format!("{file}x = \"hunter2\"\n");
        assert_eq!(of(&file).hide("'hunter2'".into(), &(8..9)), "'hunter2'");
    }

    /// The secret behind the part stood in the message.
    #[test]
    fn a_value_that_is_a_part_of_another_leaves_nothing_of_that() {
        let variables = Variables::new("host = \"${HOST}\"\nproxy = \"${URL}\"\n");
        variables.note("HOST", "db.example.org", &(8..15));
        variables.note("URL", "http://app:hunter2@db.example.org/x", &(26..32));
        for (message, expected) in [
            ("'http://app:hunter2@db.example.org/x' is wrong", "'${URL}' is wrong"),
            ("there is no 'app:hunter2@db.example.org'", "there is no '…'"),
            ("'db.example.org' has no address", "'${HOST}' has no address"),
        ] {
            for at in [8..15, 26..32] {
                assert_eq!(variables.hide(message.into(), &at), expected);
            }
        }
    }

    /// A thousand messages about a file that uses a variable a thousand times take no time to speak of. They took minutes when each message
    /// went over the file for each use.
    #[test]
    fn the_work_for_a_message_does_not_grow_with_the_uses_of_a_variable() {
        let line = "files = \"${FOLDER}/a-folder-with-a-name-of-some-length\"\n";
        let file = line.repeat(1000);
        let variables = Variables::new(&file);
        let places = (0..1000).map(|number| number * line.len() + 8..(number + 1) * line.len() - 1);
        places
            .clone()
            .for_each(|at| variables.note("FOLDER", "/srv/hunter2", &at));
        let begin = Instant::now();
        for at in places {
            let hidden = variables.hide("there is no folder '/srv/hunter2/a', 'hunter2'".into(), &at);
            assert_eq!(hidden, "there is no folder '${FOLDER}/a', '…'");
            assert!(begin.elapsed() < Duration::from_secs(20), "it has no end");
        }
    }
}
