//! The metrics of chats, by route. A snapshot without a chat has no samples.

use std::collections::BTreeMap;

use osier_web::chat::Stats;

use super::Shown;
use super::text::Text;

type Family = (&'static str, &'static str, &'static str, fn(&Stats) -> u64);

const FAMILIES: [Family; 5] = [
    (
        "osier_chat_rooms",
        "gauge",
        "Chat rooms that have guests in this process.",
        |stats| stats.rooms as u64,
    ),
    ("osier_chat_guests", "gauge", "Guests in chat rooms.", |stats| {
        stats.guests as u64
    }),
    (
        "osier_chat_lines_total",
        "counter",
        "Lines that guests of a chat have sent.",
        |stats| stats.lines,
    ),
    (
        "osier_chat_rejected_lines_total",
        "counter",
        "Lines that a chat has rejected because they were too long or came too fast.",
        |stats| stats.rejected,
    ),
    (
        "osier_chat_slow_guests_total",
        "counter",
        "Guests that a chat has disconnected because they did not take what others said.",
        |stats| stats.slow,
    ),
];

/// Writes the families of chats. Routes with the same names share their series.
pub fn write(shown: &Shown, text: &mut Text) {
    let mut chats: BTreeMap<(&str, &str), Vec<Stats>> = BTreeMap::new();
    for rooms in &shown.chats {
        let names = (&*rooms.site, &*rooms.route);
        chats.entry(names).or_default().push(rooms.chat.stats());
    }
    for (name, kind, help, number) in FAMILIES {
        text.family(name, kind, help);
        for ((site, route), stats) in &chats {
            let sum: u64 = stats.iter().map(number).sum();
            text.sample("", &[("site", site), ("route", route)], sum);
        }
    }
}
