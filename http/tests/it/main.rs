//! The codec as its users see it: bytes in, values and bytes out. One module for each capability.

mod cgi;
mod chunked;
mod fastcgi;
mod limits;
mod multipart;
mod outline;
mod path;
mod proxy_protocol;
mod replies;
mod request;
mod response;
mod splits;
mod vectors;

// Shared by the modules above, and by the fuzz targets.
mod connection;
mod cut;
mod reply_table;
mod table;
