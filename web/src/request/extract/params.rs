//! A `serde` deserializer for the parameters of a route.
//!
//! The text of a value becomes the type that the caller asks for: a number, a `bool`, a `char`, a
//! string, or an enum variant by its name. Two kinds of mistakes have different errors. A value
//! that does not fit the type is the client's mistake. A name that the route does not have is the
//! program's mistake, which no request can avoid.

use std::borrow::Cow;
use std::fmt;

use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor};

use crate::Rejection;
use crate::request::Matched;

/// Reads `params`. `None` means that the route has no parameters.
pub(super) fn read<T: DeserializeOwned>(params: Option<Matched<'_>>) -> Result<T, Rejection> {
    let decoded: Result<Vec<_>, _> = params
        .into_iter()
        .flat_map(Matched::iter)
        .map(|(name, raw)| match percent_decode_str(raw).decode_utf8() {
            Ok(text) => Ok(Value { name, text }),
            Err(_) => {
                let text = format!("path parameter {name:?} is not UTF-8");
                Err(Rejection::new(StatusCode::BAD_REQUEST, text))
            }
        })
        .collect();
    T::deserialize(Whole(decoded?)).map_err(|Failure { value, what }| match value {
        Some((name, text)) => {
            let text = format!("path parameter {name:?}: {text:?} is not what was expected: {what}");
            Rejection::new(StatusCode::BAD_REQUEST, text)
        }
        None => Rejection::internal(format!("the route's parameters do not fit the type: {what}")),
    })
}

/// A mistake. It carries the value if the client made it.
#[derive(Debug)]
struct Failure {
    value: Option<(String, String)>,
    what: String,
}

osier_queue::impl_error!(Failure, self => "{}", self.what);

impl de::Error for Failure {
    fn custom<T: fmt::Display>(what: T) -> Self {
        let what = what.to_string();
        Failure { value: None, what }
    }
}

/// One parameter.
#[derive(Clone)]
struct Value<'p> {
    name: &'p str,
    text: Cow<'p, str>,
}

impl Value<'_> {
    fn failed(&self, error: impl fmt::Display) -> Failure {
        Failure {
            value: Some((self.name.to_owned(), self.text.to_string())),
            what: error.to_string(),
        }
    }
}

/// All parameters of a route.
struct Whole<'p>(Vec<Value<'p>>);

impl<'p> Whole<'p> {
    fn single(mut self) -> Result<Value<'p>, Failure> {
        let count = self.0.len();
        match (self.0.pop(), count) {
            (Some(value), 1) => Ok(value),
            _ => Err(de::Error::custom(format!(
                "one value is asked for, the route has {count}"
            ))),
        }
    }
}

macro_rules! of_single {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            self.single()?.$method(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for Whole<'_> {
    type Error = Failure;

    of_single! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64
        deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf deserialize_option
        deserialize_identifier
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_map(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        let pairs = self.0.into_iter().map(|value| (value.name.to_owned(), value));
        visitor.visit_map(MapDeserializer::new(pairs))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_map(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_seq(SeqDeserializer::new(self.0.into_iter()))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value, Failure> {
        match self.0.len() == count {
            true => self.deserialize_seq(visitor),
            false => {
                let there = self.0.len();
                Err(de::Error::custom(format!(
                    "{count} values are asked for, the route has {there}"
                )))
            }
        }
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        count: usize,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_tuple(count, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.single()?.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_unit()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_unit()
    }
}

impl<'de> IntoDeserializer<'de, Failure> for Value<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! parsed {
    ($($method:ident $visit:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            let parsed = self.text.parse().map_err(|error| self.failed(error))?;
            self.with(|_| visitor.$visit(parsed))
        }
    )*};
}

impl Value<'_> {
    /// Adds this value to an error that the type itself raises.
    fn with<T>(self, visit: impl FnOnce(&str) -> Result<T, Failure>) -> Result<T, Failure> {
        visit(&self.text).map_err(|failure| match failure.value {
            Some(_) => failure,
            None => self.failed(failure),
        })
    }
}

impl<'de> Deserializer<'de> for Value<'_> {
    type Error = Failure;

    parsed! {
        deserialize_bool visit_bool
        deserialize_i8 visit_i8 deserialize_i16 visit_i16 deserialize_i32 visit_i32 deserialize_i64 visit_i64
        deserialize_i128 visit_i128
        deserialize_u8 visit_u8 deserialize_u16 visit_u16 deserialize_u32 visit_u32 deserialize_u64 visit_u64
        deserialize_u128 visit_u128
        deserialize_f32 visit_f32 deserialize_f64 visit_f64
        deserialize_char visit_char
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.with(|text| visitor.visit_str(text))
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.with(|text| visitor.visit_bytes(text.as_bytes()))
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_bytes(visitor)
    }

    /// A parameter that matched is always present.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.with(|text| visitor.visit_enum(text.into_deserializer()))
    }

    serde::forward_to_deserialize_any! {
        str string unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
