//! The process and the system around it: the PID file, systemd, the root folder, privileges, and what root hands to its user.

pub mod handed;
pub mod pid_file;
pub mod privileges;
pub mod root;
pub mod systemd;
