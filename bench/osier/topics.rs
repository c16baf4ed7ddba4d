//! Osier: many topics with a few subscribers each, on one worker. Arguments: FIGURE TOPICS.
//!
//! It prints the bytes of one subscriber, and, if the figure is `delivery`, the CPU time of one delivery: a message is published on one topic
//! after the other, and each subscriber receives it.
#![forbid(unsafe_code)]

use osier::pubsub::{Policy, Subscriber, Topic};

const SUBSCRIBERS: usize = 10;

/// The deliveries that are counted, whatever the number of topics is.
const DELIVERIES: usize = 2_000_000;

fn main() -> std::io::Result<()> {
    let topics: usize = std::env::args()
        .nth(2)
        .and_then(|text| text.parse().ok())
        .expect("arguments: FIGURE TOPICS");
    osier::Runtime::builder().workers(1).build()?.run(|| {
        let before = measure::memory();
        let topics: Vec<Topic<u64>> = (0..topics).map(|_| Topic::new()).collect();
        let mut subscribers: Vec<Vec<Subscriber<u64>>> = topics.iter().map(subscribed).collect();
        measure::print_memory("subscriber", before, topics.len() * SUBSCRIBERS);
        // The queues get their memory.
        deliver(&topics, &mut subscribers);
        let rounds = (DELIVERIES / SUBSCRIBERS / topics.len()).max(1);
        let deliveries = rounds * topics.len() * SUBSCRIBERS;
        measure::print_mass("delivery", deliveries as u32, |_| {
            for _ in 0..rounds {
                deliver(&topics, &mut subscribers);
            }
        });
    });
    Ok(())
}

fn subscribed(topic: &Topic<u64>) -> Vec<Subscriber<u64>> {
    (0..SUBSCRIBERS)
        .map(|_| topic.subscribe(16, Policy::DropOldest))
        .collect()
}

fn deliver(topics: &[Topic<u64>], subscribers: &mut [Vec<Subscriber<u64>>]) {
    for (number, topic) in topics.iter().enumerate() {
        assert_eq!(topic.publish(number as u64), SUBSCRIBERS);
    }
    for (number, subscribers) in subscribers.iter_mut().enumerate() {
        for subscriber in subscribers {
            assert_eq!(subscriber.recv(), Ok(number as u64));
        }
    }
}
