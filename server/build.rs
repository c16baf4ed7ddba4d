//! Refuses systems other than Linux, and compresses the debug information of a released server.
//!
//! Dumps of fibers and backtraces name functions, files and lines from it. Compressed, it is a fraction of the binary.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|set| set == value);
    if !is("CARGO_CFG_TARGET_OS", "linux") {
        println!(
            "cargo::error=the server runs on Linux only: on another system, build it in a Linux container, a virtual machine or WSL 2 \
             (README.md, Systems)"
        );
    }
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo::rustc-link-arg-bins=-Wl,--compress-debug-sections=zlib");
    }
}
