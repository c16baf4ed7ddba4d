//! Stores files from a browser on the disk. No file is ever completely in memory.
//!
//! ```text
//! cargo run --release -p osier-examples --bin upload -- [ADDR [FOLDER]]
//! ```

use std::path::PathBuf;
use std::process::ExitCode;

use osier_web::{Html, Json, Rejection, Request, Route, Router};
use serde::Serialize;

mod start;

/// The largest form.
const FORM_BYTES: u64 = 4 << 30;

/// The largest field that is not a file.
const TEXT_BYTES: u64 = 16 << 10;

struct Folder(PathBuf);

/// The files of a form. They are removed unless the whole form has come.
#[derive(Default)]
struct Saved(Vec<PathBuf>);

impl Saved {
    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = osier::fs::remove_file(path);
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Received {
    Text {
        field: String,
        text: String,
    },
    File {
        field: String,
        name: String,
        saved_as: String,
        bytes: u64,
    },
}

fn receive(request: &mut Request<'_>) -> Result<Json<Vec<Received>>, Rejection> {
    let Folder(folder) = request.state()?;
    let mut form = request.multipart()?;
    let (mut received, mut saved) = (Vec::new(), Saved::default());
    while let Some(mut part) = form.next_part()? {
        let field = part.name().to_owned();
        // The browser's file name is only shown to people. On the disk the file gets a generated name, and where the folder is concerns
        // no client.
        received.push(match part.file_name().map(str::to_owned) {
            Some(name) => {
                let file = part.save_to(folder)?;
                let saved_as = file.path.file_name().map(|name| name.to_string_lossy().into_owned());
                saved.0.push(file.path);
                Received::File {
                    field,
                    name,
                    saved_as: saved_as.unwrap_or_default(),
                    bytes: file.bytes,
                }
            }
            None => {
                let text = part.text(TEXT_BYTES)?;
                Received::Text { field, text }
            }
        });
    }
    saved.keep();
    Ok(Json(received))
}

fn page(_: &mut Request<'_>) -> Html<&'static str> {
    Html(PAGE)
}

fn main() -> ExitCode {
    start::serve("upload", |args| {
        let folder = args
            .first()
            .map_or_else(|| std::env::temp_dir().join("osier-uploads"), PathBuf::from);
        osier::fs::create_dir_all(&folder)?;
        let upload = Route::new().post(receive).body_limit(FORM_BYTES);
        Ok(Router::new()
            .get("/", page)
            .route("/upload", upload)
            .state(Folder(folder)))
    })
}

const PAGE: &str = r#"<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>upload</title>
<form action="/upload" method="post" enctype="multipart/form-data">
<p><input name="title" placeholder="a title"></p>
<p><input name="files" type="file" multiple></p>
<p><button>Send</button></p>
</form>
"#;
