//! One encrypted value: `ENC[AES256_GCM,..]`. Errors never contain plaintext.

use aes_gcm::aead::consts::U32;
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::aes::Aes256;
use aes_gcm::{AesGcm, Nonce, Tag};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// SOPS uses nonces of 32 bytes, not the usual 12.
type Gcm = AesGcm<Aes256, U32>;

/// Length of the data key.
pub(crate) const KEY_LEN: usize = 32;
const NONCE_LEN: usize = 32;
const TAG_LEN: usize = 16;

/// The key that encrypts all values of one file. It has no `Debug`.
#[derive(Clone)]
pub(crate) struct DataKey(Zeroizing<[u8; KEY_LEN]>);

impl DataKey {
    /// Creates the key from decrypted bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(Zeroizing::new(bytes.try_into().ok()?)))
    }

    /// Generates a random key.
    pub(crate) fn random() -> Result<Self, CipherError> {
        let mut bytes = Zeroizing::new([0; KEY_LEN]);
        getrandom::fill(bytes.as_mut()).map_err(|_| CipherError::NoRandomness)?;
        Ok(Self(bytes))
    }

    /// Returns the bytes, to wrap them for a recipient.
    pub(crate) fn expose(&self) -> &[u8] {
        self.0.as_slice()
    }

    fn gcm(&self) -> Gcm {
        Gcm::new(&(*self.0).into())
    }
}

/// The type of an encrypted value, as given after `type:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ValueType {
    Str,
    Int,
    Float,
    Bool,
    Bytes,
    Time,
    Comment,
}

impl ValueType {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "str" => Self::Str,
            // Some early 32-bit builds wrote `int64`.
            "int" | "int64" => Self::Int,
            "float" => Self::Float,
            "bool" => Self::Bool,
            "bytes" => Self::Bytes,
            "time" => Self::Time,
            "comment" => Self::Comment,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Str => "str",
            Self::Int => "int",
            Self::Float => "float",
            Self::Bool => "bool",
            Self::Bytes => "bytes",
            Self::Time => "time",
            Self::Comment => "comment",
        }
    }
}

/// Why one value could not be encrypted or decrypted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CipherError {
    /// The text does not have the format of SOPS.
    #[error("the value is not in the encrypted format of sops")]
    Malformed,
    /// The type is unknown.
    #[error("the encrypted value has the unknown type `{kind}`")]
    UnknownType {
        /// The type.
        kind: String,
    },
    /// Authentication failed for this key, path and ciphertext.
    #[error("the encrypted value was modified, moved, or encrypted with another key")]
    NotAuthentic,
    /// The decrypted bytes are not valid for their type.
    #[error("the decrypted value is not a valid {kind}")]
    WrongContent {
        /// The type.
        kind: &'static str,
    },
    /// The system random number generator failed.
    #[error("the system random number generator failed")]
    NoRandomness,
    /// The value is too large for the cipher.
    #[error("the value is too large to be encrypted")]
    TooLarge,
}

/// Encrypts `plain`; `aad` is the additional data: path or modification time.
pub(crate) fn encrypt(
    key: &DataKey,
    kind: ValueType,
    plain: &[u8],
    aad: &str,
) -> Result<String, CipherError> {
    let mut nonce = [0; NONCE_LEN];
    getrandom::fill(&mut nonce).map_err(|_| CipherError::NoRandomness)?;
    let mut buffer = plain.to_vec();
    let tag = key
        .gcm()
        .encrypt_inout_detached(
            &Nonce::<U32>::from(nonce),
            aad.as_bytes(),
            buffer.as_mut_slice().into(),
        )
        .map_err(|_| CipherError::TooLarge)?;
    Ok(format!(
        "ENC[AES256_GCM,data:{},iv:{},tag:{},type:{}]",
        STANDARD.encode(buffer),
        STANDARD.encode(nonce),
        STANDARD.encode(tag),
        kind.name()
    ))
}

