//! Completions for bash, zsh and fish, made from the help text.

use super::help::{Flag, Help};

/// The completion of bash: a function that fills `COMPREPLY`.
pub fn bash(help: &Help) -> String {
    let mut cases = String::new();
    for flag in help.options.iter().filter(|flag| flag.value.is_some()) {
        let forms: Vec<&str> = flag.forms().collect();
        let action = match flag.choices() {
            choices if !choices.is_empty() => {
                format!(
                    "mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$cur\")",
                    choices.join(" ")
                )
            }
            _ if flag.takes_file() => "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")".into(),
            _ => ":".into(),
        };
        cases += &format!("        {}) {action}; return ;;\n", forms.join(" | "));
    }
    let options: Vec<&str> = help.options.iter().flat_map(Flag::forms).collect();
    let (options, commands) = (options.join(" "), help.names().join(" "));
    format!(
        r#"# Completion of bash for osier(1), made from "osier --help".
_osier() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}}
    COMPREPLY=()
    # Bash takes "--option=value" for three words.
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $prev == "=" ]]; then
        prev=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    case $prev in
{cases}    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W '{options}' -- "$cur")
        return
    fi
    compopt -o filenames
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    if ((COMP_CWORD == 1)); then
        mapfile -t -O ${{#COMPREPLY[@]}} COMPREPLY < <(compgen -W '{commands}' -- "$cur")
    fi
}}
complete -F _osier osier
"#
    )
}

/// The completion of zsh: a file `_osier` for its `fpath`.
pub fn zsh(help: &Help) -> String {
    let mut specs = String::new();
    for flag in &help.options {
        let about = zsh_escaped(&flag.about);
        let value = flag.value.as_deref().map(|name| {
            let action = match flag.choices() {
                choices if !choices.is_empty() => format!("({})", choices.join(" ")),
                _ if flag.takes_file() => "_files".into(),
                _ => " ".into(),
            };
            format!(":{}:{action}", zsh_escaped(name))
        });
        let ends = |form: &str| match value {
            Some(_) if form.starts_with("--") => format!("{form}="),
            _ => form.to_string(),
        };
        let forms: Vec<String> = flag.forms().map(ends).collect();
        let others: Vec<&str> = flag.forms().collect();
        let excluded = match flag.is_repeatable() {
            true => "*".into(),
            false => format!("({})", others.join(" ")),
        };
        let forms = match &forms[..] {
            [one] => format!("'{excluded}{one}[{about}]"),
            more => format!("'{excluded}'{{{}}}'[{about}]", more.join(",")),
        };
        specs += &format!("    {forms}{}' \\\n", value.unwrap_or_default());
    }
    let commands = help.names().join(" ");
    format!(
        "#compdef osier\n# Completion of zsh for osier(1), made from \"osier --help\".\n_arguments -s -S \\\n{specs}    \
         '1: :{{_alternative \"commands:command:({commands})\" \"files:folder or configuration file:_files\"}}' \\\n    \
         '2::folder or configuration file:_files'\n"
    )
}

/// A text inside of a description in single quotes, where zsh reads brackets and colons.
fn zsh_escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\'' => escaped += "'\\''",
            '[' | ']' | ':' | '\\' => escaped.extend(['\\', c]),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// The completion of fish: one command for each option.
pub fn fish(help: &Help) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let mut text = String::from("# Completion of fish for osier(1), made from \"osier --help\".\n");
    text += &format!(
        "complete -c osier -n __fish_use_subcommand -a {}\n",
        quoted(&help.names().join(" "))
    );
    for flag in &help.options {
        let short = flag.short.as_deref().map(|short| format!(" -s {}", &short[1..]));
        let value = match (&flag.value, flag.choices()) {
            (None, _) => String::new(),
            (_, choices) if !choices.is_empty() => format!(" -x -a {}", quoted(&choices.join(" "))),
            _ if flag.takes_file() => " -r -F".into(),
            _ => " -x".into(),
        };
        text += &format!(
            "complete -c osier{} -l {}{value} -d {}\n",
            short.unwrap_or_default(),
            &flag.long[2..],
            quoted(&flag.about)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::help::tests::SAMPLE;
    use super::*;

    #[test]
    fn each_shell_knows_every_option_and_its_values() {
        let help = Help::read(SAMPLE).unwrap();
        let bash = bash(&help);
        assert!(
            bash.contains("-l --listen --spa --header --log --log-file -h --help"),
            "{bash}"
        );
        assert!(
            bash.contains("--log) mapfile -t COMPREPLY < <(compgen -W 'combined json off'"),
            "{bash}"
        );
        let zsh = zsh(&help);
        assert!(
            zsh.contains("'*'{-l,--listen=}'[Address, repeatable\\: HOST\\:PORT"),
            "{zsh}"
        );
        assert!(
            zsh.contains("'(--spa)--spa[Send the user'\\''s \\[own\\] page]'"),
            "{zsh}"
        );
        assert!(
            zsh.contains(":FORMAT:(combined json off)'") && zsh.contains(":FILE:_files'"),
            "{zsh}"
        );
        let fish = fish(&help);
        assert!(fish.contains("-s l -l listen -x -d"), "{fish}");
        assert!(fish.contains("-l spa -d 'Send the user\\'s [own] page'"), "{fish}");
        assert!(
            fish.contains("-l log -x -a 'combined json off'") && fish.contains("-l log-file -r -F"),
            "{fish}"
        );
    }
}
