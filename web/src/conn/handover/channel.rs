//! The socket between the two processes. It carries whole messages, each in a frame with its descriptors.
//!
//! The descriptors of a frame travel with its first byte, so they have arrived when the frame is whole. One call may
//! receive the bytes of several frames, but the descriptors of one frame only. Received descriptors wait in a queue
//! with one entry for each frame that has some. If this process may not open as many files, it gets the first
//! descriptors of the frame, and the kernel closes the others.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use osier::io::Async;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use zeroize::Zeroizing;

use super::fields::Malformed;
use super::format::{DESCRIPTORS_MAX, FrameHead, HEAD_BYTES, Message};

/// Programs that this process starts on Linux do not inherit received descriptors.
#[cfg(target_os = "linux")]
const RECEIVE: RecvFlags = RecvFlags::CMSG_CLOEXEC.union(RecvFlags::DONTWAIT);
#[cfg(not(target_os = "linux"))]
const RECEIVE: RecvFlags = RecvFlags::DONTWAIT;

#[cfg(not(target_vendor = "apple"))]
const SEND: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
#[cfg(target_vendor = "apple")]
const SEND: SendFlags = SendFlags::DONTWAIT;

/// The most bytes that one call receives.
const PIECE: usize = 64 << 10;

/// The end that sends. One fiber at a time may use it.
#[derive(Debug)]
pub(crate) struct Sending(Arc<Async<UnixStream>>);

/// The end that receives.
pub(crate) struct Receiving {
    socket: Arc<Async<UnixStream>>,
    /// Received bytes from the beginning of a frame on. They may hold keys.
    bytes: Zeroizing<Vec<u8>>,
    /// Where the system puts them: [`PIECE`] bytes.
    piece: Zeroizing<Vec<u8>>,
    /// The descriptors of the frames in `bytes` that have some.
    passed: VecDeque<Passed>,
}

/// The received descriptors of a frame.
#[derive(Default)]
struct Passed {
    descriptors: Vec<OwnedFd>,
    /// Whether the kernel has closed others, because this process may not open as many files.
    is_cut: bool,
}

/// A message with its descriptors. [`Message::Connections`] may have fewer descriptors than its records name: those of
/// the last records are missing if this process may not open as many files.
pub(crate) type Received = (Message, Vec<OwnedFd>);

/// Makes both ends of a socket.
pub(crate) fn open(socket: UnixStream) -> io::Result<(Sending, Receiving)> {
    let socket = Arc::new(Async::new(socket)?);
    let receiving = Receiving {
        socket: Arc::clone(&socket),
        bytes: Zeroizing::default(),
        piece: Zeroizing::new(vec![0; PIECE]),
        passed: VecDeque::new(),
    };
    Ok((Sending(socket), receiving))
}

impl Sending {
    /// A duplicate of the socket, for [`send_late`].
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.get_ref().as_fd().try_clone_to_owned()
    }

    /// Sends a message.
    ///
    /// # Suspends
    ///
    /// While the other process does not read.
    ///
    /// # Errors
    ///
    /// The system's errors.
    pub(crate) fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        debug_assert!(descriptors.len() <= DESCRIPTORS_MAX);
        // The frame may hold keys.
        let frame = Zeroizing::new(message.encode(descriptors.len()));
        let mut sent = self.0.write_with(|socket| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            Ok(sendmsg(socket, &[IoSlice::new(&frame)], &mut control, SEND)?)
        })?;
        while sent < frame.len() {
            sent += self
                .0
                .write_with(|socket| Ok(rustix::net::send(socket, &frame[sent..], SEND)?))?;
        }
        Ok(())
    }
}

/// Sends a message without descriptors through a duplicate of a socket whose other users send nothing any more. It does not wait: a
/// message that does not fit is lost.
pub(crate) fn send_late(socket: &OwnedFd, message: &Message) {
    let _ = rustix::net::send(socket, &message.encode(0), SEND);
}

/// Whether the process at the other end of a socket has ended, as far as it is known.
pub(crate) fn has_ended(socket: &OwnedFd) -> bool {
    let received = rustix::net::recv(socket, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    !matches!(received, Ok((1.., _)) | Err(rustix::io::Errno::AGAIN))
}

impl Receiving {
    /// Receives the next message. `None` at the end of the stream.
    ///
    /// # Suspends
    ///
    /// Until there is one.
    ///
    /// # Errors
    ///
    /// `InvalidData` around a [`Malformed`], `QuotaExceeded` if this process may not open as many files,
    /// `UnexpectedEof` within a message, and the system's errors.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Received>> {
        loop {
            if let Some(received) = self.take()? {
                return Ok(Some(received));
            }
            if self.fill()? == 0 {
                return match self.bytes.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    /// Takes a message that has arrived as a whole.
    fn take(&mut self) -> io::Result<Option<Received>> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let head = FrameHead::parse(head).map_err(malformed)?;
        let Some(payload) = rest.get(..head.length) else {
            return Ok(None);
        };
        let message = head.message(payload).map_err(malformed)?;
        let passed = match head.descriptors {
            0 => Passed::default(),
            _ => self.passed.pop_front().ok_or_else(|| malformed(Malformed::Head))?,
        };
        if passed.descriptors.len() != head.descriptors && !matches!(message, Message::Connections { .. }) {
            return Err(match passed.is_cut {
                true => io::Error::new(io::ErrorKind::QuotaExceeded, "this process may not open more files"),
                false => malformed(Malformed::Head),
            });
        }
        if passed.descriptors.len() > head.descriptors
            || (passed.descriptors.len() < head.descriptors && !passed.is_cut)
        {
            return Err(malformed(Malformed::Head));
        }
        self.bytes.drain(..HEAD_BYTES + head.length);
        Ok(Some((message, passed.descriptors)))
    }

    /// Receives what has arrived. Returns the number of bytes.
    fn fill(&mut self) -> io::Result<usize> {
        let (piece, queue) = (&mut self.piece, &mut self.passed);
        let received = self.socket.read_with(|socket| {
            // The kernel passes at most 253 at once.
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(piece)];
            let received = recvmsg(socket, &mut into, &mut control, RECEIVE)?;
            let mut passed = Passed {
                descriptors: Vec::new(),
                is_cut: received.flags.contains(ReturnFlags::CTRUNC),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    passed.descriptors.extend(descriptors);
                }
            }
            if passed.is_cut || !passed.descriptors.is_empty() {
                queue.push_back(passed);
            }
            Ok(received.bytes)
        })?;
        self.bytes.extend_from_slice(&self.piece[..received]);
        Ok(received)
    }
}

