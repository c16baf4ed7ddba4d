//! The poller's two bit sets: the interest of a caller and the reported readiness.

use std::ops::{BitAnd, BitOr, BitOrAssign, Sub};

/// Defines a set of named bits in a byte, with the operations of a set.
macro_rules! bit_set {
    (
        $(#[$meta:meta])*
        $name:ident { $( $(#[$bit_meta:meta])* $bit:ident, $is:ident = $value:expr; )* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(u8);

        impl $name {
            /// No bit.
            pub const NONE: Self = Self(0);
            $( $(#[$bit_meta])* pub const $bit: Self = Self($value); )*

            /// Whether no bit is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Whether every bit of `other` is set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether any bit of `other` is set.
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// The bits of both sets, like `|`, usable in constants.
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits as a byte, to store them beside others.
            pub const fn bits(self) -> u8 {
                self.0
            }

            /// The set with these bits. Unknown bits are dropped.
            pub const fn from_bits_truncate(bits: u8) -> Self {
                Self(bits & (0 $( | $value )*))
            }

            $(
                #[doc = concat!("Whether [`", stringify!($bit), "`](Self::", stringify!($bit), ") is set.")]
                pub const fn $is(self) -> bool {
                    self.contains(Self::$bit)
                }
            )*
        }

        impl BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        impl BitAnd for $name {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut names = Vec::new();
                $( if self.$is() { names.push(stringify!($bit)); } )*
                write!(f, "{}({})", stringify!($name), names.join(" | "))
            }
        }
    };
}

bit_set! {
    /// The readiness to watch a descriptor for. Errors and hang-ups are always reported, even with [`Interest::NONE`].
    Interest {
        /// Bytes to read, a connection to accept, or the end of the peer's sending direction.
        READABLE, is_readable = 1;
        /// Room to write, or a connection established.
        WRITABLE, is_writable = 2;
        /// Urgent data (TCP), a control message of a terminal, a changed attribute of a `/proc` or `/sys` file.
        PRIORITY, is_priority = 4;
    }
}

bit_set! {
    /// The readiness of a descriptor. A set bit is a hint: another reader may have been faster.
    Ready {
        /// A read does not block: bytes, an end of file, an error or a connection is there.
        READABLE, is_readable = 1;
        /// A write does not block.
        WRITABLE, is_writable = 2;
        /// The peer has ended its sending direction (FIN). Bytes may still be there. Stays set. Reported with [`Interest::READABLE`].
        READ_CLOSED, is_read_closed = 4;
        /// Both directions are closed, or the other end of a pipe or terminal is gone. Stays set.
        HUP, is_hup = 8;
        /// An error is pending on the descriptor (a reset, a refused connection, a pipe without reader).
        ERROR, is_error = 16;
        /// The state that [`Interest::PRIORITY`] asks for.
        PRIORITY, is_priority = 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_behave_like_sets() {
        let both = Interest::READABLE | Interest::WRITABLE;
        assert!(both.contains(Interest::READABLE) && both.is_writable() && !both.is_priority());
        assert!(both.intersects(Interest::WRITABLE | Interest::PRIORITY));
        assert_eq!(both - Interest::READABLE, Interest::WRITABLE);
        assert_eq!(both & Interest::PRIORITY, Interest::NONE);
        assert!(Interest::NONE.is_empty() && Interest::default().is_empty());
        assert_eq!(Ready::from_bits_truncate(0xff).bits(), 63);
        assert_eq!(Ready::from_bits_truncate(20), Ready::READ_CLOSED | Ready::ERROR);
        assert_eq!(format!("{both:?}"), "Interest(READABLE | WRITABLE)");
    }
}
