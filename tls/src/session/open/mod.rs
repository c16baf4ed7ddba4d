//! [`Open`]: the records of a TLS 1.3 connection after its handshake.
//!
//! rustls hands over the secrets and drops the state of its handshake. This module protects records (RFC 8446, 5.2) and handles the few
//! messages that may still arrive: alerts, key updates, and session tickets for a client, which rustls stores.
//!
//! A connection at rest keeps the keys and the numbers of the next records. The expanded keys, half a kilobyte each, are made
//! at the first record after the rest.

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::{AlertDescription, ContentType, Error, HandshakeType, InvalidMessage, PeerMisbehaved};

use super::handshake::{Opened, Traffic};
use super::secrets::Suite;
use super::{Goal, RECORD_BYTES, Sink, Step};
use crate::buffer::{self, Buffer};
use crate::export::{NotExportable, Reader, Writer};
use crate::provider::aead::{Aad, Algorithm, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

const HEAD_BYTES: usize = buffer::RECORD_HEAD_BYTES;
const TAG_BYTES: usize = 16;

/// The most bytes of a record behind its head: a type, and padding or a tag, in 256 bytes.
const PROTECTED_MAX: usize = RECORD_BYTES + 256;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// The longest message, as in rustls.
const MESSAGE_MAX: usize = 0xffff;

/// How many records of one kind may come without plain bytes in between.
const EMPTY_MAX: u8 = 32;
const KEY_UPDATES_MAX: u8 = 32;
const WARNINGS_MAX: u8 = 4;

/// The keys of both directions, and the numbers of the next records.
pub(super) struct Open {
    suite: Suite,
    /// Stores the tickets of a client.
    kernel: Option<Box<KernelConnection<ClientConnectionData>>>,
    sending: Half,
    receiving: Half,
    /// The records that one key may protect.
    records_max: u64,
    /// The beginning of a message that goes on in the next record. Mostly empty.
    message: Vec<u8>,
    /// The peer wants new keys from this end, before the next bytes.
    owes_update: bool,
    peer_closed: bool,
    empty_records: u8,
    key_updates: u8,
    warnings: u8,
}

/// One direction.
struct Half {
    traffic: Traffic,
    algorithm: &'static Algorithm,
    expanded: Option<Box<LessSafeKey>>,
}

impl Open {
    pub(super) fn new(opened: Opened) -> Open {
        let Opened { suite, kernel, .. } = opened;
        Open {
            suite,
            sending: Half::new(suite, opened.sending),
            receiving: Half::new(suite, opened.receiving),
            records_max: suite.records_max(),
            kernel: kernel.map(Box::new),
            message: Vec::new(),
            owes_update: false,
            peer_closed: false,
            empty_records: 0,
            key_updates: 0,
            warnings: 0,
        }
    }

    pub(super) fn suite_name(&self) -> Option<&'static str> {
        self.suite.id().as_str()
    }

    /// Writes the state, without the counters of messages that a peer may repeat: they begin anew.
    pub(super) fn export(&self, to: &mut Writer) -> Result<(), NotExportable> {
        if self.kernel.is_some() {
            return Err(NotExportable("it is a client's end"));
        }
        if self.peer_closed {
            return Err(NotExportable("the peer has ended it"));
        }
        to.number(u16::from(self.suite.id()).into());
        for half in [&self.sending, &self.receiving] {
            let secret = half.traffic.secret(self.suite);
            to.text(secret.map_err(|_| NotExportable("it has failed"))?.as_ref());
            to.number(half.traffic.number);
        }
        to.text(&self.message);
        to.flag(self.owes_update);
        Ok(())
    }

    /// The connection that [`export`](Open::export) has written.
    pub(super) fn import(from: &mut Reader<'_>) -> Option<Open> {
        let suite = Suite::new(u16::try_from(from.number()?).ok()?.into())?;
        let mut traffic = || {
            let secret = suite.secret(from.text()?)?;
            // No connection sends so many records: the bytes are damaged.
            let number = from.number().filter(|&number| number < 1 << 62)?;
            Some(Traffic::of(suite, secret, number))
        };
        let (sending, receiving) = (traffic()?, traffic()?);
        let mut open = Open::new(Opened {
            suite,
            sending,
            receiving,
            kernel: None,
        });
        open.message = from.text()?.to_vec();
        open.owes_update = from.flag()?;
        Some(open)
    }

    pub(super) fn rest(&mut self) {
        self.sending.expanded = None;
        self.receiving.expanded = None;
    }

    /// As [`Session::advance`](super::Session::advance).
    pub(super) fn advance(
        &mut self,
        input: &mut [u8],
        sink: &mut Sink<'_>,
        goal: Goal<'_>,
    ) -> (usize, Result<Step, Error>) {
        let mut consumed = 0;
        let step = match goal {
            Goal::Read => self.read(input, &mut consumed, sink),
            Goal::Encrypt(plain) => self.write(APPLICATION_DATA, plain, sink.records),
            Goal::CloseNotify => self.write(ALERT, &[1, AlertDescription::CloseNotify.into()], sink.records),
        };
        if let Some(alert) = step.as_ref().err().and_then(alert_of) {
            // The error that it reports is what counts.
            let _ = self.protect(ALERT, &[2, alert.into()], sink.records);
        }
        (consumed, step)
    }

    fn read(&mut self, input: &mut [u8], consumed: &mut usize, sink: &mut Sink<'_>) -> Result<Step, Error> {
        loop {
            if self.peer_closed {
                *sink.peer_closed = true;
                return Ok(Step::PeerClosed);
            }
            let rest = &mut input[*consumed..];
            check_head(rest)?;
            let Some(length) = buffer::record_length(rest) else {
                return Ok(Step::Ready);
            };
            *consumed += length;
            match self.receiving.open(&mut rest[..length])? {
                (HANDSHAKE, part) => self.receive_messages(part)?,
                _ if !self.message.is_empty() => {
                    return Err(PeerMisbehaved::MessageInterleavedWithHandshakeMessage.into());
                }
                (ALERT, alert) => self.receive_alert(alert)?,
                (APPLICATION_DATA, []) => {
                    self.empty_records += 1;
                    if self.empty_records > EMPTY_MAX {
                        return Err(PeerMisbehaved::TooManyEmptyFragments.into());
                    }
                }
                (APPLICATION_DATA, plain) => {
                    (self.empty_records, self.key_updates, self.warnings) = (0, 0, 0);
                    (sink.plain)(plain);
                    return Ok(Step::Plain);
                }
                (other, _) => return Err(unexpected(other)),
            }
        }
    }

    /// Appends a record. New keys come before it if the peer has asked for them, or if the old ones have served long enough.
    fn write(&mut self, kind: u8, plain: &[u8], records: &mut Buffer) -> Result<Step, Error> {
        if self.owes_update || self.sending.traffic.number + 1 >= self.records_max {
            self.owes_update = false;
            // The message has one byte: whether the peer's keys shall change too. They need not.
            self.protect(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0], records)?;
            self.sending.update(self.suite)?;
        }
        self.protect(kind, plain, records)?;
        Ok(Step::Ready)
    }

    /// Appends a record: a head, then the bytes with their kind behind them, encrypted, and a tag.
    fn protect(&mut self, kind: u8, plain: &[u8], records: &mut Buffer) -> Result<(), Error> {
        let length = plain.len() + 1 + TAG_BYTES;
        let [high, low] = u16::try_from(length).map_err(|_| Error::EncryptError)?.to_be_bytes();
        let head = [APPLICATION_DATA, 3, 3, high, low];
        let room = &mut records.room(HEAD_BYTES + length)[..HEAD_BYTES + length];
        let (head_room, body) = room.split_at_mut(HEAD_BYTES);
        let (inner, tag_room) = body.split_at_mut(plain.len() + 1);
        head_room.copy_from_slice(&head);
        inner[..plain.len()].copy_from_slice(plain);
        inner[plain.len()] = kind;
        let nonce = self.sending.next_nonce();
        let key = self.sending.expanded();
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(head), inner);
        tag_room.copy_from_slice(tag.map_err(|_| Error::EncryptError)?.as_ref());
        records.fill(HEAD_BYTES + length);
        Ok(())
    }

    fn receive_alert(&mut self, alert: &[u8]) -> Result<(), Error> {
        let &[_, description] = alert else {
            return Err(InvalidMessage::MissingData("AlertMessagePayload").into());
        };
        match AlertDescription::from(description) {
            AlertDescription::CloseNotify => self.peer_closed = true,
            AlertDescription::UserCanceled => {
                self.warnings += 1;
                if self.warnings > WARNINGS_MAX {
                    return Err(PeerMisbehaved::TooManyWarningAlertsReceived.into());
                }
            }
            description => return Err(Error::AlertReceived(description)),
        }
        Ok(())
    }

    /// Takes the messages of a record, and keeps the beginning of one that goes on in the next.
    fn receive_messages(&mut self, part: &[u8]) -> Result<(), Error> {
        if part.is_empty() {
            return Err(InvalidMessage::InvalidEmptyPayload.into());
        }
        let mut bytes = std::mem::take(&mut self.message);
        bytes.extend_from_slice(part);
        let mut rest = &bytes[..];
        while let [kind, a, b, c, behind @ ..] = rest {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            self.check_message(*kind, length)?;
            let Some((body, others)) = behind.split_at_checked(length) else {
                break;
            };
            rest = others;
            match &mut self.kernel {
                Some(kernel) if *kind == NEW_SESSION_TICKET => kernel.handle_new_session_ticket(body)?,
                // The other message is the key update. The next byte has other keys: it cannot be in the same record.
                _ if !rest.is_empty() => return Err(PeerMisbehaved::KeyEpochWithPendingFragment.into()),
                _ => self.update_receiving(body)?,
            }
        }
        self.message = rest.to_vec();
        Ok(())
    }

    /// Refuses a message that cannot be right, before the rest of it has come: so a peer makes a server keep five bytes at most.
    fn check_message(&self, kind: u8, length: usize) -> Result<(), Error> {
        match kind {
            KEY_UPDATE if length == 1 => Ok(()),
            KEY_UPDATE => Err(InvalidMessage::InvalidKeyUpdate.into()),
            NEW_SESSION_TICKET if self.kernel.is_some() && length <= MESSAGE_MAX => Ok(()),
            NEW_SESSION_TICKET if self.kernel.is_some() => Err(InvalidMessage::HandshakePayloadTooLarge.into()),
            kind => Err(Error::InappropriateHandshakeMessage {
                expect_types: vec![HandshakeType::NewSessionTicket, HandshakeType::KeyUpdate],
                got_type: HandshakeType::from(kind),
            }),
        }
    }

    fn update_receiving(&mut self, body: &[u8]) -> Result<(), Error> {
        self.key_updates += 1;
        if self.key_updates > KEY_UPDATES_MAX {
            return Err(PeerMisbehaved::TooManyKeyUpdateRequests.into());
        }
        match body {
            [0] => {}
            [1] => self.owes_update = true,
            _ => return Err(InvalidMessage::InvalidKeyUpdate.into()),
        }
        self.receiving.update(self.suite)
    }
}

