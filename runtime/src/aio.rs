//! The future face of streams and descriptors.
