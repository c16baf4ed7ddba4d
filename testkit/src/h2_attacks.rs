//! Attacks on an HTTP/2 server, each in its own bytes, with the limit that ends it.
//!
//! A flood goes on until the server ends the connection. A wait sends its bytes once and then nothing: the server's timeouts end it. A
//! dialog is a flood whose client reads the answer to a turn before the next one.

/// The limit that an attack meets, and the reason that the server gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Resets, and requests that are refused.
    Resets,
    /// Frames that bring nothing forward.
    Frames,
    /// The frames of one head.
    Continuations,
    /// The bytes and the fields of one head.
    Heads,
    /// The RFC itself: a window above 2^31-1.
    Window,
    /// The time for a head.
    HeadTimeout,
    /// The time for the next bytes of a body.
    BodyTimeout,
    /// The time for which the client's windows may hold a response up.
    StallTimeout,
}

impl Limit {
    /// The settings of osier-http, or of a server, that are the limit.
    pub fn setting(self) -> &'static str {
        match self {
            Limit::Resets => "reset_burst, reset_rate",
            Limit::Frames => "frame_burst, frame_rate",
            Limit::Continuations => "frames for head_bytes",
            Limit::Heads => "head_bytes, header_count",
            Limit::Window => "RFC 9113 6.9.1",
            Limit::HeadTimeout => "head_timeout",
            Limit::BodyTimeout => "timeouts.body",
            Limit::StallTimeout => "stall_timeout",
        }
    }

    /// The reason in the log, if the limit ends the connection and not a stream.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Limit::Resets => Some("too many resets"),
            Limit::Frames => Some("too many frames without progress"),
            Limit::Continuations => Some("too many CONTINUATION frames in a field block"),
            Limit::Heads => Some("a field block far above the limits"),
            Limit::Window => Some("FLOW_CONTROL_ERROR"),
            Limit::HeadTimeout | Limit::BodyTimeout | Limit::StallTimeout => None,
        }
    }
}

/// An attack.
#[derive(Clone, Copy)]
pub struct Attack {
    /// The attack in a few words.
    pub name: &'static str,
    /// The limit that ends it.
    pub limit: Limit,
    /// Whether the attack is one whose handlers end at once.
    pub answers: bool,
    turn: Turn,
}

#[derive(Clone, Copy)]
enum Turn {
    /// The bytes of the n-th turn.
    Flood(fn(u32) -> Vec<u8>),
    /// The same, once so many bytes have answered the turn before.
    Dialog(fn(u32) -> Vec<u8>, usize),
    /// The only bytes.
    Wait(fn() -> Vec<u8>),
}

/// The turns of a flood. Each of [`ATTACKS`] meets its limit earlier.
pub const TURNS: u32 = 20_000;

/// A GET of `/` whose authority stands in the dynamic table, and a POST.
const GET: &[u8] = b"\x82\x86\x84\x41\x01a";
const POST: &[u8] = b"\x83\x86\x84\x41\x01a";
/// A GET of `/big`.
const GET_BIG: &[u8] = b"\x82\x86\x04\x04/big\x41\x01a";
/// An entry of 4,000 bytes, for references to it.
const LARGE_ENTRY: &[u8] = b"\x40\x01n\x7f\xe1\x1d";

