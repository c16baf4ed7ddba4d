//! Black-box tests of the binary `osier`: its command line, its responses, and its output for the operator.
//!
//! Each capability has a module. Every test starts its own server process, so all tests can run at the same time.

mod chromium;
mod support;

mod acme;
mod browser;
mod cage;
mod conditional;
mod config_auth;
mod config_balance;
mod config_cache;
mod config_chat;
mod config_check;
mod config_deploy;
mod config_docs;
mod config_hints;
mod config_http2;
mod config_include;
mod config_links;
mod config_logs;
mod config_missing;
mod config_php;
mod config_policy;
mod config_proxy;
mod config_real_ip;
mod config_reload;
mod config_respond;
mod config_secrets;
mod config_signals;
mod config_sites;
mod config_system;
mod config_tls;
mod config_trace;
mod config_unreadable;
mod curl;
mod hostile;
mod logs;
mod memory;
mod metrics;
mod paths;
mod pid_file;
mod precompressed;
mod ranges;
mod shutdown;
mod slow_readers;
mod soak;
mod starts;
mod startup;
mod static_files;
mod systemd;
mod times;
mod upgrade;
mod upgrade_failures;
mod upgrade_tls;
mod welcome;
