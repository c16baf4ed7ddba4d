//! The rule about circles: modules of a crate that depend on each other.
//!
//! A module depends on another one if its code names it by a path: an import, or a path in the code that begins with
//! `crate`, `self`, `super`, a child module or an imported module. A path through a re-export leads to the module that
//! declares the name; a re-export alone is no dependency of the module that makes it. Tests and comments do not count.
//!
//! Circles are counted folder by folder, between the children of one module. Everything below a child counts as that child.
//! A module and its own children are one idea, so arrows between them make no circle.
//!
//! Two numbers per crate are ratchets: how many rooms (modules right below the root) and how many modules of all folders
//! are in a circle with a sibling.

use super::tokens::{code, group, is_word};
use super::{Verdict, root};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// A crate, and how many of its modules and of its rooms may be in a circle. The numbers only go down.
const CIRCLES: &[(&str, usize, usize)] = &[
    ("runtime", 13, 2),
    ("web", 0, 0),
    ("server", 0, 0),
    ("tls", 0, 0),
    ("http", 0, 0),
    ("coro", 0, 0),
    ("poll", 0, 0),
    ("queue", 0, 0),
    ("xtask", 0, 0),
];

pub fn check() -> Verdict {
    let mut verdict = Verdict::default();
    for (name, modules_limit, rooms_limit) in CIRCLES {
        let krate = Crate::read(&root().join(name).join("src"));
        let [modules, rooms] = krate.circles();
        verdict.looked_at += krate.modules.len();
        for (what, found, limit) in [("modules", modules, *modules_limit), ("rooms", rooms, *rooms_limit)] {
            let count: usize = found.iter().map(BTreeSet::len).sum();
            let sizes: Vec<String> = found.iter().map(|circle| circle.len().to_string()).collect();
            let mut note = format!("{name}: {count} {what} in circles");
            if count > 0 {
                note += &format!(" ({})", sizes.join(" + "));
            }
            if count < limit {
                note += &format!("; the limit, {limit}, can go down");
            }
            if count > 0 || limit > 0 {
                verdict.notes.push(note);
            }
            if count > limit {
                verdict.wrong.push(format!(
                    "{name}: {count} {what} in circles where at most {limit} are allowed:"
                ));
                let shown = found
                    .iter()
                    .map(|circle| circle.iter().cloned().collect::<Vec<_>>().join(" "));
                verdict.wrong.extend(shown);
            }
        }
    }
    verdict
}

/// The modules of a crate. The first one is its root.
struct Crate {
    modules: Vec<Module>,
}

#[derive(Default)]
struct Module {
    /// The names from the root to here; empty for the root.
    path: Vec<String>,
    /// Child modules that are files, by name.
    children: HashMap<String, usize>,
    /// Names of the items that the file declares, its inline modules included.
    declared: HashSet<String>,
    imports: Vec<Import>,
    /// Paths in the code, as written, each with the inline modules around it.
    paths: Vec<(Vec<String>, Vec<String>)>,
    /// How often each word stands in the file, outside of imports.
    words: HashMap<String, usize>,
}

/// One name that a `use` brings.
#[derive(Debug, PartialEq)]
struct Import {
    /// The inline modules around it.
    scope: Vec<String>,
    path: Vec<String>,
    /// The name that it has here; `*` for all of a module.
    name: String,
    is_public: bool,
}

impl Crate {
    /// Reads the modules from the root file in `src` on.
    fn read(src: &Path) -> Crate {
        let roots = ["lib.rs", "main.rs"].map(|name| src.join(name));
        let mut krate = Crate { modules: vec![] };
        if let Some(file) = roots.iter().find(|file| file.exists()) {
            krate.read_module(file, src, vec![]);
        }
        krate
    }

    /// Reads the module in `file`, whose children lie in `dir`.
    fn read_module(&mut self, file: &Path, dir: &Path, path: Vec<String>) -> usize {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let (module, files) = Module::parse(&code(&text), path.clone());
        let index = self.modules.len();
        self.modules.push(module);
        for (name, moved) in files {
            let beside = file.parent().unwrap_or(dir);
            let candidates = match moved {
                Some(moved) => vec![beside.join(moved)],
                None => vec![dir.join(format!("{name}.rs")), dir.join(&name).join("mod.rs")],
            };
            let Some(child) = candidates.into_iter().find(|file| file.exists()) else {
                continue;
            };
            let below: PathBuf = dir.join(&name);
            let path = [&path[..], std::slice::from_ref(&name)].concat();
            let child = self.read_module(&child, &below, path);
            self.modules[index].children.insert(name, child);
        }
        index
    }