/// All attacks. A server has a page `/` that takes bodies, and a page `/big`.
pub const ATTACKS: &[Attack] = &[
    Attack {
        answers: false,
        ..flood("Rapid Reset, handlers at work", Limit::Resets, |n| {
            join(&[get(n), reset(n)])
        })
    },
    flood("Rapid Reset, handlers end at once", Limit::Resets, |n| {
        join(&[post(n), reset(n)])
    }),
    flood("MadeYouReset: WINDOW_UPDATE of 0", Limit::Resets, |n| {
        join(&[post(n), frame(8, 0, id(n), &[0; 4])])
    }),
    flood("MadeYouReset: DATA after the end", Limit::Resets, |n| {
        join(&[post(n), frame(0, 1, id(n), b""), frame(0, 1, id(n), b"x")])
    }),
    flood("MadeYouReset: a short PRIORITY", Limit::Resets, |n| {
        join(&[post(n), frame(2, 0, id(n), b"x")])
    }),
    flood("malformed heads", Limit::Resets, |n| frame(1, 5, id(n), b"\x82\x84")),
    Attack {
        answers: false,
        ..flood("more streams than the limit", Limit::Resets, post)
    },
    flood("CONTINUATION, empty", Limit::Continuations, |n| match n {
        0 => frame(1, 1, 1, GET),
        _ => frame(9, 0, 1, b""),
    }),
    flood("CONTINUATION, one long value", Limit::Continuations, |n| match n {
        0 => frame(1, 1, 1, &[b"\0\x01n\x7f\x80\x80\x40", &[b'v'; 16_000][..]].concat()),
        _ => frame(9, 0, 1, &[b'v'; 16_384]),
    }),
    flood("HPACK bomb: one large entry", Limit::Heads, |n| {
        frame(
            1,
            5,
            id(n),
            &[GET, LARGE_ENTRY, &[b'v'; 3936], &[0xbe; 12_000]].concat(),
        )
    }),
    flood("HPACK bomb: 16,384 fields", Limit::Heads, |n| {
        frame(1, 5, id(n), &[0x90; 16_384])
    }),
    flood("HPACK bomb: crumbs of a cookie", Limit::Heads, |n| {
        frame(1, 5, id(n), &[GET, &b"\x60\x01a".repeat(2000)].concat())
    }),
    flood("SETTINGS, empty", Limit::Frames, |_| frame(4, 0, 0, b"")),
    flood("SETTINGS of 2,730 entries", Limit::Frames, |_| {
        frame(4, 0, 0, &[0, 4, 0, 0, 255, 255].repeat(2730))
    }),
    flood("PING", Limit::Frames, |_| frame(6, 0, 0, &[0; 8])),
    flood("PRIORITY", Limit::Frames, |_| frame(2, 0, 1, &[0, 0, 0, 3, 7])),
    flood("PRIORITY_UPDATE", Limit::Frames, |_| frame(16, 0, 0, b"\0\0\0\x01u=1")),
    flood("RST_STREAM of one stream", Limit::Frames, |n| match n {
        0 => get(0),
        _ => reset(0),
    }),
    flood("WINDOW_UPDATE", Limit::Frames, |n| match n {
        0 => post(0),
        _ => frame(8, 0, 0, &[0, 0, 0, 1]),
    }),
    flood("WINDOW_UPDATE above 2^31-1", Limit::Window, |_| {
        frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff])
    }),
    flood("DATA, empty", Limit::Frames, |n| match n {
        0 => post(0),
        _ => frame(0, 0, 1, b""),
    }),
    flood("DATA, padding only", Limit::Frames, |n| match n {
        0 => post(0),
        _ => frame(0, 8, 1, &[&[255][..], &[0; 255]].concat()),
    }),
    flood("DATA of one byte", Limit::Frames, |n| match n {
        0 => post(0),
        _ => frame(0, 0, 1, b"x"),
    }),
    flood("unknown frames, empty", Limit::Frames, |_| frame(0x33, 0, 0, b"")),
    flood("unknown frames of 16 KiB", Limit::Frames, |_| {
        frame(0x33, 0, 0, &[0; 16_384])
    }),
    flood("GOAWAY", Limit::Frames, |_| frame(7, 0, 0, &[0; 8])),
    // One SETTINGS frame opens the windows of 100 streams by a byte each.
    Attack {
        turn: Turn::Dialog(
            |n| match n {
                0 => {
                    let closed = [settings_of_windows(0), frame(8, 0, 0, &[0x40, 0, 0, 0])];
                    join(&[&closed[..], &big_hundred()].concat())
                }
                _ => settings_of_windows(n),
            },
            1_000,
        ),
        ..flood("100 responses in crumbs", Limit::Frames, |_| Vec::new())
    },
    wait("a head that does not end", Limit::HeadTimeout, || frame(1, 1, 1, GET)),
    wait("100 bodies that do not come", Limit::BodyTimeout, || {
        join(&(0..100).map(post).collect::<Vec<_>>())
    }),
    wait("100 responses, windows closed", Limit::StallTimeout, || {
        join(&[&[settings_of_windows(0)][..], &big_hundred()].concat())
    }),
];

const fn flood(name: &'static str, limit: Limit, turn: fn(u32) -> Vec<u8>) -> Attack {
    Attack {
        name,
        limit,
        answers: true,
        turn: Turn::Flood(turn),
    }
}

const fn wait(name: &'static str, limit: Limit, bytes: fn() -> Vec<u8>) -> Attack {
    Attack {
        name,
        limit,
        answers: true,
        turn: Turn::Wait(bytes),
    }
}

impl Attack {
    /// Whether the client waits for the server after its bytes.
    pub fn waits(&self) -> bool {
        matches!(self.turn, Turn::Wait(_))
    }

    /// The least bytes that the client reads after each piece but the first, in a dialog.
    pub fn answer(&self) -> Option<usize> {
        match self.turn {
            Turn::Dialog(_, bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The pieces that a client sends one after the other: first its preface and SETTINGS.
    pub fn pieces(&self) -> impl Iterator<Item = Vec<u8>> + use<> {
        let hello = [PREFACE, &frame(4, 0, 0, b""), &frame(4, 1, 0, b"")].concat();
        let (count, turn) = match self.turn {
            Turn::Flood(_) | Turn::Dialog(..) => (TURNS, self.turn),
            Turn::Wait(_) => (1, self.turn),
        };
        let turns = (0..count).map(move |n| match turn {
            Turn::Flood(bytes) | Turn::Dialog(bytes, _) => bytes(n),
            Turn::Wait(bytes) => bytes(),
        });
        std::iter::once(hello).chain(turns)
    }

    /// The pieces as one text, at most `most` bytes.
    pub fn bytes(&self, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in self.pieces() {
            bytes.extend_from_slice(&piece);
            if bytes.len() >= most {
                bytes.truncate(most);
                break;
            }
        }
        bytes
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn id(turn: u32) -> u32 {
    2 * turn + 1
}

/// A whole request without a body.
pub fn get(turn: u32) -> Vec<u8> {
    frame(1, 5, id(turn), GET)
}

fn post(turn: u32) -> Vec<u8> {
    frame(1, 4, id(turn), POST)
}

fn reset(turn: u32) -> Vec<u8> {
    frame(3, 0, id(turn), &[0, 0, 0, 8])
}

/// Requests for `/big` on a hundred streams.
fn big_hundred() -> Vec<Vec<u8>> {
    (0..100).map(|n| frame(1, 5, id(n), GET_BIG)).collect()
}

/// SETTINGS with the initial window of each stream.
fn settings_of_windows(size: u32) -> Vec<u8> {
    frame(4, 0, 0, &[&[0, 4][..], &size.to_be_bytes()].concat())
}

fn join(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.concat()
}

/// A frame with a payload.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}
