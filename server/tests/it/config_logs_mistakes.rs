//! Mistakes in the settings of both logs.

use crate::config_check::{check, mistakes};
use crate::config_logs::{FILES, SITE};

#[test]
fn mistakes_in_the_settings_of_logs() {
    for (text, expected) in [
        (
            "log = \"$cleint $status\"",
            "1:7: 'log' cannot be \"$cleint $status\": there is no field 'cleint'; did you mean 'client'?",
        ),
        (
            "log = { file = \"l\", format = \"$host $dration_ms\" }",
            "1:30: 'format' cannot be \"$host $dration_ms\": there is no field 'dration_ms'; did you mean 'duration_ms'?",
        ),
        (
            "log = '\"$host|$path'",
            "1:7: 'log' cannot be \"\\\"$host|$path\": a '\"' without a second one; write the closing quote",
        ),
        ("log = \"jsn\"", "did you mean \"json\"?"),
        (
            "log = { format = \"json\", fields = [\"time\", \"statu\"] }",
            "1:44: 'fields' cannot be \"statu\": there is no field 'statu'; did you mean 'status'?",
        ),
        (
            "log = { format = \"combined\", fields = [\"time\"] }",
            "'fields' is for format = \"json\"",
        ),
        ("log = { format = \"off\" }", "write log = false for none"),
        (
            "log = { file = \"l\", syslog = \"127.0.0.1:514\" }",
            "a log has one destination",
        ),
        (
            "log = { fiel = \"l\" }",
            "unknown key 'fiel' in [log]; did you mean 'file'?",
        ),
        ("error_log = { level = \"warn\" }", "did you mean \"warning\"?"),
        (
            "error_log = { format = \"xml\" }",
            "'format' must be one of \"text\", \"json\"",
        ),
        ("error_log = { file = \"none/l\" }", "there is no folder 'DIR/none'"),
        (
            "error_log = { file = \"l\", journald = true }",
            "'journald' is for lines on standard error",
        ),
        (
            "error_log = { syslog = \"127.0.0.1\" }",
            "write the path of a socket, \"/dev/log\", or a host and a UDP port",
        ),
        (
            "error_log = { syslog = { to = \"[::1]:514\", facility = \"local8\" } }",
            "'facility' must be one of",
        ),
        ("error_log = { syslog = { tag = \"x\" } }", "'to'"),
        (
            "error_log = { syslog = { to = \"a:1\", tag = \"a b\" } }",
            "'tag' cannot be \"a b\"",
        ),
        ("error_log = true", "'error_log' must be a table, not true"),
    ] {
        let found = mistakes(&format!("{text}\n{SITE}{FILES}"));
        assert!(found.len() == 1 && found[0].contains(expected), "{text}: {found:?}");
    }
    let found = mistakes(&format!(
        "{SITE}request_id = {{ respons = true }}\n{FILES}error_log = {{}}\n"
    ));
    assert!(found[0].contains("did you mean 'response'?"), "{found:?}");
    assert!(found[1].contains("it belongs to the top of the file"), "{found:?}");
}

#[test]
fn a_syslog_socket_that_is_not_there_is_a_warning() {
    let (status, printed) = check(&format!("error_log = {{ syslog = \"unix:none\" }}\n{SITE}{FILES}"));
    assert_eq!(status, 0, "{printed}");
    assert!(
        printed.contains("there is no socket 'DIR/none'; lines wait until a syslog daemon has made it"),
        "{printed}"
    );
}