fn malformed(why: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::super::record::Record;
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    fn record(number: u16) -> Record {
        Record {
            server: "web".into(),
            peer: ([127, 0, 0, 1], number).into(),
            is_proxied: false,
            is_fresh: true,
            is_announced: false,
            received: vec![7; 3000],
            tls: None,
            http2: None,
            session: None,
            tunnel: None,
        }
    }

    /// Batches that fill the socket's buffer several times over, with descriptors that still lead where they led.
    #[test]
    fn descriptors_arrive_with_their_messages() {
        let (near, far) = UnixStream::pair().unwrap();
        let pairs: Vec<_> = (0..300).map(|_| UnixStream::pair().unwrap()).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let sending = std::thread::spawn(move || {
            let (sending, _) = open(near).unwrap();
            for (batch, sockets) in theirs.chunks(DESCRIPTORS_MAX).enumerate() {
                let records = (0..sockets.len()).map(|number| record(number as u16)).collect();
                let batch = batch as u32;
                let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
                sending
                    .send(&Message::Connections { batch, records }, &descriptors)
                    .unwrap();
                sending.send(&Message::Taken { batch }, &[]).unwrap();
            }
        });
        let (_, mut receiving) = open(far).unwrap();
        let mut sockets = Vec::new();
        for batch in 0..3 {
            let (message, descriptors) = receiving.receive().unwrap().unwrap();
            let Message::Connections { batch: number, records } = message else {
                panic!("{message:?}")
            };
            assert_eq!((number, records.len()), (batch, descriptors.len()));
            sockets.extend(descriptors);
            assert_eq!(receiving.receive().unwrap().unwrap().0, Message::Taken { batch });
        }
        sending.join().unwrap();
        assert!(receiving.receive().unwrap().is_none());
        assert_eq!(sockets.len(), ours.len());
        for (number, (mut ours, theirs)) in ours.into_iter().zip(sockets).enumerate() {
            let mut theirs = UnixStream::from(theirs);
            ours.write_all(&[number as u8]).unwrap();
            let mut got = [0];
            theirs.read_exact(&mut got).unwrap();
            assert_eq!(got, [number as u8]);
        }
    }

    /// The kernel passes the descriptors that have room, the first ones of a frame.
    #[test]
    fn connections_without_a_descriptor_are_lost_alone() {
        let (_near, far) = UnixStream::pair().unwrap();
        let (_, mut receiving) = open(far).unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let batch = |batch, ports: &[u16]| Message::Connections {
            batch,
            records: ports.iter().map(|port| record(*port)).collect(),
        };
        *receiving.bytes = [batch(1, &[1, 2, 3]).encode(3), batch(2, &[4]).encode(1)].concat();
        let passed = |descriptors, is_cut| Passed { descriptors, is_cut };
        receiving.passed.push_back(passed(Vec::new(), true));
        receiving.passed.push_back(passed(vec![theirs.into()], false));
        let (message, descriptors) = receiving.take().unwrap().unwrap();
        assert_eq!((message, descriptors.len()), (batch(1, &[1, 2, 3]), 0));
        let (message, mut descriptors) = receiving.take().unwrap().unwrap();
        assert_eq!((message, descriptors.len()), (batch(2, &[4]), 1));
        ours.write_all(b"4").unwrap();
        let mut got = [0];
        UnixStream::from(descriptors.remove(0)).read_exact(&mut got).unwrap();
        assert_eq!(got, *b"4");
        // An item, such as listening sockets, is worth nothing unless it is whole.
        let item = Message::Item {
            name: "listeners".into(),
            bytes: Vec::new(),
        };
        *receiving.bytes = item.encode(2);
        receiving.passed.push_back(passed(Vec::new(), true));
        let error = receiving.take().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        // Frames of a process that does not speak the protocol.
        *receiving.bytes = batch(3, &[5, 6]).encode(2);
        let (socket, _) = UnixStream::pair().unwrap();
        receiving.passed.push_back(passed(vec![socket.into()], false));
        let error = receiving.take().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn bytes_of_a_stranger_are_an_error() {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let error = open(far).unwrap().1.receive().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(&Message::Start.encode(0)[..5]).unwrap();
        drop(near);
        let error = open(far).unwrap().1.receive().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
