//! The topic on one thread: bounds, policies, ends and counts.

use crate::wakers::{Bomb, Counter};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use osier_queue::topic::{End, Feed, Policy, Pushed, Topic};

/// A feed that leaves when it is dropped, as subscribers do: until then it and its topics hold each other.
struct Joined<T>(Arc<Feed<T>>);

impl<T> Deref for Joined<T> {
    type Target = Arc<Feed<T>>;

    fn deref(&self) -> &Arc<Feed<T>> {
        &self.0
    }
}

impl<T> Drop for Joined<T> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn feed<T>(bound: usize, policy: Policy, topic: &Arc<Topic<T>>) -> Joined<T> {
    let feed = Arc::new(Feed::new(bound, policy, 0));
    assert!(feed.join(topic));
    Joined(feed)
}

fn drain<T>(feed: &Feed<T>) -> Vec<T> {
    std::iter::from_fn(|| feed.try_receive().ok().flatten()).collect()
}

#[test]
fn each_policy_keeps_what_it_says() {
    let topic = Arc::new(Topic::new());
    let latest = feed(3, Policy::DropOldest, &topic);
    let first = feed(3, Policy::DropNewest, &topic);
    let strict = feed(3, Policy::Disconnect, &topic);
    let taken: Vec<usize> = (1..=5).map(|n| topic.publish(n)).collect();
    assert_eq!(taken, [3, 3, 3, 1, 1]);
    assert_eq!(drain(&latest), [3, 4, 5]);
    assert_eq!(drain(&first), [1, 2, 3]);
    assert_eq!(drain(&strict), [1, 2, 3]);
    assert_eq!(strict.try_receive(), Err(End::TooSlow));
    assert_eq!([&latest, &first, &strict].map(|feed| feed.dropped()), [2, 2, 1]);
    assert_eq!((topic.subscribers(), topic.published(), topic.dropped()), (2, 5, 5));
}

#[test]
fn a_feed_of_two_topics_ends_with_the_second() {
    let (one, two) = (Arc::new(Topic::new()), Arc::new(Topic::new()));
    let feed = feed(8, Policy::DropOldest, &one);
    assert!(feed.join(&two) && !feed.join(&two), "once is enough");
    one.publish(1);
    two.publish(2);
    one.close();
    assert_eq!((drain(&feed), feed.ended()), (vec![1, 2], None));
    assert!(feed.part(&two) && !feed.part(&two));
    assert_eq!(feed.try_receive(), Err(End::Closed));
    assert!(feed.join(&one), "a topic that has ended ends who joins it");
    assert_eq!(feed.try_receive(), Err(End::Closed));
}

#[test]
fn a_slot_that_was_freed_is_not_taken_from_its_next_tenant() {
    let topic = Arc::new(Topic::new());
    let slow = feed(1, Policy::Disconnect, &topic);
    topic.publish(1);
    topic.publish(2); // out of its slot, which it still remembers
    let next = feed(1, Policy::DropOldest, &topic);
    slow.leave();
    assert_eq!((topic.subscribers(), topic.publish(3)), (1, 1));
    assert_eq!(next.try_receive(), Ok(Some(3)));
}

#[test]
fn a_wake_up_for_each_wait_and_none_without() {
    let count = Arc::new(Counter::default());
    let waker = Waker::from(count.clone());
    let mut cx = Context::from_waker(&waker);
    let topic = Arc::new(Topic::new());
    let feed = feed(8, Policy::DropOldest, &topic);
    assert!(feed.poll_ready(&mut cx).is_pending());
    topic.publish(1);
    topic.publish(2);
    assert_eq!(count.wakes(), 1);
    assert!(feed.poll_ready(&mut cx).is_ready());
    assert_eq!(feed.poll_receive(&mut cx), Poll::Ready(Ok(1)));
    assert_eq!(drain(&feed), [2]);
    assert!(feed.poll_receive(&mut cx).is_pending());
    feed.stop_waiting();
    topic.publish(3);
    assert_eq!(count.wakes(), 1);
    feed.leave();
    assert_eq!(feed.push(4), Pushed::Ended);
}