impl Half {
    fn new(suite: Suite, traffic: Traffic) -> Half {
        Half {
            traffic,
            algorithm: suite.algorithm,
            expanded: None,
        }
    }

    /// Goes on with the next secret.
    fn update(&mut self, suite: Suite) -> Result<(), Error> {
        let secret = suite.next(self.traffic.secret(suite)?);
        *self = Half::new(suite, Traffic::of(suite, secret, 0));
        Ok(())
    }

    fn expanded(&mut self) -> &LessSafeKey {
        self.expanded.get_or_insert_with(|| {
            let key = UnboundKey::new(self.algorithm, &self.traffic.key.as_ref()[..self.algorithm.key_len()]);
            Box::new(LessSafeKey::new(key.expect("a key of this algorithm has its length")))
        })
    }

    /// The nonce of the next record: its number, combined with the secret start. A number is used once.
    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&self.traffic.number.to_be_bytes());
        self.traffic.number += 1;
        for (byte, secret) in nonce.iter_mut().zip(self.traffic.iv.as_ref()) {
            *byte ^= secret;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// Decrypts a whole record in place. Returns its kind, and its bytes without padding.
    fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<(u8, &'a [u8]), Error> {
        let (head, body) = record
            .split_first_chunk_mut::<HEAD_BYTES>()
            .ok_or(Error::DecryptError)?;
        let nonce = self.next_nonce();
        let opened = self.expanded().open_in_place(nonce, Aad::from(*head), body);
        let inner = opened.map_err(|_| Error::DecryptError)?;
        let kind = inner.iter().rposition(|&byte| byte != 0);
        let kind = kind.ok_or(PeerMisbehaved::IllegalTlsInnerPlaintext)?;
        if kind > RECORD_BYTES {
            return Err(Error::PeerSentOversizedRecord);
        }
        Ok((inner[kind], &inner[..kind]))
    }
}

