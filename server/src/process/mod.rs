//! The process and the system around it: sockets of systemd, the root folder, and privileges.

pub mod privileges;
pub mod root;
pub mod systemd;
