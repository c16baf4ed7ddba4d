//! Topics: published and received by fibers, threads, futures, callbacks and descriptors.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use osier::Runtime;
use osier::callbacks::{IoQueue, Status};
use osier::pubsub::{Policy, Pushed, RecvError, Subscriber, Topic, TryRecvError};
use osier::sync::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const LONG: Duration = Duration::from_secs(20);

#[test]
fn every_subscriber_gets_every_message_in_one_order_whoever_publishes() {
    const PUBLISHERS: usize = 4;
    const EACH: usize = 500;
    let seen = Runtime::builder().workers(3).build().unwrap().run(|| {
        let topic = Topic::new();
        let mut readers = Vec::new();
        for _ in 0..6 {
            let mut subscriber = topic.subscribe(PUBLISHERS * EACH, Policy::Disconnect);
            readers.push(osier::spawn(move || subscriber.iter().collect::<Vec<usize>>()));
        }
        let publish = |from: usize, topic: Topic<usize>| {
            move || (0..EACH).for_each(|n| assert_eq!(topic.publish(from * EACH + n), 6))
        };
        let mut publishers: Vec<_> = (0..PUBLISHERS - 1)
            .map(|from| osier::spawn(publish(from, topic.clone())))
            .collect();
        let thread = thread::spawn(publish(PUBLISHERS - 1, topic));
        publishers.drain(..).for_each(|fiber| fiber.join().unwrap());
        osier::unblock(move || thread.join().unwrap());
        readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(seen[0].len(), PUBLISHERS * EACH);
    assert!(seen.iter().all(|one| *one == seen[0]), "one order for all");
    for from in 0..PUBLISHERS {
        let own: Vec<_> = seen[0].iter().filter(|n| *n / EACH == from).collect();
        assert!(own.is_sorted(), "and for each publisher its own");
    }
}

#[test]
fn a_slow_subscriber_loses_what_its_policy_says_and_nobody_waits() {
    let topic = Topic::new();
    let mut latest = topic.subscribe(2, Policy::DropOldest);
    let mut first = topic.subscribe(2, Policy::DropNewest);
    let mut strict = topic.subscribe(2, Policy::Disconnect);
    assert_eq!([1, 2, 3].map(|n| topic.publish(n)), [3, 3, 1]);
    let drain = |subscriber: &mut Subscriber<i32>| {
        let got: Vec<_> = subscriber.try_iter().collect();
        (got, subscriber.dropped())
    };
    assert_eq!(drain(&mut latest), (vec![2, 3], 1));
    assert_eq!(drain(&mut first), (vec![1, 2], 1));
    assert_eq!(drain(&mut strict), (vec![1, 2], 1));
    assert_eq!(strict.recv(), Err(RecvError::TooSlow));
    assert_eq!((topic.subscribers(), topic.published(), topic.dropped()), (2, 3, 3));
    drop(latest);
    assert_eq!((topic.subscribers(), topic.publish(4)), (1, 1));
    drop(topic);
    assert_eq!((first.recv(), first.recv()), (Ok(4), Err(RecvError::Closed)));
}

#[test]
fn it_waits_in_select_beside_another_and_loses_nothing() {
    osier::run(|| {
        let topic = Topic::new();
        let mut subscriber = topic.subscribe(128, Policy::DropOldest);
        let other = Event::new();
        let mut got = Vec::new();
        let (mut signals, mut quiet) = (0, 0);
        let publisher = osier::spawn_local({
            let topic = topic.clone();
            move || {
                for n in 0..100 {
                    topic.publish(n);
                    if n % 7 == 0 {
                        osier::yield_now();
                    }
                }
            }
        });
        while got.len() < 100 {
            other.set(); // ready each time, so the receive is dropped often
            osier::select! {
                message = subscriber.recv_async() => got.push(message.unwrap()),
                () = other.wait_async() => { signals += 1; osier::yield_now(); },
                timeout LONG => { quiet += 1; break },
            }
        }
        publisher.join().unwrap();
        assert!(got.is_sorted() && quiet == 0 && signals > 0, "{got:?}");
        assert_eq!((subscriber.len(), subscriber.dropped()), (0, 0));
    });
}

#[test]
fn it_calls_back_through_a_queue_of_callbacks() {
    let queue = IoQueue::new(0).unwrap();
    let topic = Topic::new();
    let mut subscriber = topic.subscribe(8, Policy::DropOldest);
    let (report, reports) = mpsc::channel();
    let wait = async move {
        let message = subscriber.recv_async().await;
        (subscriber, message)
    };
    queue
        .when(wait, move |status, outcome| {
            report.send((status, outcome.unwrap().1)).unwrap()
        })
        .unwrap();
    let publisher = thread::spawn(move || topic.publish("osier"));
    while reports
        .try_recv()
        .map(|report| assert_eq!(report, (Status::Done, Ok("osier"))))
        .is_err()
    {
        queue.iterate().unwrap();
    }
    publisher.join().unwrap();
}

fn is_readable(fd: &impl std::os::fd::AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&at_once)).unwrap() == 1
}

