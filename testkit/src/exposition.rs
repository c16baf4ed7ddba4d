//! A strict parser of Prometheus' text format 0.0.4, for pages of metrics.
//!
//! It panics at everything that the format does not allow, and at what `promtool check metrics` complains about: a counter whose
//! name does not end with `_total`, a label `quantile` or `le` where it does not belong, a family or a sample that comes twice.

use std::collections::{BTreeMap, HashMap, HashSet};

/// Names and values, in the order of their names.
pub type Labels = Vec<(String, String)>;

/// A parsed page: the families by name.
#[derive(Debug)]
pub struct Page(pub BTreeMap<String, Family>);

/// One family of a page.
#[derive(Debug, Default)]
pub struct Family {
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// The line of help.
    pub help: String,
    /// Name, labels and value of each sample.
    pub samples: Vec<(String, Labels, f64)>,
}

impl Page {
    /// Parses a page.
    ///
    /// # Panics
    ///
    /// Panics if the page is not well-formed.
    pub fn parse(page: &str) -> Page {
        assert!(page.ends_with('\n') && !page.contains("\n\n"));
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut seen = HashSet::new();
        let mut current = String::new();
        let mut lines = page.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
                let family = Family::new(name, kind, help);
                assert!(families.insert(name.into(), family).is_none(), "{name} twice");
                current = name.into();
                continue;
            }
            assert!(!line.starts_with('#'), "{line}");
            let (name, labels, value) = sample(line);
            let family = families
                .get_mut(&current)
                .unwrap_or_else(|| panic!("{line} has no family"));
            assert!(seen.insert((name.clone(), labels.clone())), "twice: {line}");
            family.add(&current, name, labels, value);
        }
        for (name, family) in &families {
            if family.kind == "histogram" {
                family.check_histogram(name);
            }
        }
        Page(families)
    }

    /// The value of the first sample of this name that has these labels, and perhaps others.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fits = |known: &Labels| {
            let mut wanted = labels.iter();
            wanted.all(|(label, value)| known.iter().any(|(l, v)| l == label && v == value))
        };
        let ends = ["", "_bucket", "_sum", "_count"];
        let mut families = ends.iter().filter_map(|end| self.0.get(name.strip_suffix(end)?));
        let found = families.find_map(|family| {
            family
                .samples
                .iter()
                .find(|(sample, known, _)| sample == name && fits(known))
        });
        found.map(|(.., value)| *value)
    }

    /// The number of samples.
    pub fn samples(&self) -> usize {
        self.0.values().map(|family| family.samples.len()).sum()
    }
}

impl Family {
    fn new(name: &str, kind: &str, help: &str) -> Family {
        assert!(is_name(name) && !help.is_empty(), "{name}");
        assert!(["counter", "gauge", "histogram"].contains(&kind), "{name}: {kind}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
        let reserved = ["_bucket", "_sum", "_count"];
        assert!(!reserved.iter().any(|end| name.ends_with(end)), "{name}");
        Family {
            kind: kind.into(),
            help: help.into(),
            samples: Vec::new(),
        }
    }

    fn add(&mut self, family: &str, name: String, labels: Labels, value: f64) {
        let suffix = name.strip_prefix(family);
        let suffix = suffix.unwrap_or_else(|| panic!("{name} below {family}"));
        let allowed: &[&str] = match &*self.kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        assert!(allowed.contains(&suffix), "{name} below {family}");
        let has = |label: &str| labels.iter().any(|(known, _)| known == label);
        assert!(!has("quantile"), "{name} is no summary");
        assert_eq!(has("le"), suffix == "_bucket", "{name}");
        assert!(
            labels.windows(2).all(|pair| pair[0].0 != pair[1].0),
            "{name} {labels:?}"
        );
        assert!(self.kind == "gauge" || value >= 0.0, "{name} is {value}");
        self.samples.push((name, labels, value));
    }

    /// Checks that bucket counts rise up to the total, and that their bounds rise up to infinity.
    fn check_histogram(&self, name: &str) {
        let mut by_labels: HashMap<Labels, Vec<(f64, f64)>> = HashMap::new();
        let mut totals: HashMap<(&str, &Labels), f64> = HashMap::new();
        for (sample, labels, value) in &self.samples {
            let suffix = &sample[name.len()..];
            if suffix != "_bucket" {
                totals.insert((suffix, labels), *value);
                continue;
            }
            let (bound, others): (Vec<_>, Vec<_>) = labels.iter().cloned().partition(|(label, _)| label == "le");
            let bound = bound[0].1.parse().unwrap();
            by_labels.entry(others).or_default().push((bound, *value));
        }
        assert_eq!(
            totals.len(),
            2 * by_labels.len(),
            "{name} has a sum and a count for each set of labels"
        );
        for (labels, buckets) in by_labels {
            let rises = buckets.is_sorted_by_key(|(_, count)| *count);
            assert!(
                rises && buckets.windows(2).all(|pair| pair[0].0 < pair[1].0),
                "{name}: {buckets:?}"
            );
            assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, totals[&("_count", &labels)]));
            assert!(totals[&("_sum", &labels)] >= 0.0);
        }
    }
}

fn is_name(name: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
}

/// Parses the line of a sample.
fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    while rest.starts_with(['{', ',']) {
        let (label, after) = rest[1..].split_once("=\"").unwrap();
        assert!(is_name(label) && !label.starts_with("__"), "{line}");
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next().unwrap().1 {
                    'n' => '\n',
                    same @ ('\\' | '"') => same,
                    other => panic!("\\{other} in {line}"),
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((label.to_owned(), value));
        rest = &after[end + 1..];
        assert!(rest.starts_with([',', '}']), "{line}");
    }
    let value = rest.strip_prefix('}').unwrap_or(rest).strip_prefix(' ').unwrap();
    labels.sort();
    (name.into(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_page_is_read_and_a_bad_one_is_refused() {
        let page = "# HELP a_total A.\n# TYPE a_total counter\na_total{b=\"x\\\"\\\\\\n\"} 3\na_total 1e3\n";
        let parsed = Page::parse(page);
        assert_eq!(parsed.value("a_total", &[("b", "x\"\\\n")]), Some(3.0));
        assert_eq!((parsed.samples(), parsed.value("a", &[])), (2, None));
        let head = "# HELP g G.\n# TYPE g gauge\n";
        let histogram = "# HELP h H.\n# TYPE h histogram\n";
        for bad in [
            "g 1\n".to_owned(),
            format!("{head}g 1\ng 1\n"),
            format!("{head}{head}"),
            format!("{head}other 1\n"),
            format!("{head}g{{quantile=\"0.5\"}} 1\n"),
            format!("{head}g{{a=\"1\",a=\"2\"}} 1\n"),
            format!("{head}g one\n"),
            "# HELP c C.\n# TYPE c counter\nc 1\n".to_owned(),
            format!("{histogram}h_bucket{{le=\"+Inf\"}} 2\nh_sum 1\nh_count 1\n"),
            format!("{histogram}h_bucket{{le=\"1\"}} 2\nh_bucket{{le=\"+Inf\"}} 1\nh_sum 1\nh_count 1\n"),
            format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_count 1\n"),
        ] {
            let refused = std::panic::catch_unwind(|| Page::parse(&bad));
            assert!(refused.is_err(), "{bad}");
        }
    }
}
