//! Tests of the web framework from outside: bytes over real sockets, and the view of an
//! application.
//!
//! There is a module for each capability. The tests share a process, and each has its own server,
//! port and folder. A test that needs a process of its own (because it limits or counts
//! descriptors, threads or memory) is a file beside this folder.

mod broker;
mod common;
mod responder;
mod ws_client;
mod ws_table;
use ws_client::masked;

mod balance;
mod bodies;
mod cache;
mod chat;
mod clock;
mod close_reasons;
mod compression;
mod curl;
mod disk_full;
mod extract;
mod failures;
mod fastcgi_dokuwiki;
mod fastcgi_exchange;
mod fastcgi_params;
mod fastcgi_php;
mod fastcgi_responder;
mod fastcgi_scripts;
mod files_encoded;
mod files_ranges;
mod forward_auth;
mod h2;
mod head_requests;
mod jwt;
mod keepalive;
mod lifecycle;
mod long_polls;
mod memory;
mod middleware;
mod multipart;
mod mutations;
mod pauses;
mod proxy_connections;
mod proxy_failures;
mod proxy_fields;
mod proxy_framing;
mod proxy_peers;
mod proxy_protocol;
mod proxy_redirects;
mod proxy_streams;
mod proxy_tunnel;
mod pubsub_redis;
mod rates;
mod routing;
mod sessions;
mod sim;
mod slow_bodies;
mod slow_clients;
mod slow_files;
mod slow_peers;
mod sse;
mod strictness;
mod test_client;
mod timeouts;
mod times;
mod tls;
mod tls_crowds;
mod tls_programs;
mod tls_proxy;
mod upgrade;
mod upstream;
mod ws_peers;
mod ws_protocol;
mod ws_styles;