    /// The circles between siblings: in all folders, and of the rooms alone.
    fn circles(&self) -> [Vec<BTreeSet<String>>; 2] {
        let arrows = self.arrows();
        let parents = self.modules.iter().filter(|module| !module.children.is_empty());
        let of_children = parents.flat_map(|parent| {
            let name = |module: usize| {
                let below = self.modules[module].path.strip_prefix(&parent.path[..])?;
                Some(
                    [&parent.path[..], std::slice::from_ref(below.first()?)]
                        .concat()
                        .join("::"),
                )
            };
            let between = arrows.iter().filter_map(|(from, to)| Some((name(*from)?, name(*to)?)));
            circles(&between.filter(|(from, to)| from != to).collect::<BTreeSet<_>>())
        });
        let all: Vec<BTreeSet<String>> = of_children.collect();
        let is_room = |circle: &&BTreeSet<String>| circle.iter().all(|name| !name.contains("::"));
        let rooms = all.iter().filter(is_room).cloned().collect();
        [all, rooms]
    }

    /// Which module depends on which.
    fn arrows(&self) -> BTreeSet<(usize, usize)> {
        let mut found = BTreeSet::new();
        for (index, module) in self.modules.iter().enumerate() {
            let imports = module.imports.iter().filter(|import| module.uses(import));
            let written = imports.map(|import| (&import.scope, &import.path));
            for (scope, path) in written.chain(module.paths.iter().map(|(scope, path)| (scope, path))) {
                found.extend(self.resolved(index, scope, path, 0).map(|target| (index, target)));
            }
        }
        found
    }

    /// The module that a path leads to, read in the inline modules `scope` of the module `from`; `None` outside of the crate.
    fn resolved(&self, from: usize, scope: &[String], path: &[String], depth: usize) -> Option<usize> {
        let module = &self.modules[from];
        let mut here = [&module.path[..], scope].concat();
        let rest = match path.first()?.as_str() {
            "crate" => {
                here.clear();
                &path[1..]
            }
            "self" => &path[1..],
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                here.truncate(here.len().checked_sub(ups)?);
                &path[ups..]
            }
            first if module.children.contains_key(first) => path,
            first => {
                let mut imports = module.imports.iter().filter(|import| import.name == first);
                // An import of a name that is spelled the same leads outside: `use libc; libc::read`.
                let import = imports.find(|import| import.path.first().is_some_and(|part| part != first))?;
                let whole = [&import.path[..], &path[1..]].concat();
                return (depth < MOST_STEPS).then(|| self.resolved(from, &import.scope, &whole, depth + 1))?;
            }
        };
        self.descended(&[&here[..], rest].concat(), depth)
    }

    /// The module that a path from the root leads to.
    fn descended(&self, path: &[String], depth: usize) -> Option<usize> {
        let mut at = 0;
        for (done, name) in path.iter().enumerate() {
            let module = &self.modules[at];
            if let Some(child) = module.children.get(name) {
                at = *child;
                continue;
            }
            if depth >= MOST_STEPS || module.declared.contains(name) {
                return Some(at);
            }
            let rest = &path[done + 1..];
            if let Some(import) = module.imports.iter().find(|import| import.name == *name) {
                let whole = [&import.path[..], rest].concat();
                return self.resolved(at, &import.scope, &whole, depth + 1);
            }
            for glob in module.imports.iter().filter(|import| import.name == "*") {
                let target = self.resolved(at, &glob.scope, &glob.path, depth + 1);
                if let Some(target) = target.filter(|target| self.modules[*target].has(name)) {
                    let whole = [&self.modules[target].path[..], std::slice::from_ref(name), rest].concat();
                    return self.descended(&whole, depth + 1);
                }
            }
            return Some(at);
        }
        Some(at)
    }
}

/// How many re-exports a path may go through.
const MOST_STEPS: usize = 8;

