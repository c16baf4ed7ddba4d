//! Sums of the numbers in queries and bodies, and lengths of uploads.

use std::io;

use osier_web::{Rejection, Request, http::StatusCode};
use serde::Deserialize;

/// Bytes that an upload is read by, at most.
const READ_BYTES: usize = 64 << 10;

/// The query of the sums.
#[derive(Deserialize)]
struct Terms {
    a: i32,
    b: i32,
}

impl Terms {
    fn sum(&self) -> i64 {
        i64::from(self.a) + i64::from(self.b)
    }
}

pub fn of_query(request: &mut Request<'_>) -> Result<String, Rejection> {
    let terms: Terms = request.query_as()?;
    Ok(terms.sum().to_string())
}

pub fn of_query_and_body(request: &mut Request<'_>) -> Result<String, Rejection> {
    let terms: Terms = request.query_as()?;
    let body = request.text(64)?;
    let Ok(term) = body.trim().parse::<i32>() else {
        return Err(Rejection::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "the body is not a number",
        ));
    };
    Ok((terms.sum() + i64::from(term)).to_string())
}

/// Reads the body to its end and responds with the number of bytes.
pub fn upload(request: &mut Request<'_>) -> io::Result<String> {
    // Each read takes what the socket has, up to this much.
    let mut body = io::BufReader::with_capacity(READ_BYTES, request.body());
    let bytes = io::copy(&mut body, &mut io::sink())?;
    Ok(bytes.to_string())
}
