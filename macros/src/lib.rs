//! The attributes `osier::main` and `osier::test`: they run the body of a function on a fiber of a new runtime.
//!
//! An attribute must be a procedural macro, which needs a crate of its own. This one has no dependencies and looks at as
//! little of a function as it can: it keeps all tokens up to the body, and puts the body into a closure with the same
//! return type.
//!
//! ```text
//!   fn name() -> T { body }   ──▶   fn name() -> T { Runtime::builder()….run(|| -> T { body }) }
//! ```
//!
//! Osier has the examples, where it exports the attributes again, and the tests. With Osier as a dependency of its tests, this crate would
//! make cargo build Osier and all below twice: dependencies of a procedural macro are built apart.
#![forbid(unsafe_code)]

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// The result crosses a thread, so its type is `Send`: `Box<dyn Error + Send + Sync>`, not `Box<dyn Error>`.
#[proc_macro_attribute]
pub fn main(options: TokenStream, function: TokenStream) -> TokenStream {
    expand(options, function, "")
}

/// Time is virtual with `#[osier::test(virtual_clock)]`: a sleep takes no time.
#[proc_macro_attribute]
pub fn test(options: TokenStream, function: TokenStream) -> TokenStream {
    expand(options, function, "#[::core::prelude::v1::test]")
}

fn expand(options: TokenStream, function: TokenStream, attribute: &str) -> TokenStream {
    expanded(options, function, attribute)
        .unwrap_or_else(|message| tokens(&format!("::core::compile_error!({message:?});")))
}

fn expanded(options: TokenStream, function: TokenStream, attribute: &str) -> Result<TokenStream, String> {
    let settings = settings(options, !attribute.is_empty())?;
    let mut function: Vec<TokenTree> = function.into_iter().collect();
    let Some(TokenTree::Group(body)) = function.pop_if(|last| is_group(last, Delimiter::Brace)) else {
        return Err("this attribute is for a function with a body".to_owned());
    };
    if function.iter().any(|token| token.to_string() == "async") {
        return Err("leave out `async`: calls that wait suspend the fiber; run a future by osier::block_on".to_owned());
    }
    let Some(arguments) = function.iter().rposition(|token| is_arguments(token, &function)) else {
        return Err("this attribute is for a function without type parameters".to_owned());
    };
    if matches!(&function[arguments], TokenTree::Group(list) if !list.stream().is_empty()) {
        return Err("the function takes no arguments".to_owned());
    }
    let mut closure = tokens("||");
    closure.extend(function[arguments + 1..].iter().cloned());
    closure.extend([TokenTree::from(body)]);

    let mut run = tokens(&format!(
        "::osier::Runtime::builder(){settings}.build().expect(\"the runtime cannot be built\").run"
    ));
    run.extend([TokenTree::from(Group::new(Delimiter::Parenthesis, closure))]);
    let mut output = tokens(attribute);
    output.extend(function);
    output.extend([TokenTree::from(Group::new(Delimiter::Brace, run))]);
    Ok(output)
}

fn is_group(token: &TokenTree, delimiter: Delimiter) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == delimiter)
}

/// Whether `token` is the list of arguments: the parentheses behind `fn` and a name.
fn is_arguments(token: &TokenTree, function: &[TokenTree]) -> bool {
    let at = function.iter().position(|other| std::ptr::eq(other, token));
    is_group(token, Delimiter::Parenthesis) && at.is_some_and(|at| at >= 2 && function[at - 2].to_string() == "fn")
}

/// The calls of the runtime's builder that the options of an attribute mean.
fn settings(options: TokenStream, is_test: bool) -> Result<String, String> {
    let options = options.to_string();
    let mut calls = String::new();
    let mut has_workers = false;
    for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
        let (name, value) = option
            .split_once('=')
            .map_or((option, ""), |(name, value)| (name.trim(), value.trim()));
        match name {
            "workers" if value.parse::<u16>().is_ok() => {
                has_workers = true;
                calls += &format!(".workers({value})");
            }
            "virtual_clock" if is_test && value.is_empty() => {
                calls += ".clock(::osier::time::VirtualClock::new())";
            }
            _ => {
                return Err(format!(
                    "unknown option `{option}`: there are `workers = 4` and, for tests, `virtual_clock`"
                ));
            }
        }
    }
    if is_test && !has_workers {
        calls += ".workers(1)";
    }
    Ok(calls)
}

fn tokens(text: &str) -> TokenStream {
    text.parse().expect("the text of this crate is Rust")
}
