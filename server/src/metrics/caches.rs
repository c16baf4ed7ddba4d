//! The metrics of caches: sums over the stores of a snapshot. They are zero without a store.

use osier_web::wrap::cache::Stats;

use super::Shown;
use super::text::Text;

/// Writes the families of caches.
pub fn write(shown: &Shown, text: &mut Text) {
    let stores: Vec<Stats> = shown.stores.iter().map(|store| store.stats()).collect();
    let sum = |number: fn(&Stats) -> u64| stores.iter().map(number).sum::<u64>();
    text.family(
        "osier_cache_requests_total",
        "counter",
        "Requests at caches, by what they met. A request that waited for the fetch of another is a miss too, and so is one that got a stale response after a failed fetch.",
    );
    for (result, count) in [
        ("hit", sum(|stats| stats.hits)),
        ("stale", sum(|stats| stats.stale)),
        ("miss", sum(|stats| stats.misses)),
        ("collapsed", sum(|stats| stats.collapsed)),
        ("bypass", sum(|stats| stats.bypassed)),
    ] {
        text.sample("", &[("result", result)], count);
    }
    text.family(
        "osier_cache_changes_total",
        "counter",
        "Responses that caches have stored, confirmed by a backend's 304, dropped to make room, or removed by a purge or an unsafe method.",
    );
    for (event, count) in [
        ("stored", sum(|stats| stats.stored)),
        ("validated", sum(|stats| stats.validated)),
        ("evicted", sum(|stats| stats.evicted)),
        ("purged", sum(|stats| stats.purged)),
    ] {
        text.sample("", &[("event", event)], count);
    }
    let places = [
        (
            "osier_cache_responses",
            "Stored responses, by place.",
            [sum(|stats| stats.entries), sum(|stats| stats.disk_entries)],
        ),
        (
            "osier_cache_bytes",
            "Bytes of stored responses, by place.",
            [sum(|stats| stats.bytes), sum(|stats| stats.disk_bytes)],
        ),
    ];
    for (name, help, numbers) in places {
        text.family(name, "gauge", help);
        for (place, number) in ["memory", "disk"].into_iter().zip(numbers) {
            text.sample("", &[("place", place)], number);
        }
    }
}
