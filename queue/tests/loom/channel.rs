//! The channel: no wake-up is lost, each value arrives once, and what a waiter that gives up was granted goes to the next.

use super::*;
use osier_queue::channel::{Channel, Closed, Drained, Nothing, Refused};

fn receive(channel: &Channel<usize>) -> Result<usize, Drained> {
    let mut waiter = pin!(channel.receiver());
    block_on(poll_fn(|cx| channel.poll_receive(waiter.as_mut(), cx)))
}

fn send(channel: &Channel<usize>, value: usize) -> Result<(), Closed> {
    let mut waiter = pin!(channel.sender());
    let mut value = Some(value);
    block_on(poll_fn(|cx| channel.poll_send(&mut value, waiter.as_mut(), cx)))
}

fn reserve(channel: &Channel<usize>) -> Result<(), Closed> {
    let mut waiter = pin!(channel.sender());
    block_on(poll_fn(|cx| channel.poll_reserve(waiter.as_mut(), cx)))
}

fn put(channel: &Channel<usize>, value: usize) {
    assert_eq!(channel.try_send(&mut Some(value)), Ok(()));
}

/// Polls a receive once and drops it; what it got, if it got something.
fn try_and_give_up(channel: &Channel<usize>) -> Option<usize> {
    let mut waiter = pin!(channel.receiver());
    let polled = channel.poll_receive(waiter.as_mut(), &mut Context::from_waker(Waker::noop()));
    channel.cancel_receive(waiter);
    match polled {
        Poll::Ready(value) => Some(value.unwrap()),
        Poll::Pending => None,
    }
}

fn with<R: 'static>(
    channel: &Arc<Channel<usize>>,
    f: impl FnOnce(&Channel<usize>) -> R + 'static,
) -> thread::JoinHandle<R> {
    let channel = channel.clone();
    thread::spawn(move || f(&channel))
}

#[test]
fn a_value_reaches_who_waits_for_it() {
    // Outcomes: whether it was there before the receiver came.
    model("channel: send races receive", None, &[0, 1], || {
        let channel = Arc::new(Channel::new(Some(1)));
        let sender = with(&channel, |channel| send(channel, 7));
        let early = channel.len();
        assert_eq!(receive(&channel), Ok(7));
        assert_eq!(sender.join().unwrap(), Ok(()));
        assert_eq!(channel.room(), Some(1));
        early
    });
}

#[test]
fn a_sender_that_waits_gets_the_place_that_is_freed() {
    model("channel: a full one", None, &[0, 1], || {
        let channel = Arc::new(Channel::new(Some(1)));
        put(&channel, 1);
        let sender = with(&channel, |channel| {
            let full = channel.room() == Some(0);
            send(channel, 2).unwrap();
            full as usize
        });
        assert_eq!([receive(&channel), receive(&channel)], [Ok(1), Ok(2)]);
        let waited = sender.join().unwrap();
        assert_eq!((channel.len(), channel.room()), (0, Some(1)));
        waited
    });
}

#[test]
fn two_receivers_get_two_values_once_each() {
    // Outcomes: which value the first one got.
    model("channel: two receivers", Some(2), &[1, 2], || {
        let channel = Arc::new(Channel::new(None));
        let other = with(&channel, |channel| receive(channel).unwrap());
        let sender = with(&channel, |channel| {
            put(channel, 1);
            put(channel, 2);
        });
        let (ours, theirs) = (receive(&channel).unwrap(), other.join().unwrap());
        sender.join().unwrap();
        assert_eq!(ours + theirs, 3);
        assert!(channel.is_empty());
        ours
    });
}

#[test]
fn two_senders_are_received_once_each() {
    model("channel: two senders and one place", Some(2), &[1, 2], || {
        let channel = Arc::new(Channel::new(Some(1)));
        let senders = [1, 2].map(|n| with(&channel, move |channel| send(channel, n)));
        let got = [receive(&channel).unwrap(), receive(&channel).unwrap()];
        assert!(got == [1, 2] || got == [2, 1]);
        for sender in senders {
            assert_eq!(sender.join().unwrap(), Ok(()));
        }
        assert_eq!(channel.try_receive(), Err(Nothing::Yet));
        assert_eq!(channel.room(), Some(1));
        got[0]
    });
}

#[test]
fn a_receiver_that_gives_up_hands_its_value_on() {
    // Outcomes: whether the one that gave up got it all the same.
    model("channel: a receiver gives up", Some(4), &[0, 1], || {
        let channel = Arc::new(Channel::new(None));
        let quitter = with(&channel, try_and_give_up);
        let sender = with(&channel, |channel| put(channel, 7));
        let mut waiter = pin!(channel.receiver());
        let (counter, waker) = Counter::new();
        let mut polled = channel.poll_receive(waiter.as_mut(), &mut Context::from_waker(&waker));
        sender.join().unwrap();
        let taken = quitter.join().unwrap();
        if polled.is_pending() {
            assert_eq!(
                counter.wakes(),
                taken.is_none() as usize,
                "woken if, and only if, it is promised"
            );
            polled = channel.poll_receive(waiter.as_mut(), &mut Context::from_waker(&waker));
        }
        assert_eq!(polled.is_ready(), taken.is_none());
        channel.cancel_receive(waiter);
        taken.is_some() as usize
    });
}