#[test]
fn a_value_that_publishes_when_it_is_dropped_finds_no_lock_held() {
    #[derive(Clone)]
    struct Loud(Arc<AtomicUsize>, Option<Arc<Topic<Loud>>>);
    impl Drop for Loud {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
            if let Some(topic) = self.1.take() {
                topic.publish(Loud(self.0.clone(), None));
            }
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let topic = Arc::new(Topic::new());
    let feed = feed(1, Policy::DropOldest, &topic);
    topic.publish(Loud(drops.clone(), Some(topic.clone())));
    topic.publish(Loud(drops.clone(), None));
    assert!(drops.load(SeqCst) > 2);
    drop(drain(&feed));
    feed.leave();
}

#[test]
fn a_clone_that_panics_midway_leaves_nobody_asleep_over_a_message() {
    /// Can be cloned so many times.
    struct Rare(Arc<AtomicUsize>);
    impl Clone for Rare {
        fn clone(&self) -> Self {
            let left = self.0.fetch_sub(1, SeqCst);
            assert!(left > 0, "as the test wants it");
            Rare(self.0.clone())
        }
    }
    let count = Arc::new(Counter::default());
    let waker = Waker::from(count.clone());
    let mut cx = Context::from_waker(&waker);
    let topic = Arc::new(Topic::new());
    let full = feed(1, Policy::Disconnect, &topic);
    let feeds: Vec<_> = (0..3).map(|_| feed(8, Policy::DropOldest, &topic)).collect();
    full.push(Rare(Arc::default()));
    assert!(feeds.iter().all(|feed| feed.poll_ready(&mut cx).is_pending()));
    let publish = || topic.publish(Rare(Arc::new(AtomicUsize::new(3))));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(publish)).unwrap_err();
    assert_eq!(feeds.iter().map(|feed| feed.len()).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!(count.wakes(), 2, "who has it is woken");
    assert_eq!((full.ended(), topic.subscribers()), (Some(End::TooSlow), 3));
    // The topic goes on.
    assert_eq!(topic.publish(Rare(Arc::new(AtomicUsize::new(9)))), 3);
    assert_eq!(count.wakes(), 3);
}

#[test]
fn a_receiver_whose_waker_panics_costs_the_others_nothing() {
    let count = Arc::new(Counter::default());
    let (bomb, waker) = (Waker::from(Arc::new(Bomb)), Waker::from(count.clone()));
    for bombs in [&[0][..], &[1], &[2], &[0, 1]] {
        let topic = Arc::new(Topic::new());
        // Its queue is full, so it ends with the publication, and hears that too.
        let ending = feed(1, Policy::Disconnect, &topic);
        ending.push(0);
        let feeds: Vec<_> = (0..3).map(|_| feed(8, Policy::DropOldest, &topic)).collect();
        let wait = || {
            for (place, feed) in feeds.iter().enumerate() {
                let waker = if bombs.contains(&place) { &bomb } else { &waker };
                assert!(feed.poll_ready(&mut Context::from_waker(waker)).is_pending());
            }
            count.0.store(0, SeqCst);
        };
        let catch =
            |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).expect_err("it goes on");
        wait();
        catch(&|| assert!(topic.publish(1) > 0));
        assert_eq!(count.wakes(), 3 - bombs.len(), "{bombs:?}");
        assert!(feeds.iter().all(|feed| drain(feed) == [1]));
        assert_eq!((ending.ended(), topic.subscribers()), (Some(End::TooSlow), 3));
        wait();
        catch(&|| topic.close());
        assert_eq!(count.wakes(), 3 - bombs.len(), "{bombs:?}");
        assert!(feeds.iter().all(|feed| feed.ended() == Some(End::Closed)));
    }
}
