//! `Display` and `Error` for an error type, one line per message.

/// Implements `Display` and `Error` for an error: with a text for each pattern, or with one text.
///
/// ```
/// #[derive(Debug)]
/// enum Missing {
///     Nothing,
///     Name { of: &'static str },
/// }
///
/// osier_queue::impl_error!(Missing {
///     Missing::Nothing => "there is nothing";
///     Missing::Name { of } => "there is no {of}";
/// });
///
/// #[derive(Debug)]
/// struct Late(u32);
///
/// osier_queue::impl_error!(Late, self => "{} ms too late", self.0);
///
/// assert_eq!(Missing::Name { of: "osier" }.to_string(), "there is no osier");
/// assert_eq!(Late(4).to_string(), "4 ms too late");
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! impl_error {
    ($name:ident { $($case:pat => $text:literal $(, $value:expr)*;)+ }) => {
        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self {
                    $($case => ::std::write!(f, $text $(, $value)*),)+
                }
            }
        }

        impl ::std::error::Error for $name {}
    };
    ($name:ident, $self:ident => $text:literal $(, $value:expr)*) => {
        impl ::std::fmt::Display for $name {
            fn fmt(&$self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::write!(f, $text $(, $value)*)
            }
        }

        impl ::std::error::Error for $name {}
    };
}
