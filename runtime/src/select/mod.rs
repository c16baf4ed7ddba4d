//! Waiting on many: [`select!`](crate::select!), [`join!`](crate::join!), [`race`], [`wait_any`], [`wait_all`].
//!
//! | you have | you want | use |
//! |---|---|---|
//! | some futures, whatever their types | to act on the first that is ready | [`select!`](crate::select!) |
//! | some futures with one output type | the first output | [`race`] |
//! | some futures, whatever their types | all the outputs | [`join!`](crate::join!) |
//! | a slice or an array of one type | the first, or all, perhaps with a deadline | [`wait_any`], [`wait_all`] |
//!
//! Each has a twin with `_async` in its name, for use inside a future. The arms are any [`Future`]s, best *leaves*: the
//! `_async` methods of this crate, timers, join handles. A leaf's effect happens in the poll in which it is ready, so
//! the leaves that do not win have done nothing: a message stays in its channel, and a permit that was on its way to a
//! loser goes to the next in line. An `async` block as an arm is dropped half-way when it loses, with the effects that
//! it has had so far.
//!
//! Nothing here allocates, however many futures there are: they are pinned on the caller's stack, in lists whose types
//! name their contents.

mod any;
mod arms;
mod join;
mod race;

pub use any::{
    wait_all, wait_all_async, wait_all_into, wait_all_into_async, wait_all_until, wait_all_until_async, wait_any,
    wait_any_async, wait_any_until, wait_any_until_async,
};
#[cfg(feature = "sim")]
pub(crate) use arms::draw_from;
pub use race::{First, FirstOf, Race, race, race_async};

/// The expansion of the macros. Not for use by hand, and not stable.
#[doc(hidden)]
pub mod __private {
    pub use super::arms::{
        Arm, End as NoArm, Order, Taken, after, by, next, next_now, next_until, wait, wait_now, wait_until,
    };
    pub use super::join::{End as NoPart, Part, all, wait as wait_all};
}

/// Waits for the first of several futures, drops the others, and then runs the body that belongs to it.
///
/// ```
/// use std::time::Duration;
/// osier::run(|| {
///     let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
///     let mut worker = osier::spawn(move || {
///         sender.send("hello").unwrap();
///         osier::sleep(Duration::from_millis(5));
///     });
///     let mut greetings = 0;
///     loop {
///         osier::select! {
///             message = receiver.recv(), if greetings == 0 => match message {
///                 Some(text) => greetings += text.len(),
///                 None => break,
///             },
///             outcome = &mut worker => {
///                 outcome.expect("the worker does not panic");
///                 break;
///             }
///             timeout Duration::from_secs(60) => panic!("nothing has happened for a minute"),
///         }
///     }
/// #   assert!(greetings == 0 || greetings == 5);
/// });
/// ```
///
/// # Arms
///
/// | arm | meaning |
/// |---|---|
/// | `pattern = future => body` | waits for the future; its output is bound to the pattern, which must match whatever comes: errors and hang-ups are values, and `match` in the body tells them apart |
/// | `pattern = future, if condition => body` | as above if the condition is true; else the arm is not there, and its future is not made |
/// | `timeout duration => body` | runs when none was ready for so long; an `Option<Duration>` may be `None`, which is for ever |
/// | `until instant => body` | runs when none was ready by then; an `Option<Instant>` may be `None`, which is never |
/// | `timeout duration, if condition => body`, `until instant, if condition => body` | as above if the condition is true; else the arm is not there |
/// | `default => body` | runs when none is ready now: nothing is waited for |
///
/// At most one of `timeout`, `until` and `default` may stand. The other arms may be any in number and type, and the same
/// source may be in several. A comma follows a body that is not a block. The value is that of the body that has run.
///
/// When several futures are ready at once, each has its turn: the polling starts at another arm each time. With
/// `biased;` before the arms it always starts at the first.
///
/// A call inside an arm that suspends, such as [`sleep`](crate::sleep) in an `async` block, suspends the fiber in the
/// middle of a poll: no other arm and no time limit is looked at meanwhile. Use the call's `_async` twin.
///
/// The futures are made in the order in which they are written. They are gone before a body runs, so a body may use the
/// values that they borrowed, and `?`, `return`, `break` and `continue` work in it.
///
/// # Suspends
///
/// Until an arm is ready; with `default`, never for an arm. Blocks the thread when called on a plain one. In a future
/// use [`select_async!`](crate::select_async!).
///
/// # Cancellation
///
/// Unwinds, and drops the futures of all arms. [`timeout`](crate::timeout) ends it in the same way; a `timeout` arm
/// does not unwind.
///
/// # Precision
///
/// The precision of [`sleep`](crate::sleep): never early, up to a few milliseconds late. A future that is ready by then
/// wins.
///
/// # Panics
///
/// If one of the futures does; the others are dropped. If no arm is there, because no condition is true, and there is
/// neither `default` nor a `timeout` or `until` that ever comes. Where nothing may wait: in a future's poll or a callback, on a worker.
#[macro_export]
macro_rules! select {
    ($($arms:tt)*) => { $crate::__select!(@order blocking; $($arms)*) };
}