#[test]
fn a_sender_that_gives_up_hands_its_place_on() {
    // Outcomes: whether the one that gave up sent all the same.
    model("channel: a sender gives up", Some(3), &[0, 1], || {
        let channel = Arc::new(Channel::new(Some(1)));
        put(&channel, 1);
        let quitter = with(&channel, |channel| {
            let mut waiter = pin!(channel.sender());
            let mut value = Some(2);
            let polled = channel.poll_send(&mut value, waiter.as_mut(), &mut Context::from_waker(Waker::noop()));
            channel.cancel_send(waiter);
            polled.is_ready() as usize
        });
        let receiver = with(&channel, |channel| channel.try_receive().unwrap());
        let mut waiter = pin!(channel.sender());
        let mut value = Some(3);
        let (counter, waker) = Counter::new();
        let mut polled = channel.poll_send(&mut value, waiter.as_mut(), &mut Context::from_waker(&waker));
        assert_eq!(receiver.join().unwrap(), 1);
        let sent = quitter.join().unwrap();
        if polled.is_pending() {
            assert_eq!(
                counter.wakes(),
                1 - sent,
                "woken if, and only if, there is a place for it"
            );
            polled = channel.poll_send(&mut value, waiter.as_mut(), &mut Context::from_waker(&waker));
        }
        assert_eq!(polled.is_ready(), sent == 0);
        channel.cancel_send(waiter);
        assert_eq!(channel.try_receive(), Ok(3 - sent));
        assert_eq!((channel.len(), channel.room()), (0, Some(1)));
        sent
    });
}

#[test]
fn the_last_sender_s_end_is_heard() {
    model("channel: the last sender goes", Some(3), &[0, 1], || {
        let channel = Arc::new(Channel::new(Some(1)));
        let sender = with(&channel, |channel| {
            put(channel, 1);
            channel.remove_sender();
        });
        let early = channel.is_ending() as usize;
        assert_eq!([receive(&channel), receive(&channel)], [Ok(1), Err(Drained)]);
        sender.join().unwrap();
        early
    });
}

#[test]
fn who_waits_behind_a_promise_hears_the_end_or_gets_the_value() {
    // Outcomes: whether the other one got it.
    model("channel: the end behind a promise", Some(2), &[0, 1], || {
        let channel = Arc::new(Channel::new(None));
        let other = with(&channel, receive);
        let sender = with(&channel, |channel| {
            put(channel, 1);
            channel.remove_sender();
        });
        let ours = receive(&channel);
        let theirs = other.join().unwrap();
        sender.join().unwrap();
        assert!(ours.is_ok() != theirs.is_ok());
        theirs.is_ok() as usize
    });
}

#[test]
fn the_last_receiver_s_end_is_heard_and_takes_what_was_sent_along() {
    // Outcomes: 0 refused, 1 sent.
    model("channel: the last receiver goes", None, &[0, 1], || {
        let channel = Arc::new(Channel::new(Some(1)));
        let receiver = with(&channel, |channel| channel.remove_receiver());
        let first = send(&channel, 1);
        let second = send(&channel, 2); // there is no room, or no receiver
        assert_eq!(second, Err(Closed));
        receiver.join().unwrap();
        assert!(channel.is_empty());
        assert_eq!(channel.try_send(&mut Some(3)), Err(Refused::Closed));
        first.is_ok() as usize
    });
}

#[test]
fn a_watcher_hears_the_end() {
    model("channel: a watcher", None, &[0, 1], || {
        let channel = Arc::new(Channel::<usize>::new(Some(1)));
        let receiver = with(&channel, |channel| channel.remove_receiver());
        let mut waiter = pin!(channel.watcher());
        let mut waited = 0;
        block_on(poll_fn(|cx| {
            let polled = channel.poll_closed(waiter.as_mut(), cx);
            waited |= polled.is_pending() as usize;
            polled
        }));
        receiver.join().unwrap();
        waited
    });
}

#[test]
fn a_place_that_was_reserved_outlives_a_close() {
    // Outcomes: whether it was reserved before the close.
    model("channel: reserve races close", None, &[0, 1], || {
        let channel = Arc::new(Channel::new(Some(1)));
        let sender = with(&channel, |channel| {
            let reserved = reserve(channel).is_ok();
            if reserved {
                channel.send_held(&mut Some(5)).unwrap();
            }
            reserved
        });
        channel.close();
        let got = receive(&channel);
        let reserved = sender.join().unwrap();
        assert_eq!(got, if reserved { Ok(5) } else { Err(Drained) });
        reserved as usize
    });
}

#[test]
fn a_place_that_is_given_back_after_a_close_ends_the_wait() {
    model("channel: a reserved place is given back", None, &[0, 1], || {
        let channel = Arc::new(Channel::new(Some(1)));
        reserve(&channel).unwrap();
        let sender = with(&channel, |channel| {
            let closed = channel.is_closed();
            channel.release_held();
            closed
        });
        channel.close();
        assert_eq!(receive(&channel), Err(Drained));
        sender.join().unwrap() as usize
    });
}
