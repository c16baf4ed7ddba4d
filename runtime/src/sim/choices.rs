//! The choices of a run. Each is drawn from the seed, has a number, and can be left out to make the run simpler.
//!
//! A choice is a number below a bound. 0 is the plain one: the fiber that is ready longest, the least latency, no fault. A [`Plan`] says
//! which choices keep their drawn value; the others become 0. The generator advances either way, so two plans draw the same value for
//! one number as long as their runs are the same before it.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A generator of pseudorandom numbers: SplitMix64, by Steele, Lea and Flood (2014).
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u32
    }
}

/// The subject of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum About {
    Order,
    Latency,
    Fault,
    Size,
    Listener,
    Disk,
}

impl About {
    fn as_str(self) -> &'static str {
        match self {
            About::Order => "order",
            About::Latency => "latency",
            About::Fault => "fault",
            About::Size => "size",
            About::Listener => "listener",
            About::Disk => "disk",
        }
    }
}

/// A schedule: a seed, and which of its choices count.
///
/// Its text is that of the environment variable `OSIER_SEED`: the seed, and after a slash the numbers of the choices that count
/// when not all do.
///
/// ```
/// use osier::sim::Schedule;
///
/// let schedule: Schedule = "7/3,19".parse().unwrap();
/// assert_eq!((schedule.seed(), schedule.to_string().as_str()), (7, "7/3,19"));
/// assert!("seven".parse::<Schedule>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    seed: u64,
    plan: Plan,
}

/// Which choices are as drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    All,
    Only(BTreeSet<u32>),
}

impl Schedule {
    pub(crate) fn with(seed: u64, plan: Plan) -> Schedule {
        Schedule { seed, plan }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of choices that count, if not all do.
    pub fn choices(&self) -> Option<usize> {
        match &self.plan {
            Plan::All => None,
            Plan::Only(kept) => Some(kept.len()),
        }
    }
}

impl From<u64> for Schedule {
    fn from(seed: u64) -> Schedule {
        Schedule { seed, plan: Plan::All }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seed)?;
        let Plan::Only(kept) = &self.plan else { return Ok(()) };
        f.write_str("/")?;
        for (index, choice) in kept.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{choice}")?;
        }
        Ok(())
    }
}

impl FromStr for Schedule {
    type Err = InvalidSchedule;

    fn from_str(text: &str) -> Result<Schedule, InvalidSchedule> {
        let wrong = |_| InvalidSchedule(text.to_owned());
        let (seed, kept) = match text.split_once('/') {
            None => (text, None),
            Some((seed, kept)) => (seed, Some(kept)),
        };
        let seed = seed.trim().parse().map_err(wrong)?;
        let plan = match kept {
            None => Plan::All,
            Some("") => Plan::Only(BTreeSet::new()),
            Some(kept) => Plan::Only(
                kept.split(',')
                    .map(|choice| choice.trim().parse().map_err(wrong))
                    .collect::<Result<_, _>>()?,
            ),
        };
        Ok(Schedule { seed, plan })
    }
}

/// A text that is no [`Schedule`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSchedule(String);

impl fmt::Display for InvalidSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a schedule: write SEED or SEED/CHOICE,CHOICE", self.0)
    }
}

impl std::error::Error for InvalidSchedule {}

/// The choices that a run makes.
pub(crate) struct Choices {
    rng: Rng,
    plan: Plan,
    /// The choices so far that were not 0, and how many there were of all.
    made: Vec<(u32, About)>,
    count: u32,
    /// Numbers for the program, which no shrinking changes.
    user: Rng,
}

impl Choices {
    pub(crate) fn new(schedule: &Schedule) -> Choices {
        let mut rng = Rng::new(schedule.seed);
        let user = Rng::new(rng.next());
        Choices {
            rng,
            plan: schedule.plan.clone(),
            made: Vec::new(),
            count: 0,
            user,
        }
    }

    /// Draws a number below `bound`.
    pub(crate) fn draw(&mut self, about: About, bound: u32) -> u32 {
        if bound <= 1 {
            return 0;
        }
        let drawn = self.rng.below(bound);
        self.note(about, drawn)
    }

    /// Draws whether an event happens that has a chance of one in `times`; 0 stands for never.
    pub(crate) fn once_in(&mut self, about: About, times: u32) -> bool {
        if times == 0 {
            return false;
        }
        let drawn = u32::from(self.rng.below(times) == 0);
        self.note(about, drawn) == 1
    }

    fn note(&mut self, about: About, drawn: u32) -> u32 {
        let number = self.count;
        self.count += 1;
        let counts = match &self.plan {
            Plan::All => true,
            Plan::Only(kept) => kept.contains(&number),
        };
        if drawn == 0 || !counts {
            return 0;
        }
        self.made.push((number, about));
        drawn
    }

    pub(crate) fn random(&mut self) -> u64 {
        self.user.next()
    }

    /// The numbers of the choices that were not 0, and how many choices there were.
    pub(crate) fn made(&self) -> (Vec<u32>, u32) {
        (self.made.iter().map(|&(number, _)| number).collect(), self.count)
    }

    /// The choices that were not 0, counted by what they were about.
    pub(crate) fn kinds(&self) -> String {
        let mut counts = std::collections::BTreeMap::new();
        for (_, about) in &self.made {
            *counts.entry(*about).or_insert(0) += 1;
        }
        let texts: Vec<_> = counts
            .into_iter()
            .map(|(about, count)| format!("{count} {}", about.as_str()))
            .collect();
        texts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_leaves_the_other_choices_as_they_were() {
        let drawn = |plan| {
            let mut choices = Choices::new(&Schedule::with(1, plan));
            (0..50).map(|_| choices.draw(About::Order, 9)).collect::<Vec<_>>()
        };
        let all = drawn(Plan::All);
        let some = drawn(Plan::Only([3, 4, 40].into()));
        let expected = |number: usize| if [3, 4, 40].contains(&number) { all[number] } else { 0 };
        assert_eq!(some, (0..50).map(expected).collect::<Vec<_>>());
        assert!(all.contains(&8));
    }

    #[test]
    fn a_schedule_reads_what_it_writes() {
        for text in ["0", "18446744073709551615", "5/", "5/1,2,30"] {
            assert_eq!(text.parse::<Schedule>().unwrap().to_string(), text);
        }
        for text in ["", "x", "5/x", "5/1,,2", "-1"] {
            assert!(
                text.parse::<Schedule>().unwrap_err().to_string().contains("SEED"),
                "{text}"
            );
        }
    }
}
