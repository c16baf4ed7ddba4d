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
        saved_as: PathBuf,
        bytes: u64,
    },
}

fn receive(request: &mut Request<'_>) -> Result<Json<Vec<Received>>, Rejection> {
    let Folder(folder) = request.state()?;
    let mut form = request.multipart()?;
    let mut received = Vec::new();
    while let Some(mut part) = form.next_part()? {
        let field = part.name().to_owned();
        // The browser's file name is only shown to people. On the disk the file gets a generated name.
        received.push(match part.file_name().map(str::to_owned) {
            Some(name) => {
                let saved = part.save_to(folder)?;
                let (saved_as, bytes) = (saved.path, saved.bytes);
                Received::File {
                    field,
                    name,
                    saved_as,
                    bytes,
                }
            }
            None => {
                let text = part.text(TEXT_BYTES)?;
                Received::Text { field, text }
            }
        });
    }
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
