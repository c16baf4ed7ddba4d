//! Field compression (RFC 7541): a decoder and an encoder for one connection.
//!
//! | module | idea |
//! |---|---|
//! | `integer`, `huffman` | the two primitives |
//! | `representation` | one instruction of a field block, found in whatever bytes are there |
//! | `static_table`, `dynamic_table` | the fields that an index names |
//! | `decoder`, `encoder` | the two directions |
//!
//! Neither direction allocates before its dynamic table has an entry, and a table holds no more memory than its entries need.
//!
//! ```
//! use osier_http::h2::hpack::{BlockStatus, Decoder, Encoder, FieldLimits};
//!
//! let mut block = Vec::new();
//! let mut encoder = Encoder::new(1024);
//! encoder.begin(&mut block);
//! encoder.status(&mut block, 200);
//! encoder.field(&mut block, b"content-type", b"text/plain");
//!
//! let mut decoder = Decoder::new(FieldLimits { bytes: 16 << 10, fields: 100 });
//! let mut fields = Vec::new();
//! let status = decoder.decode(&block, true, &mut |name, value| fields.push((name.to_vec(), value.to_vec())))?;
//! assert_eq!(status, BlockStatus::Done);
//! assert_eq!(fields[0], (b":status".to_vec(), b"200".to_vec()));
//! # Ok::<(), osier_http::h2::Error>(())
//! ```

mod decoder;
mod dynamic_table;
mod encoder;
mod huffman;
mod integer;
mod representation;
mod static_table;

pub use decoder::{BlockStatus, Decoder, FieldLimits};
pub use encoder::Encoder;

use super::{Error, ErrorCode};

/// The size that a table counts for an entry besides its name and its value (RFC 7541 4.1).
const ENTRY_OVERHEAD: usize = 32;
/// The largest size of the dynamic table before any settings (RFC 9113 6.5.2).
const DEFAULT_TABLE_SIZE: u32 = 4096;

/// An error of the compression: the state of the tables is lost, so the connection ends (RFC 9113 4.3).
const fn lost(reason: &'static str) -> Error {
    Error::new(ErrorCode::COMPRESSION_ERROR, reason)
}