#[test]
fn its_descriptor_is_readable_exactly_while_there_is_a_message() {
    let topic = Topic::new();
    let early = topic.subscribe(8, Policy::DropOldest);
    topic.publish(0);
    assert_eq!(early.len(), 1);
    let mut subscriber = early.with_fd().unwrap();
    assert!(is_readable(&subscriber), "also what came before there was a descriptor");
    topic.publish(1);
    assert_eq!(subscriber.try_recv(), Ok(0));
    assert!(is_readable(&subscriber));
    assert_eq!(subscriber.try_recv(), Ok(1));
    assert!(!is_readable(&subscriber));
    assert_eq!(subscriber.try_recv(), Err(TryRecvError::Empty));

    let publisher = thread::spawn({
        let topic = topic.clone();
        move || topic.publish(2)
    });
    assert_eq!(poll(&mut [PollFd::new(&subscriber, PollFlags::IN)], None).unwrap(), 1);
    publisher.join().unwrap();
    assert_eq!(subscriber.recv(), Ok(2), "the blocking face of the same one");
    assert!(!is_readable(&subscriber));
    topic.publish(3);
    assert!(is_readable(&subscriber), "armed again after a wait");
    assert_eq!(subscriber.try_recv(), Ok(3));
    drop(topic);
    assert!(is_readable(&subscriber), "the end is something to be reports");
    assert_eq!(subscriber.recv(), Err(RecvError::Closed));
    let mut plain = subscriber.into_inner();
    assert_eq!(plain.try_recv(), Err(TryRecvError::Ended(RecvError::Closed)));
}

#[test]
fn a_poller_of_ours_waits_for_the_descriptor_too() {
    osier::run(|| {
        let topic = Topic::new();
        let mut subscriber = topic.subscribe(8, Policy::DropOldest).with_fd().unwrap();
        let publisher = osier::spawn(move || {
            crate::given::others_wait();
            topic.publish(7)
        });
        osier::io::readable(&subscriber, None).unwrap();
        assert_eq!(subscriber.try_recv(), Ok(7));
        publisher.join().unwrap();
    });
}

#[test]
fn one_queue_serves_several_topics_and_direct_messages() {
    let (rooms, lobby) = (Topic::new(), Topic::new());
    let mut subscriber = Subscriber::new(8, Policy::DropOldest);
    let inlet = subscriber.inlet();
    assert!(subscriber.join(&rooms) && inlet.join(&lobby) && !inlet.join(&lobby));
    rooms.publish(1);
    lobby.publish(2);
    assert_eq!(inlet.push(3), Pushed::Queued);
    assert!(subscriber.leave(&rooms) && !subscriber.leave(&rooms));
    assert_eq!((rooms.publish(4), lobby.publish(5)), (0, 1));
    let got: Vec<i32> = std::iter::from_fn(|| subscriber.try_recv().ok()).collect();
    assert_eq!(got, [1, 2, 3, 5]);
    drop(lobby);
    assert_eq!(subscriber.ended(), None, "there is an inlet");
    drop(inlet.clone());
    drop(inlet);
    assert_eq!(subscriber.recv(), Err(RecvError::Closed));
    let inlet = subscriber.inlet();
    drop(subscriber);
    assert_eq!(
        (inlet.push(6), inlet.is_over(), rooms.subscribers()),
        (Pushed::Ended, true, 0)
    );
}

#[test]
fn subscribers_come_and_go_while_others_publish() {
    Runtime::builder().workers(3).build().unwrap().run(|| {
        let topic = Topic::new();
        let end = Arc::new(Event::manual());
        let publishers: Vec<_> = (0..2)
            .map(|_| {
                let (topic, end) = (topic.clone(), end.clone());
                osier::spawn(move || {
                    while !end.is_set() {
                        topic.publish(Arc::new([1_u8; 64]));
                        osier::yield_now();
                    }
                })
            })
            .collect();
        let visitors: Vec<_> = (0..16)
            .map(|_| {
                let topic = topic.clone();
                osier::spawn(move || {
                    for bound in 1..50 {
                        let mut subscriber = topic.subscribe(bound, Policy::DropOldest);
                        (0..bound.min(5)).for_each(|_| assert_eq!(*subscriber.recv().unwrap(), [1; 64]));
                    }
                })
            })
            .collect();
        visitors.into_iter().for_each(|visitor| visitor.join().unwrap());
        end.set();
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
        assert_eq!(topic.subscribers(), 0);
    });
}

#[test]
fn a_cancelled_wait_loses_no_message() {
    osier::run(|| {
        let topic = Topic::new();
        let mut subscriber = topic.subscribe(8, Policy::DropOldest);
        assert_eq!(subscriber.recv_timeout(Duration::from_millis(1)), Ok(None));
        assert!(osier::timeout(Duration::from_millis(1), || subscriber.recv()).is_err());
        topic.publish(1);
        assert_eq!(subscriber.recv_timeout(LONG), Ok(Some(1)));
    });
}
