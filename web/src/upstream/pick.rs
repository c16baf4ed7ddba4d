//! Choices among backends, as pure functions of their weights and loads.
//!
//! A set of backends is a `u64` with a bit for each. No set is empty. Weights are positive numbers in any unit, up to a
//! million, so that their products with loads fit 64 bits. Two calls may see different weights, because a backend that
//! has just come back gains weight.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Maximum backends of an upstream: a set has as many bits.
pub(super) const BACKENDS_MAX: usize = u64::BITS as usize;

/// The step of [`random`]: 2^64 divided by the golden ratio, and odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The members of a set, in ascending order.
pub(super) fn members(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = set.trailing_zeros() as usize;
        (set != 0).then(|| {
            set &= set - 1;
            first
        })
    })
}

/// Chooses by smooth weighted round robin: each member earns its weight, the one with the most
/// credit is chosen, and it pays what all have earned. In as many choices as the weights sum up to,
/// each member is chosen as often as its weight says, and never more than one choice ahead of its
/// share.
///
/// Each worker has credits of its own, unless there are very many workers. Workers that share credits may choose the
/// same member at the same time. That member then waits longer, because no credit is lost.
pub(super) fn smooth(set: u64, credits: &[AtomicI64], weight: impl Fn(usize) -> u64) -> usize {
    let (mut earned, mut richest) = (0, (i64::MIN, 0));
    for index in members(set) {
        let weight = i64::try_from(weight(index)).unwrap_or(i64::MAX);
        let credit = credits[index].fetch_add(weight, Relaxed) + weight;
        earned += weight;
        if credit > richest.0 {
            richest = (credit, index);
        }
    }
    credits[richest.1].fetch_sub(earned, Relaxed);
    richest.1
}

/// The members with the least load for their weight.
pub(super) struct LeastLoaded {
    pub(super) set: u64,
    load: u64,
    weight: u64,
}

impl LeastLoaded {
    /// Divides each load by the weight, and finds the least quotients.
    pub(super) fn of(set: u64, load: impl Fn(usize) -> usize, weight: impl Fn(usize) -> u64) -> LeastLoaded {
        let mut least = LeastLoaded {
            set: 0,
            load: u64::MAX,
            weight: 0,
        };
        for index in members(set) {
            let (load, weight, member) = (load(index) as u64, weight(index), 1 << index);
            match is_less((load, weight), (least.load, least.weight)) {
                true => {
                    least = LeastLoaded {
                        set: member,
                        load,
                        weight,
                    }
                }
                false if is_less((least.load, least.weight), (load, weight)) => {}
                false => least.set |= member,
            }
        }
        least
    }

    /// The highest load with which a backend of this weight is still one of the members.
    pub(super) fn load_at(&self, weight: u64) -> usize {
        usize::try_from(self.load.saturating_mul(weight) / self.weight.max(1)).unwrap_or(usize::MAX)
    }
}

/// Whether the first load is less than the second, both divided by their weights. No weight at all
/// is the highest load.
fn is_less(one: (u64, u64), other: (u64, u64)) -> bool {
    if other.1 == 0 {
        return one.1 > 0;
    }
    one.0.saturating_mul(other.1) < other.0.saturating_mul(one.1)
}

/// Draws two members by weight, and chooses the one with the less load for its weight. `draws` are
/// two random numbers.
pub(super) fn two(set: u64, draws: [u64; 2], load: impl Fn(usize) -> usize, weight: impl Fn(usize) -> u64) -> usize {
    let first = draw(set, draws[0], &weight);
    let rest = set & !(1 << first);
    if rest == 0 {
        return first;
    }
    let second = draw(rest, draws[1], &weight);
    let of = |index: usize| (load(index) as u64, weight(index));
    match is_less(of(second), of(first)) {
        true => second,
        false => first,
    }
}

/// Draws one member. The chance of each is its share of all weights. `random` is a random number.
fn draw(set: u64, random: u64, weight: impl Fn(usize) -> u64) -> usize {
    let sum: u64 = members(set).map(&weight).sum();
    let mut left = ((u128::from(random) * u128::from(sum)) >> 64) as u64;
    let found = members(set).find(|&index| {
        let weight = weight(index);
        let is_here = left < weight;
        left = left.saturating_sub(weight);
        is_here
    });
    // A weight that has just changed may leave something over.
    found.unwrap_or(set.trailing_zeros() as usize)
}

