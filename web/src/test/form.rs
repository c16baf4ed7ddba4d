//! Forms with files, as browsers send them (RFC 7578).

use osier_queue::impl_debug;

/// Ends each part. No text of a test has it.
const BOUNDARY: &str = "osier-form-6f1d4c0a93b8e275";

/// A form with texts and files, for [`RequestBuilder::multipart`](super::RequestBuilder::multipart).
///
/// ```
/// use osier_web::test::{Client, Form};
/// use osier_web::{Rejection, Request, Router};
///
/// let client = Client::new(Router::new().post("/", |request: &mut Request<'_>| {
///     let mut form = request.multipart()?;
///     let mut said = String::new();
///     while let Some(mut part) = form.next_part()? {
///         let file = part.file_name().unwrap_or("no file").to_owned();
///         said += &format!("{}, {file}: {}\n", part.name().to_owned(), part.text(100)?);
///     }
///     Ok::<_, Rejection>(said)
/// }));
/// let form = Form::new().text("title", "Notes").file("notes", "a.txt", "text/plain", "one\ntwo");
/// let reply = client.post("/").multipart(form).send();
/// assert_eq!(reply.text(), "title, no file: Notes\nnotes, a.txt: one\ntwo\n");
/// ```
#[derive(Clone, Default)]
pub struct Form {
    /// The parts, without the end.
    bytes: Vec<u8>,
}

impl Form {
    /// A form without parts.
    pub fn new() -> Form {
        Form::default()
    }

    /// Adds the text of a field.
    #[must_use]
    pub fn text(self, name: &str, text: impl AsRef<str>) -> Form {
        let head = format!("name=\"{}\"\r\n", escaped(name));
        self.part(&head, text.as_ref().as_bytes())
    }

    /// Adds a file. An empty name is what a browser sends for a field without a file.
    #[must_use]
    pub fn file(self, name: &str, file_name: &str, content_type: &str, content: impl AsRef<[u8]>) -> Form {
        let (name, file_name) = (escaped(name), escaped(file_name));
        let head = format!("name=\"{name}\"; filename=\"{file_name}\"\r\nContent-Type: {content_type}\r\n");
        self.part(&head, content.as_ref())
    }

    fn part(mut self, head: &str, content: &[u8]) -> Form {
        let begin = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n");
        self.bytes.extend_from_slice(begin.as_bytes());
        self.bytes.extend_from_slice(content);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// The content type and the body.
    pub(super) fn finish(mut self) -> (String, Vec<u8>) {
        self.bytes.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
        (format!("multipart/form-data; boundary={BOUNDARY}"), self.bytes)
    }
}

impl_debug!(Form, self => { bytes: self.bytes.len() });

/// A name within quotes, as the HTML standard escapes it.
fn escaped(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}
