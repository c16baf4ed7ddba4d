//! A scope's children: cancelled while they start, and waited for while they leave.

use super::*;
use loom::cell::UnsafeCell;
use osier_queue::Group;

/// Waits as a scope's parent does; returns whether it had to.
fn wait(group: &Group) -> bool {
    let mut waiter = pin!(group.waiter());
    let mut waited = false;
    block_on(poll_fn(|cx| {
        let polled = group.poll_empty(waiter.as_mut(), cx);
        waited |= polled.is_pending();
        polled
    }));
    waited
}

#[test]
fn a_child_sees_the_end_or_is_woken_to_see_it() {
    // Outcomes: 1, it starts and is woken; 0, it does not start and may have been woken for nothing.
    model("group: cancel races start", Some(3), &[0, 1], || {
        let shared = Arc::new((Group::default(), Notify::new()));
        shared.0.enter();
        let child = {
            let shared = shared.clone();
            thread::spawn(move || {
                let started = shared.0.start(7);
                if started {
                    loop {
                        shared.1.wait(); // a deadlock if neither saw the other: a fiber at rest does not look by itself
                        if shared.0.is_cancelled() {
                            break;
                        }
                    }
                }
                shared.0.leave(Some(7));
                started as usize
            })
        };
        shared.0.cancel(|word| {
            assert_eq!(word, 7);
            shared.1.notify();
        });
        wait(&shared.0);
        child.join().unwrap()
    });
}

/// A variable that a child borrows from its parent. Loom reports an access that is not ordered before the parent's.
struct Frame(UnsafeCell<usize>);

// SAFETY: the models' claim is that the children and the parent take turns; loom checks it.
unsafe impl Sync for Frame {}

/// One child to each number: which cell of the frame it writes. The parent takes them back when it has waited.
fn parent_and_children(name: &'static str, preemptions: Option<usize>, children: usize) {
    model(name, preemptions, &[0, 1], move || {
        let group = Arc::new(Group::default());
        let frame = Arc::new([Frame(UnsafeCell::new(0)), Frame(UnsafeCell::new(0))]);
        let threads: Vec<_> = (0..children)
            .map(|child| {
                group.enter();
                let (group, frame) = (group.clone(), frame.clone());
                thread::spawn(move || {
                    // SAFETY: the parent has not gone on, the claim that is checked; the cell is this child's.
                    frame[child].0.with_mut(|cell| unsafe { *cell = 1 });
                    drop(frame);
                    // Last, and upon the count of its own: the parent may be gone before this returns.
                    group.leave(None);
                })
            })
            .collect();
        let waited = wait(&group) as usize;
        drop(group);
        for cell in &frame[..children] {
            // SAFETY: every child has left.
            cell.0.with_mut(|cell| unsafe {
                assert_eq!(*cell, 1, "the parent went on before its child had ended");
                *cell = 0;
            });
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        waited
    });
}

#[test]
fn the_parent_goes_on_after_its_child_and_always() {
    parent_and_children("group: leave races wait", None, 1);
}

#[test]
fn the_last_of_two_children_lets_the_parent_go() {
    parent_and_children("group: two leave, one waits", Some(3), 2);
}