impl Module {
    /// Reads the tokens of a file. Also returns its child modules, each with the `#[path]` that it has.
    fn parse(tokens: &[&str], path: Vec<String>) -> (Module, Vec<(String, Option<String>)>) {
        let mut module = Module {
            path,
            ..Module::default()
        };
        let mut files = vec![];
        // The inline modules around `at`, each with the index where it ends.
        let mut scope: Vec<(String, usize)> = vec![];
        let mut moved = None;
        let mut at = 0;
        while at < tokens.len() {
            scope.retain(|(_, end)| at < *end);
            let names: Vec<String> = scope.iter().map(|(name, _)| name.clone()).collect();
            let token = tokens[at];
            let next = tokens.get(at + 1).copied().unwrap_or_default();
            if tokens[at..].starts_with(&["#", "["]) && tokens.get(at + 2) == Some(&"path") {
                moved = tokens.get(at + 4).map(|literal| literal.trim_matches('"').to_string());
            } else if token == "mod" && tokens.get(at + 2) == Some(&";") {
                files.push((next.to_string(), moved.take()));
            } else if token == "mod" && tokens.get(at + 2) == Some(&"{") {
                scope.push((next.to_string(), group(tokens, at + 2)));
                module.declared.insert(next.to_string());
            } else if token == "use" {
                let end = at + tokens[at..].iter().position(|token| *token == ";").unwrap_or(1);
                let is_public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                let mut tree = vec![];
                use_tree(&tokens[at + 1..end], &[], &mut tree);
                module.imports.extend(tree.into_iter().map(|(path, name)| Import {
                    scope: names.clone(),
                    path,
                    name,
                    is_public,
                }));
                at = end;
                continue;
            } else if DECLARATIONS.contains(&token) && is_word(next) && !tokens[..at].ends_with(&["*"]) {
                module.declared.insert(next.to_string());
            } else if token == "macro_rules" {
                module.declared.extend(tokens.get(at + 2).map(ToString::to_string));
            }
            if is_word(token) {
                *module.words.entry(token.to_string()).or_default() += 1;
            }
            let begins = at == 0 || tokens[at - 1] != "::";
            let is_visibility = at > 1 && tokens[at - 1] == "in" && tokens[at - 2] == "(";
            if begins && is_word(token) && next == "::" && !is_visibility {
                module.paths.push((names, written_path(&tokens[at..])));
            }
            at += 1;
        }
        (module, files)
    }

    /// Whether an import is a dependency of the module that has it: a re-export is one if the file also uses the name.
    fn uses(&self, import: &Import) -> bool {
        !import.is_public || self.words.contains_key(&import.name)
    }

    /// Whether the module declares or re-exports the name.
    fn has(&self, name: &String) -> bool {
        let imported = self
            .imports
            .iter()
            .any(|import| import.is_public && import.name == *name);
        self.declared.contains(name) || self.children.contains_key(name) || imported
    }
}

/// The keywords before the name of an item.
const DECLARATIONS: &[&str] = &["fn", "struct", "enum", "union", "trait", "type", "const", "static"];

/// The path that `tokens` begin with: words with `::` between them.
fn written_path(tokens: &[&str]) -> Vec<String> {
    let mut path = vec![];
    for pair in tokens.chunks(2) {
        if !is_word(pair[0]) {
            break;
        }
        path.push(pair[0].to_string());
        if pair.get(1) != Some(&"::") {
            break;
        }
    }
    path
}

/// Adds what the tree behind a `use` brings: each path with the name that it has from now on.
fn use_tree(tokens: &[&str], prefix: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let mut path = prefix.to_vec();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            "{" => {
                let end = group(tokens, at);
                for branch in branches(&tokens[at + 1..end - 1]) {
                    use_tree(branch, &path, found);
                }
                return;
            }
            "*" => return found.push((path, "*".to_string())),
            "as" => {
                let name = tokens.get(at + 1).map_or_else(String::new, ToString::to_string);
                return found.push((path, name));
            }
            // `use a::{self, b}` brings `a`.
            "self" if !path.is_empty() => {}
            word if is_word(word) => path.push(word.to_string()),
            _ => {}
        }
        at += 1;
    }
    if let Some(name) = path.last().cloned() {
        found.push((path, name));
    }
}

