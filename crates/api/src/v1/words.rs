//! The macro that declares enums whose values are words.

/// Declares an enum whose values are words. With `from`, also its conversion from an enum of `core`
/// that has the same variants.
macro_rules! words {
    (
        $(#[$attribute:meta])*
        $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $word:literal,)+ }
    ) => {
        $(#[$attribute])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize,
            schemars::JsonSchema,
        )]
        pub enum $name { $($(#[doc = $doc])+ #[serde(rename = $word)] $variant,)+ }
    };
    (
        $(#[$attribute:meta])*
        $name:ident from $core:ty {
            $($(#[doc = $doc:literal])+ $variant:ident = $word:literal,)+
        }
    ) => {
        words! {
            $(#[$attribute])*
            $name { $($(#[doc = $doc])+ $variant = $word,)+ }
        }

        impl From<$core> for $name {
            fn from(value: $core) -> Self {
                match value { $(<$core>::$variant => Self::$variant,)+ }
            }
        }
    };
}

pub(super) use words;
