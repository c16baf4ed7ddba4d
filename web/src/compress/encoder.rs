//! The encoders of the three codings behind one `Write`. The encoded bytes collect in a vector.
//!
//! The vector is between an encoder and the response's output because an encoder writes its end
//! mark when it is dropped. A body that failed half-way must not look complete, and a destructor
//! must not wait for a client.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use brotli::Allocator;
use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use brotli::enc::writer::CompressorWriterCustomAlloc;
use flate2::Compression;
use flate2::write::GzEncoder;
use osier::memory::{Account, Charge};
use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder as ZstdEncoder;

use crate::compress::accept_encoding::Coding;
use crate::compress::tables::{Table, Tables};

/// How much time an encoder spends to save bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// The result is sent once, and a client waits for it.
    Once,
    /// Like `Once`, for a body of more than [`LONG`] bytes: other bodies wait for the same cores.
    Long,
    /// The result is kept and sent many times.
    Kept,
}

/// Bytes of a body that is sent once, above which speed counts for more than size.
const LONG: u64 = 1 << 20;

impl Effort {
    /// The effort for a body that is sent once, of `len` bytes if that is known.
    pub(crate) fn once(len: Option<u64>) -> Effort {
        match len {
            Some(len) if len > LONG => Effort::Long,
            _ => Effort::Once,
        }
    }

    /// The levels of brotli, zstd and gzip, chosen by measurement.
    ///
    /// A text of 32 KiB takes 140 us at gzip 2, 169 us at gzip 3 for 6 % less, and 224 us at gzip 4 for 7 % less (12.7, 12.0 and 11.8 KB;
    /// zlib 1, the default of nginx: 13.3 KB). gzip 2 costs source code 7 % and JSON of records 1 % against gzip 3. gzip 1 of zlib-rs takes
    /// half the time and a third more bytes. Brotli 2 to 4 take at least twice the time of gzip 4; how much they save depends on the text, 10 %
    /// at most. Brotli is smaller than gzip from 5 on, at four times the time, which only a kept body earns back.
    fn levels(self) -> (i32, i32, u32) {
        match self {
            Effort::Once => (1, 3, 2),
            Effort::Long => (1, 1, 2),
            Effort::Kept => (5, 9, 6),
        }
    }
}

/// Window of a streamed body, as a power of two. An encoder then takes at most about 1 MiB of
/// memory, where the defaults take up to 4 MiB. There may be as many encoders as connections.
const STREAM_WINDOW: u32 = 18;
/// Window of a kept body, as a power of two. RFC 9659 allows 8 MiB, and browsers refuse more. Half
/// of it suffices.
const KEPT_WINDOW: u32 = 22;

/// The sizes of encoders in memory.
const BROTLI_KEPT: usize = 7 << 20;
const ZSTD: usize = 1200 << 10;
const ZSTD_KEPT: usize = 12 << 20;
const GZIP: usize = 300 << 10;

/// Bytes that are encoded between two looks at the clock. Pieces of 8 KiB made a gzip response of 30 KB
/// about 5 % dearer.
const PIECE: usize = 32 << 10;

/// Bytes between a brotli encoder and the vector.
const BROTLI_BUFFER: usize = 4096;

/// The memory of an encoder of a long body; that of gzip is the sum of its tables, the others are measured. The tables of brotli at quality 1 have charges of their own.
fn bytes(coding: Coding, effort: Effort) -> usize {
    match (coding, effort == Effort::Kept) {
        (Coding::Brotli, false) => 0,
        (Coding::Brotli, true) => BROTLI_KEPT,
        (Coding::Zstd, false) => ZSTD,
        (Coding::Zstd, true) => ZSTD_KEPT,
        (Coding::Gzip, _) => GZIP,
    }
}

/// An encoder of one coding that writes into a vector. It is charged to [`Account::COMPRESSION`].
pub(crate) struct Encoder {
    coder: Coder,
    _charge: Charge,
}

