//! The channel's accounts: places, promises, the order of those who wait, the end. On one thread, step by step.

use crate::wakers::{Bomb, Counter};
use osier_queue::channel::{Channel, Closed, Drained, Nothing, Refused};
use osier_queue::{OwnedWaiter, Waiter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

fn receive<T>(channel: &Channel<T>, waiter: Pin<&mut Waiter<'_>>) -> Poll<Result<T, Drained>> {
    channel.poll_receive(waiter, &mut Context::from_waker(Waker::noop()))
}

fn send<T>(channel: &Channel<T>, value: &mut Option<T>, waiter: Pin<&mut Waiter<'_>>) -> Poll<Result<(), Closed>> {
    channel.poll_send(value, waiter, &mut Context::from_waker(Waker::noop()))
}

fn put<T>(channel: &Channel<T>, value: T) {
    channel.try_send(&mut Some(value)).unwrap();
}

#[test]
fn a_promised_value_is_not_for_those_who_come_later() {
    let channel = Channel::new(None);
    let mut first = pin!(channel.receiver());
    let mut second = pin!(channel.receiver());
    assert!(receive(&channel, first.as_mut()).is_pending());
    put(&channel, 1);
    assert_eq!(channel.try_receive(), Err(Nothing::Yet), "it is promised");
    assert!(receive(&channel, second.as_mut()).is_pending());
    put(&channel, 2);
    put(&channel, 3);
    assert_eq!(channel.len(), 3);
    // Promises are for values as they come: who polls first gets the oldest.
    assert_eq!(channel.try_receive(), Ok(1));
    assert_eq!(channel.try_receive(), Err(Nothing::Yet));
    assert_eq!(receive(&channel, second), Poll::Ready(Ok(2)));
    assert_eq!(receive(&channel, first), Poll::Ready(Ok(3)));
}

#[test]
fn a_freed_place_is_not_for_those_who_come_later() {
    let channel = Channel::new(Some(1));
    put(&channel, 1);
    let (mut two, mut three) = (Some(2), Some(3));
    let mut first = pin!(channel.sender());
    let mut second = pin!(channel.sender());
    assert!(send(&channel, &mut two, first.as_mut()).is_pending());
    assert!(send(&channel, &mut three, second.as_mut()).is_pending());
    assert_eq!(channel.try_receive(), Ok(1));
    assert_eq!(channel.room(), Some(0));
    assert_eq!(channel.try_send(&mut Some(9)), Err(Refused::Full));
    assert!(first.is_notified() && !second.is_notified());
    channel.cancel_send(first);
    assert_eq!(two, Some(2), "a send that is given up leaves its value");
    assert_eq!(send(&channel, &mut three, second), Poll::Ready(Ok(())));
    assert_eq!((three, channel.try_receive()), (None, Ok(3)));
    assert_eq!(channel.room(), Some(1));
}

#[test]
fn a_value_wakes_one_receiver_and_a_place_one_sender() {
    let channel = Channel::new(Some(2));
    let wakes: [Arc<Counter>; 3] = Default::default();
    let wakers = wakes.clone().map(Waker::from);
    let count = || wakes.each_ref().map(|wakes| wakes.wakes());
    let mut waiters = [0; 3].map(|_| Box::pin(channel.receiver()));
    for (waiter, waker) in waiters.iter_mut().zip(&wakers) {
        let polled = channel.poll_receive(waiter.as_mut(), &mut Context::from_waker(waker));
        assert!(polled.is_pending());
    }
    put(&channel, 1);
    assert_eq!(count(), [1, 0, 0]);
    put(&channel, 2);
    assert_eq!(count(), [1, 1, 0]);
    channel.cancel_receive(waiters[0].as_mut());
    assert_eq!(
        count(),
        [1, 1, 1],
        "what was promised to the first is promised to the third"
    );
    channel.cancel_receive(waiters[1].as_mut());
    assert_eq!(receive(&channel, waiters[2].as_mut()), Poll::Ready(Ok(1)));
    assert_eq!(channel.try_receive(), Ok(2), "nobody waits, so it is anybody's");
}

#[test]
fn the_end_is_told_when_nothing_is_promised_any_more() {
    let channel = Channel::new(None);
    let mut first = pin!(channel.receiver());
    let mut second = pin!(channel.receiver());
    assert!(receive(&channel, first.as_mut()).is_pending());
    assert!(receive(&channel, second.as_mut()).is_pending());
    put(&channel, 1);
    channel.remove_sender();
    assert!(!second.is_notified(), "the first may still give up");
    assert_eq!(channel.try_receive(), Err(Nothing::Yet));
    assert_eq!(receive(&channel, first.as_mut()), Poll::Ready(Ok(1)));
    assert!(second.is_notified());
    assert_eq!(receive(&channel, second), Poll::Ready(Err(Drained)));
    assert_eq!(receive(&channel, first), Poll::Ready(Err(Drained)));
    assert_eq!(channel.try_receive(), Err(Nothing::Drained));
}

#[test]
fn a_place_granted_before_a_close_is_given_back_after_it() {
    let channel = Channel::new(Some(1));
    put(&channel, 1);
    let mut two = Some(2);
    let mut granted = pin!(channel.sender());
    let mut behind = pin!(channel.sender());
    let mut receiver = pin!(channel.receiver());
    assert!(send(&channel, &mut two, granted.as_mut()).is_pending());
    assert!(
        channel
            .poll_reserve(behind.as_mut(), &mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    assert_eq!(channel.try_receive(), Ok(1));
    channel.close();
    assert!(receive(&channel, receiver.as_mut()).is_pending(), "a place is held");
    assert_eq!(send(&channel, &mut two, granted), Poll::Ready(Err(Closed)));
    assert_eq!(two, Some(2));
    assert_eq!(receive(&channel, receiver), Poll::Ready(Err(Drained)));
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(channel.poll_reserve(behind, &mut cx), Poll::Ready(Err(Closed)));
    assert_eq!(channel.room(), Some(1));
}

#[test]
fn without_a_receiver_a_held_place_takes_no_value() {
    let channel = Channel::new(Some(1));
    let mut waiter = pin!(channel.sender());
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(channel.poll_reserve(waiter.as_mut(), &mut cx), Poll::Ready(Ok(())));
    channel.remove_receiver();
    let mut value = Some("kept");
    assert_eq!(channel.send_held(&mut value), Err(Closed));
    assert_eq!((value, channel.room()), (Some("kept"), Some(1)));
}

#[test]
fn a_send_polled_after_it_was_ready_panics_and_leaves_the_channel_whole() {
    let channel = Channel::new(Some(2));
    let mut value = Some(1);
    let mut waiter = pin!(channel.sender());
    assert!(send(&channel, &mut value, waiter.as_mut()).is_ready());
    let again = std::panic::AssertUnwindSafe(|| send(&channel, &mut value, waiter));
    assert!(std::panic::catch_unwind(again).is_err());
    assert_eq!(channel.try_receive(), Ok(1));
}

#[test]
fn an_owned_waiter_waits_wherever_it_is_moved() {
    let channel = Arc::new(Channel::new(None));
    let mut owned = OwnedWaiter::new(Arc::clone(&channel), Channel::receivers);
    assert!(owned.with(receive).is_pending());
    let sender = std::thread::spawn(move || put(&channel, String::from("willow")));
    let mut moved = Box::new(owned);
    sender.join().unwrap();
    assert_eq!(moved.owner().len(), 1);
    let got = moved.with(receive);
    assert_eq!(got, Poll::Ready(Ok("willow".to_owned())));
}

#[test]
fn an_owned_waiter_that_is_dropped_leaves_its_list() {
    let channel = Arc::new(Channel::new(None));
    let mut owned = OwnedWaiter::new(Arc::clone(&channel), Channel::receivers);
    assert!(owned.with(receive).is_pending());
    assert!(!channel.receivers().is_empty());
    drop(owned);
    assert!(channel.receivers().is_empty());
    put(&channel, 1);
    assert_eq!(channel.try_receive(), Ok(1));
}

/// Does what panics in a waker.
fn explode(f: impl FnOnce()) {
    let caught = catch_unwind(AssertUnwindSafe(f)).expect_err("the panic goes on");
    assert_eq!(caught.downcast_ref(), Some(&"a waker's own"));
}

#[test]
fn a_panicking_waker_of_one_list_does_not_skip_the_next_list() {
    let bomb = Waker::from(Arc::new(Bomb));
    let wakes = Arc::new(Counter::default());
    let waker = Waker::from(wakes.clone());
    let (mut bad, mut good) = (Context::from_waker(&bomb), Context::from_waker(&waker));

    // The end of the channel wakes senders, watchers, receivers.
    let channel = Channel::new(Some(1));
    put(&channel, 1);
    let (mut sender, mut watcher) = (pin!(channel.sender()), pin!(channel.watcher()));
    assert!(channel.poll_send(&mut Some(2), sender.as_mut(), &mut bad).is_pending());
    assert!(channel.poll_closed(watcher.as_mut(), &mut good).is_pending());
    explode(|| channel.close());
    assert_eq!(wakes.wakes(), 1, "the watcher");

    let channel = Channel::<i32>::new(None);
    let (mut watcher, mut receiver) = (pin!(channel.watcher()), pin!(channel.receiver()));
    assert!(channel.poll_closed(watcher.as_mut(), &mut bad).is_pending());
    assert!(channel.poll_receive(receiver.as_mut(), &mut good).is_pending());
    explode(|| channel.close());
    assert_eq!(wakes.wakes(), 2, "the receiver");
}
