//! What drives leaves that no fiber waits for: a poller, timers and foreign descriptors that any thread may reach.
