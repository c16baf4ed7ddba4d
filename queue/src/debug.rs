//! `Debug` in one line, for types whose fields are private, secret or not worth showing.

/// Implements `Debug` for a type: with the named values, or as another value prints itself.
///
/// ```
/// struct Inbox {
///     letters: Vec<String>,
/// }
///
/// struct Shared<T>(Vec<T>);
///
/// osier_queue::impl_debug!(Inbox, self => { len: self.letters.len(), .. });
/// osier_queue::impl_debug!(Shared<T>, self => self.0.len());
///
/// let inbox = Inbox { letters: vec!["for the osier".to_owned()] };
/// assert_eq!(format!("{inbox:?}"), "Inbox { len: 1, .. }");
/// assert_eq!(format!("{:?}", Shared(vec![inbox])), "1");
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! impl_debug {
    ($name:ident $(<$($param:tt),+>)?, $self:ident => { $($field:ident: $value:expr),* $(,)? }) => {
        $crate::impl_debug!(@ $name $(<$($param),+>)?, $self, f =>
            f.debug_struct(stringify!($name))$(.field(stringify!($field), &$value))*.finish());
    };
    ($name:ident $(<$($param:tt),+>)?, $self:ident => { $($field:ident: $value:expr,)* .. }) => {
        $crate::impl_debug!(@ $name $(<$($param),+>)?, $self, f =>
            f.debug_struct(stringify!($name))$(.field(stringify!($field), &$value))*.finish_non_exhaustive());
    };
    ($name:ident $(<$($param:tt),+>)?, $self:ident => $value:expr) => {
        $crate::impl_debug!(@ $name $(<$($param),+>)?, $self, f => ::std::fmt::Debug::fmt(&$value, f));
    };
    (@ $name:ident $(<$($param:tt),+>)?, $self:ident, $f:ident => $body:expr) => {
        impl $(<$($param),+>)? ::std::fmt::Debug for $name $(<$($param),+>)? {
            fn fmt(&$self, $f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $body
            }
        }
    };
}
