//! The topic: no wake-up is lost, subscribers agree on the order, and who leaves leaves nothing behind.

use super::*;
use osier_queue::topic::{End, Feed, Policy, Pushed, Topic};
use std::sync::Arc as StdArc;

type Shared = StdArc<Topic<usize>>;

fn topic() -> Shared {
    StdArc::new(Topic::new())
}

fn feed(bound: usize, policy: Policy, topic: &Shared) -> StdArc<Feed<usize>> {
    let feed = StdArc::new(Feed::new(bound, policy, 0));
    assert!(feed.join(topic));
    feed
}

/// Returns the message, and 1 if it had to wait.
fn receive(feed: &Feed<usize>) -> (Result<usize, End>, usize) {
    let mut waited = 0;
    let got = block_on(poll_fn(|cx| {
        let polled = feed.poll_receive(cx);
        waited |= polled.is_pending() as usize;
        polled
    }));
    (got, waited)
}

fn publish(topic: &Shared, value: usize) -> thread::JoinHandle<usize> {
    let topic = topic.clone();
    thread::spawn(move || topic.publish(value))
}

#[test]
fn a_message_wakes_its_receiver() {
    model("topic: publish races receive", None, &[0, 1], || {
        let topic = topic();
        let feed = feed(1, Policy::DropOldest, &topic);
        let publisher = publish(&topic, 7);
        let (got, waited) = receive(&feed);
        assert_eq!(got, Ok(7));
        assert_eq!(publisher.join().unwrap(), 1);
        waited
    });
}

#[test]
fn two_subscribers_see_two_publishers_in_one_order() {
    // Outcomes: which message came first, for both.
    model("topic: one order", Some(2), &[1, 2], || {
        let topic = topic();
        let feeds = [(); 2].map(|()| feed(2, Policy::DropOldest, &topic));
        let other = publish(&topic, 1);
        topic.publish(2);
        other.join().unwrap();
        let seen = feeds.map(|feed| [feed.try_receive(), feed.try_receive()]);
        assert_eq!(seen[0], seen[1]);
        seen[0][0].unwrap().unwrap()
    });
}

#[test]
fn a_subscriber_that_leaves_is_forgotten() {
    // Outcomes: whether it got the message before it left.
    model("topic: leave races publish", None, &[0, 1], || {
        let topic = topic();
        let feed = feed(1, Policy::DropOldest, &topic);
        let publisher = publish(&topic, 7);
        feed.leave();
        let taken = publisher.join().unwrap();
        assert_eq!(topic.subscribers(), 0);
        assert_eq!(StdArc::strong_count(&feed), 1, "the topic keeps nothing of it");
        assert!(feed.is_empty());
        taken
    });
}

#[test]
fn a_join_that_comes_too_late_does_nothing() {
    // Outcomes: whether the join was in time.
    model("topic: join races leave", None, &[0, 1], || {
        let topic = topic();
        let feed = StdArc::new(Feed::new(1, Policy::DropOldest, 1));
        let joiner = thread::spawn({
            let (topic, feed) = (topic.clone(), feed.clone());
            move || feed.join(&topic)
        });
        feed.leave();
        let joined = joiner.join().unwrap();
        assert_eq!((topic.subscribers(), topic.publish(1)), (0, 0));
        assert_eq!(StdArc::strong_count(&feed), 1);
        joined as usize
    });
}

#[test]
fn of_two_joins_of_one_topic_one_subscribes() {
    // Outcomes: who came first.
    model("topic: join races join", None, &[0, 1], || {
        let topic = topic();
        let feed = StdArc::new(Feed::new(4, Policy::DropOldest, 1));
        let joiner = thread::spawn({
            let (topic, feed) = (topic.clone(), feed.clone());
            move || feed.join(&topic)
        });
        let first = feed.join(&topic);
        assert_ne!(first, joiner.join().unwrap());
        assert_eq!((topic.subscribers(), topic.publish(1), feed.len()), (1, 1, 1));
        assert!(feed.part(&topic) && !feed.part(&topic));
        assert_eq!(topic.subscribers(), 0);
        first as usize
    });
}

#[test]
fn who_parts_and_joins_again_gets_a_message_once() {
    // Outcomes: whether the join found that the feed had parted.
    model("topic: part races join", None, &[0, 1], || {
        let topic = topic();
        let feed = feed(4, Policy::DropOldest, &topic);
        let parter = thread::spawn({
            let (topic, feed) = (topic.clone(), feed.clone());
            move || assert!(feed.part(&topic))
        });
        let joined = feed.join(&topic);
        assert!(topic.publish(1) <= 1 && feed.len() <= 1);
        parter.join().unwrap();
        assert_eq!(topic.subscribers(), joined as usize);
        joined as usize
    });
}

#[test]
fn the_end_of_a_topic_is_heard_after_its_last_message() {
    model("topic: close races receive", None, &[0, 1], || {
        let topic = topic();
        let feed = feed(2, Policy::DropOldest, &topic);
        let closer = thread::spawn({
            let topic = topic.clone();
            move || {
                topic.publish(1);
                topic.close();
            }
        });
        let (first, waited) = receive(&feed);
        assert_eq!((first, receive(&feed).0), (Ok(1), Err(End::Closed)));
        closer.join().unwrap();
        waited
    });
}

#[test]
fn one_that_is_too_slow_hears_so_and_is_out() {
    // Outcomes: how many messages it got.
    model("topic: disconnect", Some(3), &[1, 2], || {
        let topic = topic();
        let feed = feed(1, Policy::Disconnect, &topic);
        let publisher = thread::spawn({
            let topic = topic.clone();
            move || topic.publish(1) + topic.publish(2)
        });
        assert_eq!(receive(&feed).0, Ok(1));
        let taken = publisher.join().unwrap();
        if taken == 2 {
            assert_eq!(feed.try_receive(), Ok(Some(2)));
            assert_eq!((topic.subscribers(), topic.dropped()), (1, 0));
        } else {
            assert_eq!(feed.try_receive(), Err(End::TooSlow));
            assert_eq!((topic.subscribers(), feed.dropped(), topic.dropped()), (0, 1, 1));
        }
        taken
    });
}

#[test]
fn pushes_from_two_sides_are_counted_once_each() {
    // Outcomes: which of the two is left of those that were pushed.
    model("feed: drop oldest", None, &[1, 2], || {
        let topic = topic();
        let feed = feed(1, Policy::DropOldest, &topic);
        let publisher = publish(&topic, 1);
        assert_ne!(feed.push(2), Pushed::Ended);
        publisher.join().unwrap();
        assert_eq!((feed.len(), feed.dropped()), (1, 1));
        feed.try_receive().unwrap().unwrap()
    });
}
