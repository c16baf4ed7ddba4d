//! The directories of a simulated disk: names of files and directories, and a journal of the changes that are not durable.
//!
//! ```text
//!   now = durable + journal          a crash leaves: durable + a first part of the journal
//! ```
//!
//! The journal keeps its order, as that of a file system does: a change is durable only if every earlier one is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path};

use rustix::io::Errno;

/// The number of a file or a directory of a disk, never used again.
pub(crate) type Number = u64;

/// The directory that holds all others.
pub(super) const ROOT: Number = 0;
/// The changes that a journal holds. With one more, the oldest becomes durable.
const JOURNAL: usize = 4096;

/// The directories by their number.
type Tree = BTreeMap<Number, BTreeMap<OsString, Number>>;

/// A step of a change.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    /// A directory without entries exists.
    Make(Number),
    /// A directory exists no more.
    Unmake(Number),
    /// A name in a directory stands for something else than before, or for nothing.
    Name(Number, OsString, Option<Number>),
}

pub(super) struct Names {
    now: Tree,
    durable: Tree,
    /// Each change happens as a whole.
    journal: VecDeque<Vec<Edit>>,
}

/// The place that a path leads to.
pub(super) struct Place {
    /// The directories on the way. The last one holds the name.
    trail: Vec<Number>,
    /// `None` if the path leads to a directory by dots.
    pub(super) name: Option<OsString>,
    /// The file or directory at the place, if there is one.
    pub(super) found: Option<Number>,
}

impl Place {
    /// The directory that holds the name.
    pub(super) fn parent(&self) -> Number {
        self.trail.last().copied().unwrap_or(ROOT)
    }

    /// Whether the way to the place leads through a directory.
    pub(super) fn is_below(&self, directory: Number) -> bool {
        self.trail.contains(&directory)
    }

    /// The file or directory at the place.
    pub(super) fn number(&self) -> io::Result<Number> {
        self.found.ok_or_else(|| Errno::NOENT.into())
    }

    /// The name at the place, which is to be changed.
    pub(super) fn name(&self) -> io::Result<OsString> {
        self.name.clone().ok_or_else(|| Errno::BUSY.into())
    }

    /// The change after which the name stands for `number`.
    pub(super) fn edit(&self, number: Option<Number>) -> io::Result<Edit> {
        Ok(Edit::Name(self.parent(), self.name()?, number))
    }
}

impl Names {
    pub(super) fn new() -> Names {
        let root = Tree::from([(ROOT, BTreeMap::new())]);
        Names {
            now: root.clone(),
            durable: root,
            journal: VecDeque::new(),
        }
    }

    /// Follows a path from the root; the working directory of every host is the root.
    pub(super) fn find(&self, path: &Path) -> io::Result<Place> {
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT.into());
        }
        let mut place = Place {
            trail: vec![ROOT],
            name: None,
            found: Some(ROOT),
        };
        for component in path.components() {
            if place.name.take().is_some() {
                let number = place.number()?;
                if !self.is_directory(number) {
                    return Err(Errno::NOTDIR.into());
                }
                place.trail.push(number);
            }
            match component {
                Component::Normal(name) => {
                    place.found = self.now[&place.parent()].get(name).copied();
                    place.name = Some(name.to_owned());
                }
                Component::ParentDir => {
                    if place.trail.len() > 1 {
                        place.trail.pop();
                    }
                    place.found = Some(place.parent());
                }
                Component::CurDir | Component::RootDir | Component::Prefix(_) => place.found = Some(place.parent()),
            }
        }
        Ok(place)
    }

    pub(super) fn is_directory(&self, number: Number) -> bool {
        self.now.contains_key(&number)
    }

    /// The entries of a directory, by name.
    pub(super) fn entries(&self, directory: Number) -> impl ExactSizeIterator<Item = (&OsStr, Number)> {
        let entries = self.now[&directory].iter();
        entries.map(|(name, &number)| (name.as_os_str(), number))
    }

    /// Makes a change, which a crash undoes until it is synced.
    pub(super) fn change(&mut self, change: Vec<Edit>) {
        apply(&mut self.now, &change);
        self.journal.push_back(change);
        if self.journal.len() > JOURNAL {
            self.commit(1);
        }
    }

    /// Makes a directory durable, with every change before its last one.
    pub(super) fn sync(&mut self, directory: Number) {
        let touches = |edit: &Edit| match edit {
            Edit::Make(number) | Edit::Unmake(number) | Edit::Name(number, ..) => *number == directory,
        };
        let last = self.journal.iter().rposition(|change| change.iter().any(touches));
        self.commit(last.map_or(0, |last| last + 1));
    }

    /// Makes the first changes of the journal durable.
    fn commit(&mut self, count: usize) {
        for change in self.journal.drain(..count) {
            apply(&mut self.durable, &change);
        }
    }

    /// The number of changes that are not durable.
    pub(super) fn unsynced(&self) -> usize {
        self.journal.len()
    }

    /// Undoes the changes that are not durable but the first `kept` ones.
    pub(super) fn crash(&mut self, kept: usize) {
        self.commit(kept);
        self.journal.clear();
        self.now = self.durable.clone();
    }

    /// The numbers that have a name now.
    pub(super) fn named(&self) -> BTreeSet<Number> {
        self.now.values().flat_map(BTreeMap::values).copied().collect()
    }

    /// The numbers that have a name now, or may have one after a crash.
    pub(super) fn reachable(&self) -> BTreeSet<Number> {
        let mut all = self.named();
        all.extend(self.durable.values().flat_map(BTreeMap::values));
        all.extend(self.journal.iter().flatten().filter_map(|edit| match edit {
            Edit::Name(_, _, number) => *number,
            Edit::Make(_) | Edit::Unmake(_) => None,
        }));
        all
    }
}

fn apply(tree: &mut Tree, change: &[Edit]) {
    for edit in change {
        match edit {
            Edit::Make(number) => drop(tree.insert(*number, BTreeMap::new())),
            Edit::Unmake(number) => drop(tree.remove(number)),
            Edit::Name(directory, name, number) => {
                let Some(entries) = tree.get_mut(directory) else {
                    continue;
                };
                match number {
                    Some(number) => drop(entries.insert(name.clone(), *number)),
                    None => drop(entries.remove(name)),
                }
            }
        }
    }
}