enum Coder {
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    /// Brotli at quality 1.
    QuickBrotli(Box<CompressorWriterCustomAlloc<Vec<u8>, Table<u8>, Tables>>),
    Zstd(ZstdEncoder<'static, Vec<u8>>),
    Gzip(GzEncoder<Vec<u8>>),
}

impl Encoder {
    /// Makes an encoder. `size` is the total number of bytes to encode, if it is known.
    pub(crate) fn new(coding: Coding, effort: Effort, size: Option<usize>) -> io::Result<Encoder> {
        let kept = effort == Effort::Kept;
        let (brotli, zstd, gzip) = effort.levels();
        let coder = match coding {
            Coding::Brotli if brotli == 1 => {
                let buffer = Tables.alloc_cell(BROTLI_BUFFER);
                let encoder = CompressorWriterCustomAlloc::new(Vec::new(), buffer, Tables, 1, STREAM_WINDOW);
                Coder::QuickBrotli(Box::new(encoder))
            }
            Coding::Brotli => {
                let params = BrotliEncoderParams {
                    quality: brotli,
                    lgwin: if kept { KEPT_WINDOW } else { STREAM_WINDOW } as i32,
                    size_hint: size.unwrap_or(0),
                    ..BrotliEncoderParams::default()
                };
                Coder::Brotli(Box::new(CompressorWriter::with_params(
                    Vec::new(),
                    BROTLI_BUFFER,
                    &params,
                )))
            }
            Coding::Zstd => {
                let mut encoder = ZstdEncoder::new(Vec::new(), zstd)?;
                let window = if kept { KEPT_WINDOW } else { STREAM_WINDOW };
                encoder.set_parameter(CParameter::WindowLog(window))?;
                if let Some(size) = size {
                    encoder.set_pledged_src_size(Some(size as u64))?;
                }
                Coder::Zstd(encoder)
            }
            Coding::Gzip => Coder::Gzip(GzEncoder::new(Vec::new(), Compression::new(gzip))),
        };
        Ok(Encoder {
            coder,
            _charge: Account::COMPRESSION.charge(bytes(coding, effort)),
        })
    }

    /// Encodes all of `bytes`.
    #[cfg(any(feature = "files", test))]
    pub(crate) fn whole(coding: Coding, effort: Effort, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut encoder = Encoder::new(coding, effort, Some(bytes.len()))?;
        encoder.write_all(bytes)?;
        encoder.finish()
    }

    /// Encodes `bytes` from index `from` on, until all are encoded or `time` has passed. Returns the
    /// index of the first byte that is left.
    pub(crate) fn write_for(&mut self, time: Duration, bytes: &[u8], from: usize) -> io::Result<usize> {
        let start = Instant::now();
        let mut from = from;
        while from < bytes.len() {
            let to = bytes.len().min(from + PIECE);
            self.write_all(&bytes[from..to])?;
            from = to;
            if start.elapsed() >= time {
                break;
            }
        }
        Ok(from)
    }

    /// The encoded bytes so far. The caller must remove them.
    pub(crate) fn encoded(&mut self) -> &mut Vec<u8> {
        match &mut self.coder {
            Coder::Brotli(encoder) => encoder.get_mut(),
            Coder::QuickBrotli(encoder) => encoder.get_mut(),
            Coder::Zstd(encoder) => encoder.get_mut(),
            Coder::Gzip(encoder) => encoder.get_mut(),
        }
    }

    /// Writes the end mark. Returns the remaining encoded bytes.
    pub(crate) fn finish(self) -> io::Result<Vec<u8>> {
        match self.coder {
            Coder::Brotli(encoder) => Ok(encoder.into_inner()),
            Coder::QuickBrotli(encoder) => Ok(encoder.into_inner()),
            Coder::Zstd(encoder) => encoder.finish(),
            Coder::Gzip(encoder) => encoder.finish(),
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match &mut self.coder {
            Coder::Brotli(encoder) => encoder,
            Coder::QuickBrotli(encoder) => encoder,
            Coder::Zstd(encoder) => encoder,
            Coder::Gzip(encoder) => encoder,
        }
    }
}

impl Write for Encoder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer().write(bytes)
    }