/// The parts between the commas that stand in no brackets.
fn branches<'a, 'b>(tokens: &'a [&'b str]) -> Vec<&'a [&'b str]> {
    let mut depth = 0;
    let parts = tokens.split(|token| {
        match *token {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        depth == 0 && *token == ","
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// The sets of names of which each reaches every other one, those of one name left out.
fn circles(arrows: &BTreeSet<(String, String)>) -> Vec<BTreeSet<String>> {
    let mut next: HashMap<&str, Vec<&str>> = HashMap::new();
    for (from, to) in arrows {
        next.entry(from).or_default().push(to);
    }
    let reached: HashMap<&str, HashSet<&str>> = next.keys().map(|from| (*from, reachable(from, &next))).collect();
    let mut found: BTreeSet<BTreeSet<String>> = BTreeSet::new();
    for (from, ends) in &reached {
        let back = ends
            .iter()
            .filter(|end| reached.get(*end).is_some_and(|ends| ends.contains(from)));
        let circle: BTreeSet<String> = back.map(ToString::to_string).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// The names that `from` reaches over at least one arrow.
fn reachable<'a>(from: &str, next: &HashMap<&'a str, Vec<&'a str>>) -> HashSet<&'a str> {
    let mut reached = HashSet::new();
    let mut waiting: Vec<&str> = next.get(from).cloned().unwrap_or_default();
    while let Some(at) = waiting.pop() {
        if reached.insert(at) {
            waiting.extend(next.get(at).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a crate of `(file, text)` and returns its circles by module and by room.
    fn counted(name: &str, files: &[(&str, &str)]) -> [Vec<Vec<String>>; 2] {
        let src = std::env::temp_dir().join(format!("osier-xtask-{name}-{}", std::process::id()));
        for (file, text) in files {
            let file = src.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let krate = Crate::read(&src);
        // Seen to fail once, with everything read already: what stays in the temporary folder hurts nobody.
        let _ = std::fs::remove_dir_all(&src);
        let listed = |circle: BTreeSet<String>| circle.into_iter().collect();
        krate.circles().map(|circles| circles.into_iter().map(listed).collect())
    }

    const NONE: Vec<Vec<String>> = vec![];

    #[test]
    fn imports_and_inline_paths_make_a_circle() {
        let a = ("a.rs", "use crate::b::B; pub struct A;");
        let root = ("lib.rs", "mod a; mod b;");
        let circle = vec![vec!["a".to_string(), "b".to_string()]];
        assert_eq!(
            counted("inline", &[root, a, ("b.rs", "pub struct B; fn f(_: super::a::A) {}")])[0],
            circle
        );
        assert_eq!(
            counted("import", &[root, a, ("b.rs", "use super::a; fn f(_: a::A) {}")])[0],
            circle
        );
        assert_eq!(counted("arrow", &[root, a, ("b.rs", "pub struct B;")])[0], NONE);
    }

    #[test]
    fn tests_comments_and_literals_make_none() {
        let b = "pub struct B; // crate::a::A\n/// [`crate::a::A`]\nconst S: &str = \"crate::a::A\";\n\
                 #[cfg(test)] mod tests { use crate::a::A; }";
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", b),
        ];
        assert_eq!(counted("comments", &files)[0], NONE);
    }

    #[test]
    fn a_reexport_leads_to_where_the_name_is_declared() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; pub use a::A; pub use c::*;"),
            ("a.rs", "pub struct A; use crate::C;"),
            ("b.rs", "use crate::{A, C as D};"),
            ("c.rs", "pub struct C; use crate::A;"),
        ];
        assert_eq!(
            counted("reexport", &files)[0],
            vec![vec!["a".to_string(), "c".to_string()]]
        );
    }

    #[test]
    fn a_parent_and_its_child_are_one_and_siblings_are_two() {
        let files = [
            ("main.rs", "mod a;"),
            ("a/mod.rs", "mod b; mod c; pub struct A; fn f() { b::g() }"),
            ("a/b.rs", "use super::A; pub fn g() {}"),
            ("a/c.rs", ""),
        ];
        assert_eq!(counted("parent", &files), [NONE, NONE]);
        let with = |b, c| [files[0], files[1], ("a/b.rs", b), ("a/c.rs", c)];
        let files = with(
            "use super::c::C; pub fn g() {}",
            "pub struct C; fn h() { super::b::g() }",
        );
        assert_eq!(
            counted("siblings", &files),
            [vec![vec!["a::b".to_string(), "a::c".to_string()]], NONE]
        );
    }

    #[test]
    fn what_is_below_a_room_counts_as_the_room() {
        let files = [
            ("main.rs", "mod a; mod c;"),
            ("a/mod.rs", "mod b;"),
            ("a/b.rs", "use crate::c::C;"),
            ("c.rs", "pub struct C; use crate::a::b;"),
        ];
        let circle = vec![vec!["a".to_string(), "c".to_string()]];
        assert_eq!(counted("rooms", &files), [circle.clone(), circle]);
    }

    #[test]
    fn super_leaves_inline_modules_first() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "pub struct A; mod inner { use super::A; } use crate::b::B;"),
            ("b.rs", "pub struct B; pub mod inner { use super::super::a::A; }"),
        ];
        assert_eq!(counted("inner", &files)[0].len(), 1);
    }

    #[test]
    fn trees_of_imports_are_read() {
        let mut found = vec![];
        use_tree(
            &super::super::tokens::tokens("crate::{a::{self, b as c}, d::*}"),
            &[],
            &mut found,
        );
        let found: Vec<String> = found
            .iter()
            .map(|(path, name)| format!("{} {name}", path.join("/")))
            .collect();
        assert_eq!(found, ["crate/a a", "crate/a/b c", "crate/d *"]);
    }
}
