//! The values of environment variables: they may be secrets, so no message about the file shows one.
//!
//! A message is made by code that knows nothing of variables. So it is searched for their values before it is noted. A value becomes
//! `${NAME}` again, and a quoted piece of it `…`. The report shows the line of the file below. A text of the file itself is
//! no secret of a variable: names of keys, above all.

use std::ops::Range;

/// The least length of a value that is looked for in a message about its text, and in one about another text. Shorter ones are common
/// words.
const LEAST: (usize, usize) = (3, 6);

/// The value of a variable in a text of the file.
pub struct Filled {
    /// The place of the text.
    pub at: Range<usize>,
    pub name: String,
    pub value: String,
}

/// Hides the values of variables in a message about the place `at` of `file`.
pub fn hide(mut message: String, at: &Range<usize>, filled: &[Filled], file: &str) -> String {
    if filled.is_empty() {
        return message;
    }
    let file = file.to_ascii_lowercase();
    for Filled { at: place, name, value } in filled {
        let is_about = place.start < at.end && at.start < place.end;
        let least = if is_about { LEAST.0 } else { LEAST.1 };
        // Messages escape what they quote, and names of hosts are in lower case.
        for value in [
            value.to_ascii_lowercase(),
            value.to_ascii_lowercase().escape_debug().to_string(),
        ] {
            if value.len() >= least && !file.contains(&value) {
                message = without_value(&message, &value, &format!("${{{name}}}"));
            }
            let is_piece = |piece: &str| {
                let piece = piece.to_ascii_lowercase();
                piece.len() >= least && value.contains(&piece) && !file.contains(&piece)
            };
            message = without_pieces(&message, is_piece);
        }
    }
    message
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

    #[test]
    fn a_value_becomes_its_variable_and_a_piece_of_it_nothing() {
        let file = "proxy = \"${KEY}\"\nlevel = \"${LEVEL}\"\n";
        let filled = [("KEY", 8..16, "http://Hunter2\"x"), ("LEVEL", 25..35, "warn")];
        let filled = filled.map(|(name, at, value)| Filled {
            at,
            name: name.into(),
            value: value.into(),
        });
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
            assert_eq!(
                hide(message.into(), &(at..at + 1), &filled, file),
                expected,
                "{message}"
            );
        }
        // What stands in the file, too, is no secret.
        let file = format!("{file}x = \"hunter2\"\n");
        assert_eq!(hide("'hunter2'".into(), &(8..9), &filled, &file), "'hunter2'");
    }
}