/// A random number. `state` is any number at first.
pub(super) fn random(state: &AtomicU64) -> u64 {
    mix(state.fetch_add(STEP, Relaxed))
}

/// Chooses by a key, with weighted rendezvous hashing: each member draws a time from the key and its
/// own seed, exponentially distributed with its weight as the rate, and the earliest is chosen. A
/// member that leaves thus moves no key but its own, and each share is that of the weight (Thaler and
/// Ravishankar 1998; Schindelhauer and Schomaker 2005).
pub(super) fn by_key(set: u64, key: u64, seed: impl Fn(usize) -> u64, weight: impl Fn(usize) -> u64) -> usize {
    let mut earliest = (f64::INFINITY, set.trailing_zeros() as usize);
    for index in members(set) {
        // A number of 53 random bits, above 0 and below 1.
        let uniform = ((mix(key ^ seed(index)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        let time = -uniform.ln() / weight(index) as f64;
        if time < earliest.0 {
            earliest = (time, index);
        }
    }
    earliest.1
}

/// Hashes bytes: FNV-1a, mixed. The result is the same in every process, so that all servers in front of
/// the same backends choose alike, also after a restart.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    mix(fnv1a(bytes))
}

/// The 64-bit FNV-1a hash. It is the same in every process.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// The finalizer of SplitMix64: each bit of the result depends on all bits.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn credits(count: usize) -> Vec<AtomicI64> {
        (0..count).map(|_| AtomicI64::new(0)).collect()
    }

    fn all(count: usize) -> u64 {
        u64::MAX >> (64 - count)
    }

    /// The choices as letters.
    fn choices(set: u64, weights: &[u64], credits: &[AtomicI64], count: usize) -> String {
        let letter = |_| char::from(b'a' + smooth(set, credits, |index| weights[index]) as u8);
        (0..count).map(letter).collect()
    }

    #[test]
    fn round_robin_interleaves() {
        assert_eq!(choices(0b111, &[1, 1, 1], &credits(3), 7), "abcabca");
        assert_eq!(choices(0b111, &[5, 1, 1], &credits(3), 14), "aabacaaaabacaa");
        assert_eq!(choices(0b111, &[4, 2, 1], &credits(3), 7), "abacaba");
    }

    #[test]
    fn round_robin_keeps_the_weights_of_the_others_when_one_is_out() {
        let (weights, credits) = ([3, 2, 1], credits(3));
        choices(0b111, &weights, &credits, 4);
        let without = choices(0b101, &weights, &credits, 400);
        let share = without.matches('a').count();
        assert!((299..=301).contains(&share) && !without.contains('b'), "{without}");
        let again = choices(0b111, &weights, &credits, 600);
        let counts = ['a', 'b', 'c'].map(|letter| again.matches(letter).count());
        assert!(
            counts
                .iter()
                .zip([300, 200, 100])
                .all(|(got, want)| got.abs_diff(want) <= 2),
            "what was missed is not made up for: {counts:?}"
        );
    }

    #[test]
    fn loads_are_divided_by_weights() {
        let least = |set, loads: &[usize], weights: &[u64]| LeastLoaded::of(set, |i| loads[i], |i| weights[i]);
        assert_eq!(least(0b111, &[2, 1, 1], &[1, 1, 1]).set, 0b110);
        assert_eq!(least(0b101, &[2, 1, 1], &[1, 1, 1]).set, 0b100);
        assert_eq!(least(0b111, &[2, 1, 1], &[3, 1, 1]).set, 0b001);
        assert_eq!(least(0b11, &[4, 2], &[2, 1]).set, 0b11);
        assert_eq!(least(0b11, &[0, 0], &[9, 1]).set, 0b11, "idle ones are equal");
        let least = least(0b11, &[6, 5], &[3, 1]);
        assert_eq!((least.load_at(3), least.load_at(1)), (6, 2));
    }

    #[test]
    fn of_two_the_less_loaded_is_taken_and_weights_draw() {
        let state = AtomicU64::new(1);
        let draws = || [random(&state), random(&state)];
        // With two members both are drawn.
        for _ in 0..100 {
            assert_eq!(two(0b101, draws(), |index| [1, 0, 0][index], |_| 1), 2);
        }
        let mut counts = [0_i32; 3];
        for _ in 0..60_000 {
            counts[draw(0b111, random(&state), |index| [3, 2, 1][index])] += 1;
        }
        for (count, want) in counts.iter().zip([30_000, 20_000, 10_000]) {
            assert!((count - want).abs() < 700, "{counts:?}");
        }
        assert_eq!(two(0b100, draws(), |_| 9, |_| 1), 2, "one alone");
    }

    /// The owners of many keys.
    fn owners(set: u64, weights: &[u64]) -> Vec<usize> {
        let seeds: Vec<u64> = (0..weights.len())
            .map(|index| hash(format!("10.0.0.{index}:80").as_bytes()))
            .collect();
        let owner = |key: u64| {
            by_key(
                set,
                hash(&key.to_le_bytes()),
                |index| seeds[index],
                |index| weights[index],
            )
        };
        (0..20_000).map(owner).collect()
    }

    #[test]
    fn keys_are_spread_by_weight() {
        let weights = [1, 2, 3, 4];
        let owners = owners(0b1111, &weights);
        for (index, weight) in weights.iter().enumerate() {
            let share = owners.iter().filter(|owner| **owner == index).count() as i64;
            // Six standard deviations of the most uncertain one.
            assert!((share - *weight as i64 * 2000).abs() < 420, "{index}: {share}");
        }
    }

    #[test]
    fn a_backend_that_goes_or_comes_moves_its_own_keys_only() {
        let weights = [2, 1, 1, 3, 1];
        let with = owners(0b11111, &weights);
        for gone in 0..5 {
            let without = owners(0b11111 & !(1 << gone), &weights);
            let is_lawful = |(with, without): (&usize, &usize)| match *with == gone {
                true => *without != gone,
                false => with == without,
            };
            assert!(with.iter().zip(&without).all(is_lawful), "{gone}");
        }
    }

    #[test]
    fn a_growing_weight_only_attracts_keys() {
        let mut before = owners(0b111, &[1000, 1000, 1]);
        for weight in [10, 100, 500, 1000] {
            let now = owners(0b111, &[1000, 1000, weight]);
            let moved = before.iter().zip(&now).filter(|(before, now)| before != now);
            assert!(
                moved.clone().count() > 0 && { moved }.all(|(_, now)| *now == 2),
                "{weight}"
            );
            before = now;
        }
    }

    #[test]
    fn hashes_stay_as_they_are() {
        // Servers of different versions must choose alike, and cookies must outlive an update.
        assert_eq!(hash(b""), 0xf52a_15e9_a9b5_e89b);
        assert_eq!(hash(b"127.0.0.1:3000"), 0x29b7_d76c_ece2_2347);
    }

    proptest! {
        #[test]
        fn round_robin_is_fair_and_smooth(weights in prop::collection::vec(1..=20_u64, 1..=9)) {
            let (set, credits) = (all(weights.len()), credits(weights.len()));
            let sum: u64 = weights.iter().sum();
            let mut counts = vec![0; weights.len()];
            for turn in 1..=2 * sum {
                counts[smooth(set, &credits, |index| weights[index])] += 1;
                for (count, weight) in counts.iter().zip(&weights) {
                    // The share so far is turn * weight / sum.
                    prop_assert!(count * sum < turn * weight + sum, "ahead of its share by less than one");
                }
                if turn % sum == 0 {
                    let expected: Vec<u64> = weights.iter().map(|weight| weight * (turn / sum)).collect();
                    prop_assert_eq!(&counts, &expected);
                }
            }
        }

        #[test]
        fn every_choice_is_a_member(
            set in 1..u64::MAX,
            draws in any::<[u64; 2]>(),
            key in any::<u64>(),
            weights in prop::collection::vec(1..=1_000_000_u64, 64),
            loads in prop::collection::vec(0..100_000_usize, 64),
        ) {
            let (weight, load) = (|index: usize| weights[index], |index: usize| loads[index]);
            let is_member = |index: usize| set & (1 << index) != 0;
            prop_assert!(is_member(smooth(set, &credits(64), weight)));
            prop_assert!(is_member(two(set, draws, load, weight)));
            prop_assert!(is_member(by_key(set, key, |index| index as u64, weight)));
            let least = LeastLoaded::of(set, load, weight);
            prop_assert!(least.set != 0 && least.set & !set == 0);
            for index in members(least.set) {
                prop_assert_eq!(least.load_at(weight(index)), load(index));
                for other in members(set) {
                    prop_assert!(load(index) as u64 * weight(other) <= load(other) as u64 * weight(index));
                }
            }
        }
    }
}
