//! The parts that requests and responses share: methods, versions, fields, limits and rejections.

pub(crate) mod byte;
mod exchange;
mod fields;
mod headers;
mod limits;
mod method;
mod percent;
mod places;
mod reject;
#[cfg(feature = "h2")]
mod section;
mod status;
mod version;

pub use byte::is_field;
pub(crate) use byte::is_field_name;
pub use exchange::Exchange;
pub(crate) use exchange::{Asked, is_bodiless};
pub(crate) use fields::{
    CONTENT_LENGTH, UPGRADE_OPTION, check_name, check_value, is_framing, is_reserved_in_requests, write_content_length,
    write_length,
};
pub use fields::{FieldLines, HeaderError};
pub(crate) use headers::Fields;
pub use headers::{FieldList, Headers, Slots};
pub use limits::Limits;
pub use method::Method;
pub use percent::percent_decode;
pub(crate) use places::{LONGEST, Place, Places, printable, run, tokens};
pub use reject::Reject;
#[cfg(feature = "h2")]
pub use section::FieldSection;
#[cfg(feature = "h2")]
pub(crate) use section::Place as TextPlace;
pub use status::reason_phrase;
pub(crate) use status::write_status_line;
pub use version::Version;
pub(crate) use version::check_version;
