//! The way into a fuzz target: libFuzzer's where `--cfg fuzzing` is set, as `cargo fuzz` does. Anywhere else a target is an ordinary program,
//! which takes folders of files and tries each file and each beginning of it. It builds in a fraction of the time, on any toolchain.
#![forbid(unsafe_code)]

use std::path::Path;
use std::{env, fs, thread};

#[cfg(fuzzing)]
pub use libfuzzer_sys;

/// Defines the target, as `libfuzzer_sys::fuzz_target` does.
#[macro_export]
macro_rules! fuzz_target {
    (|$data:ident: &[u8]| $body:expr) => {
        #[cfg(fuzzing)]
        use $crate::libfuzzer_sys;
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|$data: &[u8]| $body);

        #[cfg(not(fuzzing))]
        fn main() {
            $crate::replay(|$data: &[u8]| $body);
        }
    };
}

/// Gives the target the files of the folders that the command line names, and prints how many inputs that were.
///
/// # Panics
///
/// If the target does, or a folder has no file.
pub fn replay(target: impl Fn(&[u8])) {
    let mut count = 0;
    for folder in env::args_os().skip(1) {
        let before = count;
        for entry in fs::read_dir(&folder).expect("a folder") {
            let file = entry.expect("a file").path();
            let data = fs::read(&file).expect("a file");
            for bytes in 0..=data.len() {
                let _input = Input { file: &file, bytes };
                target(&data[..bytes]);
                count += 1;
            }
        }
        assert!(count > before, "no file in {}", folder.display());
    }
    println!("{count} inputs");
}

/// Says at a panic what the input was.
struct Input<'a> {
    file: &'a Path,
    bytes: usize,
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the input: the first {} bytes of {}", self.bytes, self.file.display());
        }
    }
}
