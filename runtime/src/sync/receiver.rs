//! The methods and iterators that the receivers of `mpsc` and `mpmc` have in common. The first needs exclusive access, the second
//! shares its receiver.

use std::sync::mpsc::TryRecvError;

use osier_queue::channel::{Channel, Nothing};

/// Takes the next value, if there is one that is not assigned to a waiting receiver.
pub(super) fn try_receive<T>(channel: &Channel<T>) -> Result<T, TryRecvError> {
    channel.try_receive().map_err(|nothing| match nothing {
        Nothing::Yet => TryRecvError::Empty,
        Nothing::Drained => TryRecvError::Disconnected,
    })
}

/// Implements everything that waits by `recv_async`, tries by `try_recv`, or asks the `channel`. With `mut`, a receiver is borrowed
/// exclusively.
macro_rules! receiver {
    ($($mut:ident)?) => {
        impl<T> Receiver<T> {
            /// Waits for a value: the oldest in the channel.
            ///
            /// # Suspends
            ///
            /// While the channel has no value for this receiver. Blocks the thread when called on a plain one.
            ///
            /// # Cancellation
            ///
            /// Unwinds. No value is lost: a value that was assigned to this receiver goes to the next.
            ///
            /// # Errors
            ///
            /// An error if the channel is empty, and all senders are gone or it was closed.
            ///
            /// # Panics
            ///
            /// In a future or callback on a worker, if it would have to wait: use [`recv_async`](Receiver::recv_async)
            /// there.
            #[inline]
            pub fn recv(& $($mut)? self) -> Result<T, RecvError> {
                match crate::wait::at_once(|| self.receive_now()) {
                    Some(value) => Ok(value),
                    None => super::block(self.recv_async()),
                }
            }

            /// Waits for a value as [`recv`](Receiver::recv) does, for at most `timeout`.
            ///
            /// # Suspends
            ///
            /// The same as for [`recv`](Receiver::recv).
            ///
            /// # Cancellation
            ///
            /// Unwinds. No value is lost.
            ///
            /// # Errors
            ///
            /// `Timeout`, or `Disconnected` as in [`recv`](Receiver::recv).
            ///
            /// # Panics
            ///
            /// The panics of [`recv`](Receiver::recv).
            pub fn recv_timeout(& $($mut)? self, timeout: std::time::Duration) -> Result<T, RecvTimeoutError> {
                match super::block_for(timeout, self.recv_async()) {
                    Some(Ok(value)) => Ok(value),
                    Some(Err(RecvError)) => Err(RecvTimeoutError::Disconnected),
                    None => Err(RecvTimeoutError::Timeout),
                }
            }

            /// An iterator over values. It waits for each, until the channel is empty and all senders are gone.
            pub fn iter(& $($mut)? self) -> Iter<'_, T> {
                Iter(self)
            }

            /// An iterator over the values that are in the channel. It never waits.
            pub fn try_iter(& $($mut)? self) -> TryIter<'_, T> {
                TryIter(self)
            }

            /// Closes the channel for senders. Values in the channel, and values for permits that were granted, can
            /// still be received.
            pub fn close(& $($mut)? self) {
                self.channel().close();
            }

            /// Whether nothing can be sent any more: all senders are gone, or the channel was closed. It may still
            /// hold values.
            pub fn is_closed(&self) -> bool {
                self.channel().is_ending()
            }

            /// The number of values in the channel.
            pub fn len(&self) -> usize {
                self.channel().len()
            }

            /// Whether the channel holds no value.
            pub fn is_empty(&self) -> bool {
                self.channel().is_empty()
            }
        }

        osier_queue::impl_debug!(Receiver<T>, self => { len: self.len(), closed: self.is_closed() });

        /// The iterator of [`Receiver::iter`]. Each step waits for a value, as [`Receiver::recv`] does.
        #[derive(Debug)]
        pub struct Iter<'a, T>(&'a $($mut)? Receiver<T>);

        impl<T> Iterator for Iter<'_, T> {
            type Item = T;

            #[inline]
            fn next(&mut self) -> Option<T> {
                self.0.recv().ok()
            }
        }

        /// The iterator of [`Receiver::try_iter`]. It ends where it would have to wait.
        #[derive(Debug)]
        pub struct TryIter<'a, T>(&'a $($mut)? Receiver<T>);

        impl<T> Iterator for TryIter<'_, T> {
            type Item = T;

            fn next(&mut self) -> Option<T> {
                self.0.try_recv().ok()
            }
        }

        /// An owned receiver as an iterator. Each step waits for a value, as [`Receiver::recv`] does.
        #[derive(Debug)]
        pub struct IntoIter<T>(Receiver<T>);

        impl<T> Iterator for IntoIter<T> {
            type Item = T;

            fn next(&mut self) -> Option<T> {
                self.0.recv().ok()
            }
        }

        impl<T> IntoIterator for Receiver<T> {
            type Item = T;
            type IntoIter = IntoIter<T>;

            fn into_iter(self) -> IntoIter<T> {
                IntoIter(self)
            }
        }

        impl<'a, T> IntoIterator for &'a $($mut)? Receiver<T> {
            type Item = T;
            type IntoIter = Iter<'a, T>;

            fn into_iter(self) -> Iter<'a, T> {
                self.iter()
            }
        }
    };
}

pub(super) use receiver;
