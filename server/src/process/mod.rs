//! The process and the system around it: what systemd hands over, the root folder, and privileges given up for good.

pub mod privileges;
pub mod root;
pub mod systemd;
