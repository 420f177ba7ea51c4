//! The macro that declares enums whose values are strings in JSON.

/// Declares an enum whose values are strings in JSON. With `from`, also its conversion from an enum of
/// `core` that has the same variants.
macro_rules! string_enum {
    (
        $(#[$attribute:meta])*
        $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+ }
    ) => {
        $(#[$attribute])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize,
            schemars::JsonSchema,
        )]
        pub enum $name { $($(#[doc = $doc])+ #[serde(rename = $text)] $variant,)+ }
    };
    (
        $(#[$attribute:meta])*
        $name:ident from $core:ty {
            $($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+
        }
    ) => {
        string_enum! {
            $(#[$attribute])*
            $name { $($(#[doc = $doc])+ $variant = $text,)+ }
        }

        impl From<$core> for $name {
            fn from(value: $core) -> Self {
                match value { $(<$core>::$variant => Self::$variant,)+ }
            }
        }
    };
}

pub(super) use string_enum;
