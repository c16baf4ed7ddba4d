//! Seeing inside: the dump, the watchdog, the metrics.