/// Refuses the head of a record that is too long, or not protected.
fn check_head(input: &[u8]) -> Result<(), Error> {
    match *input {
        [kind, ..] if kind != APPLICATION_DATA => Err(unexpected(kind)),
        [_, _, _, high, low, ..] if usize::from(u16::from_be_bytes([high, low])) > PROTECTED_MAX => {
            Err(Error::PeerSentOversizedRecord)
        }
        _ => Ok(()),
    }
}

fn unexpected(kind: u8) -> Error {
    Error::InappropriateMessage {
        expect_types: vec![ContentType::ApplicationData],
        got_type: ContentType::from(kind),
    }
}

/// The alert for an error of the peer. An alert is not answered by another.
fn alert_of(error: &Error) -> Option<AlertDescription> {
    match error {
        Error::AlertReceived(_) => None,
        Error::DecryptError => Some(AlertDescription::BadRecordMac),
        Error::PeerSentOversizedRecord => Some(AlertDescription::RecordOverflow),
        Error::InvalidMessage(_) => Some(AlertDescription::DecodeError),
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } | Error::PeerMisbehaved(_) => {
            Some(AlertDescription::UnexpectedMessage)
        }
        _ => Some(AlertDescription::InternalError),
    }
}

#[cfg(test)]
mod tests;