    /// Makes everything written so far decodable from the collected bytes.
    fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }
}

/// Decodes an encoder's output.
#[cfg(test)]
pub(crate) fn decode(coding: Coding, encoded: &[u8]) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut decoded = Vec::new();
    match coding {
        Coding::Brotli => brotli::Decompressor::new(encoded, 4096).read_to_end(&mut decoded)?,
        Coding::Zstd => zstd::stream::read::Decoder::new(encoded)?.read_to_end(&mut decoded)?,
        Coding::Gzip => flate2::read::GzDecoder::new(encoded).read_to_end(&mut decoded)?,
    };
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_decodes_and_is_smaller() {
        let text = "the same words again and again, ".repeat(2000);
        for coding in Coding::EACH {
            for effort in [Effort::Once, Effort::Long, Effort::Kept] {
                for bytes in [&b""[..], b"x", text.as_bytes()] {
                    let encoded = Encoder::whole(coding, effort, bytes).unwrap();
                    assert_eq!(decode(coding, &encoded).unwrap(), bytes, "{coding:?}");
                    assert!(bytes.len() < 100 || encoded.len() < bytes.len() / 10, "{coding:?}");
                }
            }
        }
    }

    #[test]
    fn encoders_are_charged_as_long_as_they_exist() {
        let held = || {
            osier::memory::settle();
            Account::COMPRESSION.held()
        };
        let text = "the same words again and again, ".repeat(2000);
        for coding in Coding::EACH {
            let before = held();
            let encoders: Vec<_> = (0..40)
                .map(|_| {
                    let mut encoder = Encoder::new(coding, Effort::Once, None).unwrap();
                    encoder.write_all(text.as_bytes()).unwrap();
                    encoder
                })
                .collect();
            let during = held();
            // Other tests of this process hold less than the difference.
            assert!(during > before + (8 << 20), "{coding:?}: {during} after {before}");
            drop(encoders);
            // Three shelves keep tables.
            assert!(held() < during - (4 << 20), "{coding:?}: {} after {during}", held());
        }
    }

    #[test]
    fn a_slice_ends_when_its_time_is_over() {
        let text = "the same words again and again, ".repeat(6000);
        for coding in Coding::EACH {
            let mut encoder = Encoder::new(coding, Effort::Once, None).unwrap();
            let mut from = 0;
            for _ in 0..3 {
                let to = encoder.write_for(Duration::ZERO, text.as_bytes(), from).unwrap();
                assert_eq!(to, from + PIECE, "{coding:?}");
                from = to;
            }
            let long = Duration::from_secs(3600);
            assert_eq!(encoder.write_for(long, text.as_bytes(), from).unwrap(), text.len());
            let encoded = encoder.finish().unwrap();
            assert_eq!(decode(coding, &encoded).unwrap(), text.as_bytes(), "{coding:?}");
        }
    }

    #[test]
    fn after_a_flush_all_of_it_can_be_read() {
        use std::io::Read;
        for coding in Coding::EACH {
            let mut encoder = Encoder::new(coding, Effort::Once, None).unwrap();
            encoder.write_all(b"first").unwrap();
            encoder.flush().unwrap();
            let encoded = encoder.encoded().clone();
            let mut first = [0; 5];
            match coding {
                Coding::Brotli => brotli::Decompressor::new(&encoded[..], 4096)
                    .read_exact(&mut first)
                    .unwrap(),
                Coding::Zstd => {
                    let mut decoder = zstd::stream::read::Decoder::new(&encoded[..]).unwrap();
                    decoder.read_exact(&mut first).unwrap();
                }
                Coding::Gzip => flate2::read::GzDecoder::new(&encoded[..])
                    .read_exact(&mut first)
                    .unwrap(),
            }
            assert_eq!(&first, b"first", "{coding:?}");
        }
    }
}