/// Selects as [`select!`](crate::select!) does, inside a future: it awaits instead of blocking. The bodies may await
/// too.
///
/// ```
/// use std::time::Duration;
/// osier::run(|| osier::block_on(async {
///     let (sender, receiver) = tokio::sync::oneshot::channel();
///     osier::spawn(move || sender.send(7));
///     let number = osier::select_async! {
///         number = receiver => number.expect("the sender sends before it is dropped"),
///         timeout Duration::from_secs(60) => 0,
///     };
///     assert_eq!(number, 7);
/// }));
/// ```
///
/// # Cancellation
///
/// Dropping the future that it is in drops the futures of all arms.
///
/// # Panics
///
/// If one of the futures does; the others are dropped. If no arm is there, because no condition is true, and there is
/// neither `default` nor a `timeout` or `until` that ever comes.
#[macro_export]
macro_rules! select_async {
    ($($arms:tt)*) => { $crate::__select!(@order awaiting; $($arms)*) };
}

/// Reads the arms one by one, then writes the wait and the bodies.
///
/// The state of the reading: `(face order) [timeout, until or default] [arms read so far]`, and the arms to come.
#[doc(hidden)]
#[macro_export]
macro_rules! __select {
    (@order $face:ident; biased; $($arms:tt)*) => { $crate::__select!(@arm ($face Biased) [] [] $($arms)*) };
    (@order $face:ident; $($arms:tt)*) => { $crate::__select!(@arm ($face Fair) [] [] $($arms)*) };

    // The head of the next arm.
    (@arm $how:tt [] []) => { ::core::compile_error!("select! without arms") };
    (@arm ($face:ident $order:ident) $else:tt $arms:tt) => { $crate::__select!(@$face $order $else $arms) };
    (@arm $how:tt $else:tt $arms:tt default => $($rest:tt)+) => {
        $crate::__select!(@body $how $else $arms (default) $($rest)+)
    };
    // A pattern of one token, perhaps named `timeout` or `until`.
    (@arm $how:tt $else:tt $arms:tt $output:tt = $($rest:tt)+) => {
        $crate::__select!(@leaf $how $else $arms $output = $($rest)+)
    };
    (@arm $how:tt $else:tt $arms:tt timeout $limit:expr, if $condition:expr => $($rest:tt)+) => {
        $crate::__select!(@body $how $else $arms
            (until {
                if $condition { $crate::select::__private::after($limit) } else { ::core::option::Option::None }
            })
            $($rest)+)
    };
    (@arm $how:tt $else:tt $arms:tt timeout $limit:expr => $($rest:tt)+) => {
        $crate::__select!(@body $how $else $arms (until { $crate::select::__private::after($limit) }) $($rest)+)
    };
    (@arm $how:tt $else:tt $arms:tt until $deadline:expr, if $condition:expr => $($rest:tt)+) => {
        $crate::__select!(@body $how $else $arms
            (until {
                if $condition { $crate::select::__private::by($deadline) } else { ::core::option::Option::None }
            })
            $($rest)+)
    };
    (@arm $how:tt $else:tt $arms:tt until $deadline:expr => $($rest:tt)+) => {
        $crate::__select!(@body $how $else $arms (until { $crate::select::__private::by($deadline) }) $($rest)+)
    };
    (@arm $how:tt $else:tt $arms:tt $($rest:tt)+) => { $crate::__select!(@leaf $how $else $arms $($rest)+) };
    (@leaf $how:tt $else:tt $arms:tt $output:pat = $leaf:expr, if $condition:expr => $($rest:tt)+) => {
        $crate::__select!(@body $how $else $arms
            (arm { $output } {
                if $condition {
                    ::core::option::Option::Some(::core::future::IntoFuture::into_future($leaf))
                } else {
                    ::core::option::Option::None
                }
            })
            $($rest)+)
    };
    (@leaf $how:tt $else:tt $arms:tt $output:pat = $leaf:expr => $($rest:tt)+) => {
        $crate::__select!(@body $how $else $arms
            (arm { $output } (::core::option::Option::Some(::core::future::IntoFuture::into_future($leaf))))
            $($rest)+)
    };

    // Its body.
    (@body $how:tt $else:tt $arms:tt $head:tt $body:block, $($rest:tt)*) => {
        $crate::__select!(@read $how $else $arms $head { $body } $($rest)*)
    };
    (@body $how:tt $else:tt $arms:tt $head:tt $body:block $($rest:tt)*) => {
        $crate::__select!(@read $how $else $arms $head { $body } $($rest)*)
    };
    (@body $how:tt $else:tt $arms:tt $head:tt $body:expr, $($rest:tt)*) => {
        $crate::__select!(@read $how $else $arms $head { $body } $($rest)*)
    };
    (@body $how:tt $else:tt $arms:tt $head:tt $body:expr) => {
        $crate::__select!(@read $how $else $arms $head { $body })
    };
    (@read $how:tt $else:tt [$($arms:tt)*] (arm $output:tt $leaf:tt) $body:tt $($rest:tt)*) => {
        $crate::__select!(@arm $how $else [$($arms)* ($output $leaf $body)] $($rest)*)
    };
    (@read $how:tt [] $arms:tt ($($head:tt)+) $body:tt $($rest:tt)*) => {
        $crate::__select!(@arm $how [$($head)+ $body] $arms $($rest)*)
    };
    (@read $how:tt $else:tt $arms:tt $head:tt $body:tt $($rest:tt)*) => {
        ::core::compile_error!("select! takes one of `timeout`, `until` and `default`, once")
    };

    // The wait. The outer `let` ends the futures' borrows before the bodies begin.
    (@blocking $order:ident [] $arms:tt) => {{
        let taken = $crate::__select!(@pin $arms arms
            $crate::select::__private::wait(arms, $crate::select::__private::Order::$order));
        $crate::__select!(@taken taken $arms)
    }};
    (@blocking $order:ident [until $deadline:tt $body:tt] $arms:tt) => {{
        let deadline = $deadline;
        let taken = $crate::__select!(@pin $arms arms
            $crate::select::__private::wait_until(arms, $crate::select::__private::Order::$order, deadline));
        $crate::__select!(@taken_or taken $arms $body)
    }};
    (@blocking $order:ident [default $body:tt] $arms:tt) => {{
        let taken = $crate::__select!(@pin $arms arms
            $crate::select::__private::wait_now(arms, $crate::select::__private::Order::$order));
        $crate::__select!(@taken_or taken $arms $body)
    }};
    (@awaiting $order:ident [] $arms:tt) => {{
        let taken = $crate::__select!(@pin $arms arms
            $crate::select::__private::next(arms, $crate::select::__private::Order::$order).await);
        $crate::__select!(@taken taken $arms)
    }};
    (@awaiting $order:ident [until $deadline:tt $body:tt] $arms:tt) => {{
        let deadline = $deadline;
        let taken = $crate::__select!(@pin $arms arms
            $crate::select::__private::next_until(arms, $crate::select::__private::Order::$order, deadline).await);
        $crate::__select!(@taken_or taken $arms $body)
    }};
    (@awaiting $order:ident [default $body:tt] $arms:tt) => {{
        let taken = $crate::__select!(@pin $arms arms
            $crate::select::__private::next_now(arms, $crate::select::__private::Order::$order).await);
        $crate::__select!(@taken_or taken $arms $body)
    }};
    // `match` and not `let`: the futures may borrow a temporary.
    (@pin [$(($output:tt $leaf:tt $body:tt))*] $list:ident $wait:expr) => {
        match $crate::__select!(@list $($leaf)*) {
            list => {
                let $list = ::core::pin::pin!(list);
                $wait
            }
        }
    };
    (@list) => { $crate::select::__private::NoArm };
    (@list $leaf:tt $($rest:tt)*) => {
        $crate::select::__private::Arm::new($leaf, $crate::__select!(@list $($rest)*))
    };

    // The bodies.
    (@taken_or $taken:ident $arms:tt $body:expr) => {
        match $taken {
            ::core::option::Option::Some(taken) => $crate::__select!(@taken taken $arms),
            ::core::option::Option::None => $body,
        }
    };
    (@taken $taken:ident []) => { match $taken {} };
    (@taken $taken:ident [({ $output:pat } $leaf:tt { $body:expr }) $($rest:tt)*]) => {
        match $taken {
            // A `match` of its own, so that the compiler names the pattern that is missing (`None`) and not the types in here.
            $crate::select::__private::Taken::First(output) => match output {
                $output => $body,
            },
            $crate::select::__private::Taken::Rest(taken) => $crate::__select!(@taken taken [$($rest)*]),
        }
    };
}
