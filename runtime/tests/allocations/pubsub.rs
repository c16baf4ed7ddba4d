//! A publication allocates nothing for subscribers that keep up. The allocator counts on the one worker's thread.

use std::sync::Arc;
use testkit::allocations as counting;

use osier::Runtime;
use osier::pubsub::{Policy, Topic};

#[test]
fn neither_publishing_nor_receiving_allocates() {
    Runtime::builder().workers(1).build().unwrap().run(|| {
        let topic = Topic::new();
        let mut subscribers: Vec<_> = (0..100).map(|_| topic.subscribe(8, Policy::DropOldest)).collect();
        let waiting: Vec<_> = (0..100)
            .map(|_| {
                let mut subscriber = topic.subscribe(8, Policy::DropOldest);
                osier::spawn_local(move || while subscriber.recv().is_ok() {})
            })
            .collect();
        let message: Arc<str> = "willow".into();
        let mut round = || {
            assert_eq!(topic.publish(message.clone()), 200);
            for subscriber in &mut subscribers {
                assert!(subscriber.recv().is_ok());
            }
            osier::yield_now();
        };
        (0..100).for_each(|_| round());
        let before = counting::allocations();
        (0..1000).for_each(|_| round());
        assert_eq!(counting::allocations() - before, 0);
        drop(subscribers);
        drop(topic);
        waiting.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
}