/// Decrypts `sealed`, which must have been encrypted with the same `aad`.
pub(crate) fn decrypt(
    key: &DataKey,
    sealed: &str,
    aad: &str,
) -> Result<(ValueType, Zeroizing<Vec<u8>>), CipherError> {
    let (kind, data, nonce, tag) = parse(sealed).ok_or(CipherError::Malformed)?;
    let kind =
        ValueType::parse(kind).ok_or_else(|| CipherError::UnknownType { kind: kind.into() })?;
    let decode = |text: &str| STANDARD.decode(text).map_err(|_| CipherError::Malformed);
    let nonce: [u8; NONCE_LEN] = decode(nonce)?
        .try_into()
        .map_err(|_| CipherError::Malformed)?;
    let tag: [u8; TAG_LEN] = decode(tag)?
        .try_into()
        .map_err(|_| CipherError::Malformed)?;
    let mut buffer = Zeroizing::new(decode(data)?);
    key.gcm()
        .decrypt_inout_detached(
            &Nonce::<U32>::from(nonce),
            aad.as_bytes(),
            buffer.as_mut_slice().into(),
            &Tag::from(tag),
        )
        .map_err(|_| CipherError::NotAuthentic)?;
    Ok((kind, buffer))
}

/// Returns whether text has the format of an encrypted value.
pub(crate) fn is_ciphertext(text: &str) -> bool {
    parse(text).is_some()
}

/// Splits the text into type, data, nonce and tag.
fn parse(text: &str) -> Option<(&str, &str, &str, &str)> {
    let inner = text
        .strip_prefix("ENC[AES256_GCM,data:")?
        .strip_suffix(']')?;
    let (data, rest) = inner.split_once(",iv:")?;
    let (nonce, rest) = rest.split_once(",tag:")?;
    let (tag, kind) = rest.split_once(",type:")?;
    Some((kind, data, nonce, tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> DataKey {
        DataKey::from_bytes(&[7; KEY_LEN]).unwrap()
    }

    #[test]
    fn decrypting_returns_value_and_type() {
        let sealed = encrypt(&key(), ValueType::Int, b"42", "a:").unwrap();
        let (kind, plain) = decrypt(&key(), &sealed, "a:").unwrap();
        assert_eq!((kind, plain.as_slice()), (ValueType::Int, b"42".as_slice()));
    }

    #[test]
    fn a_value_is_bound_to_path_and_key() {
        let sealed = encrypt(&key(), ValueType::Str, b"x", "a:").unwrap();
        let moved = decrypt(&key(), &sealed, "b:").map(|_| ());
        assert_eq!(moved, Err(CipherError::NotAuthentic));
        let other = DataKey::from_bytes(&[8; KEY_LEN]).unwrap();
        let wrong_key = decrypt(&other, &sealed, "a:").map(|_| ());
        assert_eq!(wrong_key, Err(CipherError::NotAuthentic));
    }

    #[test]
    fn text_in_another_format_is_refused() {
        for text in [
            "",
            "plain",
            "ENC[AES256_GCM,data:,iv:,tag:,type:str]",
            "ENC[x]",
        ] {
            let refused = decrypt(&key(), text, "a:").map(|_| ());
            assert_eq!(refused, Err(CipherError::Malformed), "{text}");
        }
        let sealed = encrypt(&key(), ValueType::Str, b"x", "a:").unwrap();
        let odd = decrypt(&key(), &sealed.replace(":str]", ":odd]"), "a:").map(|_| ());
        assert_eq!(odd, Err(CipherError::UnknownType { kind: "odd".into() }));
    }

    #[test]
    fn a_known_ciphertext_is_decrypted() {
        // Created with Python's `cryptography`: key 00..1f, nonce 20..3f.
        let key: Vec<u8> = (0..32).collect();
        let key = DataKey::from_bytes(&key).unwrap();
        let sealed = include_str!("../tests/fixtures/known_value.txt").trim();
        let (kind, plain) = decrypt(&key, sealed, "a:b:").unwrap();
        assert_eq!(
            (kind, plain.as_slice()),
            (ValueType::Str, b"hidden text".as_slice())
        );
    }
}
