//! Fuzzes a PROXY header. The parser never panics, consumes only bytes that exist, and its result does not depend on how many bytes
//! have arrived.
#![cfg_attr(fuzzing, no_main)]

use osier_fuzz::fuzz_target;
use osier_http::proxy_protocol::{HEADER_MAX, parse};

fuzz_target!(|data: &[u8]| {
    let whole = parse(data);
    match whole {
        Ok(Some(header)) => {
            assert!(header.length <= data.len() && header.length <= HEADER_MAX);
            assert_eq!(parse(&data[..header.length]), whole);
            for at in 0..header.length {
                assert_eq!(parse(&data[..at]), Ok(None));
            }
        }
        Ok(None) => assert!(data.len() < HEADER_MAX),
        Err(malformed) => {
            for at in 0..data.len() {
                assert!(matches!(parse(&data[..at]), Ok(None)) || parse(&data[..at]) == Err(malformed));
            }
        }
    }
});
