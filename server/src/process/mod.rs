//! The process and the system around it: the PID file, systemd, the root folder, and privileges.

pub mod pid_file;
pub mod privileges;
pub mod root;
pub mod systemd;
