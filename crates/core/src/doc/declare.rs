//! Two macros that declare documents: one list of keys gives the type, the decoder and the schema.

/// Declares a mapping with fixed keys. Every field is `Option<Spanned<T>>`: `None` if absent or
/// invalid; the resolver applies defaults.
///
/// `= required` reports a missing key; `old "x"` accepts a deprecated name with a notice;
/// `default "x"` only documents the default that the resolver applies. `Debug` is derived on
/// request: documents with secrets have none.
macro_rules! document {
    (
        $(#[doc = $doc:literal])+
        $(#[derive($($derive:ident),+)])?
        $name:ident as $what:literal {
            $(
                $(#[doc = $field_doc:literal])+
                $field:ident $([$key:literal])? $(= $required:ident)?
                $(old $old:literal)* $(default $default:literal)? : $ty:ty,
            )*
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Default $(, $($derive),+)?)]
        pub struct $name {
            $($(#[doc = $field_doc])+ pub $field: Option<$crate::doc::Spanned<$ty>>,)*
            /// Keys with an invalid value or a misspelt name: they must not count as absent.
            pub invalid: Vec<&'static str>,
        }

        impl $name {
            /// The keys of this mapping.
            pub const KEYS: &'static [&'static str] =
                &[$(document!(@key $field $($key)?)),*];
        }

        impl $crate::doc::Decode for $name {
            fn decode(value: &$crate::doc::Value, cx: &mut $crate::doc::Context<'_>) -> Option<Self> {
                let entries = cx.keyed(value, Self::KEYS)?;
                let mut this = Self::default();
                for entry in entries {
                    let key = entry.key.text.as_str();
                    $(
                        if key == document!(@key $field $($key)?) {
                            this.$field = cx.field(entry);
                            if this.$field.is_none() && !entry.value.is_null() {
                                this.invalid.push(document!(@key $field $($key)?));
                            }
                            continue;
                        }
                        $(
                            if key == $old {
                                let current = stringify!($field);
                                match entries.iter().find(|entry| entry.key.text == current) {
                                    Some(new) => cx.both_names(entry.key.span, new.key.span, $old, current),
                                    None => cx.renamed(entry.key.span, $old, current),
                                }
                                let field = cx.field(entry);
                                if this.$field.is_none() {
                                    this.$field = field;
                                }
                                continue;
                            }
                        )*
                    )*
                    this.invalid.extend(cx.unknown_key(entry, Self::KEYS));
                }
                $(document!(@required $($required)? ; this, value, entries, cx, $what, document!(@key $field $($key)?) $(, $old)*);)*
                Some(this)
            }

            fn schema(definitions: &mut $crate::doc::schema::Definitions) -> serde_json::Value {
                definitions.mapping(stringify!($name), &[$($doc),+], |definitions, mapping| {
                    $(
                        mapping.key(
                            document!(@key $field $($key)?),
                            <$ty as $crate::doc::Decode>::schema(definitions),
                            &[$($field_doc),+],
                            document!(@is_required $($required)?),
                            document!(@default $($default)?),
                        );
                        $(mapping.old_key($old, stringify!($field), <$ty as $crate::doc::Decode>::schema(definitions));)*
                    )*
                })
            }
        }
    };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
    (@required ; $($rest:tt)*) => {};
    (@required required ; $this:ident, $value:ident, $entries:ident, $cx:ident, $what:literal, $key:expr $(, $old:literal)*) => {
        let present = |key: &str| $entries.iter().any(|entry| entry.key.text == key && !entry.value.is_null());
        if !present($key) $(&& !present($old))* && !$this.invalid.contains(&$key) {
            $cx.missing_key($value.span, $entries, $key, $what);
        }
    };
    (@is_required) => { false };
    (@is_required required) => { true };
    (@default) => { None };
    (@default $default:literal) => { Some($default) };
}

/// Declares an enum that documents write as a string.
macro_rules! choice {
    (
        $(#[doc = $doc:literal])+
        $name:ident { $($(#[doc = $variant_doc:literal])+ $variant:ident = $text:literal,)+ }
    ) => {
        $(#[doc = $doc])+
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
            schemars::JsonSchema,
        )]
        pub enum $name { $($(#[doc = $variant_doc])+ #[serde(rename = $text)] $variant,)+ }

        impl $name {
            /// Every choice, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// The strings of all choices.
            pub const NAMES: &'static [&'static str] = &[$($text,)+];

            /// Returns the string used in documents.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// Returns the choice of a string.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl $crate::doc::Decode for $name {
            fn decode(value: &$crate::doc::Value, cx: &mut $crate::doc::Context<'_>) -> Option<Self> {
                // An unquoted `yes` may be a choice without its quotes; `true` is never one.
                let bare = value.scalar().filter(|scalar| {
                    matches!(scalar.meaning(), $crate::doc::tree::Meaning::Bool(_) | $crate::doc::tree::Meaning::Ambiguous)
                        && !Self::NAMES.contains(&scalar.text.as_str())
                });
                let name = match bare {
                    Some(scalar) => &scalar.text,
                    None => cx.text(value)?,
                };
                let choice = Self::from_name(name);
                if choice.is_none() {
                    $crate::doc::scalar::unknown_choice(name, Self::NAMES, value.span, cx);
                }
                choice
            }

            fn schema(_: &mut $crate::doc::schema::Definitions) -> serde_json::Value {
                serde_json::json!({ "type": "string", "enum": Self::NAMES })
            }
        }
    };
}

pub(crate) use {choice, document};
