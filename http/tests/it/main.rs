//! Tests of the public interface of the codec, one module for each capability.

mod cgi;
mod chunked;
mod fastcgi;
mod h2;
mod limits;
mod multipart;
mod outline;
mod path;
mod proxy_protocol;
mod replies;
mod reply_outline;
mod request;
mod response;
mod splits;
mod vectors;

// Shared by the modules above, and by the fuzz targets.
mod connection;
mod cut;
mod reply_table;
mod table;
