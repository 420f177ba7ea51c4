//! Parses the multipart body of an upload: fields in the order that Proxmox VE requires, then the
//! file, of which only name, size, checksums and first bytes are stored.

use std::collections::BTreeMap;

use md5::Md5;
use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};

use crate::calls::Upload;
use crate::hash::hex;

/// The content of a multipart body.
#[derive(Debug, Default)]
pub(crate) struct Form {
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) file: Option<Upload>,
}

/// Returns the boundary of a content type.
pub(crate) fn boundary(kind: &str) -> Option<String> {
    let rest = kind.strip_prefix("multipart/form-data")?;
    let (_, boundary) = rest.split_once("boundary=")?;
    Some(
        boundary
            .split(';')
            .next()
            .unwrap_or("")
            .trim_matches('"')
            .to_owned(),
    )
}

/// Splits a body into its parts.
pub(crate) fn parse(body: &[u8], boundary: &str) -> Result<Form, &'static str> {
    let mark = format!("--{boundary}");
    let mut form = Form::default();
    let mut rest = after(body, mark.as_bytes()).ok_or("no boundary")?;
    let next = format!("\r\n{mark}");
    while let Some(part) = rest.strip_prefix(b"\r\n") {
        let head_end = find(part, b"\r\n\r\n").ok_or("part without a header")?;
        let head = String::from_utf8_lossy(&part[..head_end]).into_owned();
        let content = &part[head_end + 4..];
        let end = find(content, next.as_bytes()).ok_or("part without an end")?;
        take(&mut form, &head, &content[..end])?;
        rest = &content[end + next.len()..];
    }
    Ok(form)
}

fn take(form: &mut Form, head: &str, content: &[u8]) -> Result<(), &'static str> {
    let name = attribute(head, "name").ok_or("part without a name")?;
    // Proxmox VE matches the fields with one regular expression, in this order only.
    if name == "checksum-algorithm" && form.fields.contains_key("checksum") {
        return Err("checksum before its algorithm");
    }
    match attribute(head, "filename") {
        Some(file) => {
            if form.file.is_some() {
                return Err("two files");
            }
            form.file = Some(upload(file, content));
        }
        None => {
            form.fields
                .insert(name, String::from_utf8_lossy(content).into_owned());
        }
    }
    Ok(())
}

fn upload(name: String, content: &[u8]) -> Upload {
    let checksums = [
        ("md5", hex::<Md5>(content)),
        ("sha1", hex::<Sha1>(content)),
        ("sha224", hex::<Sha224>(content)),
        ("sha256", hex::<Sha256>(content)),
        ("sha384", hex::<Sha384>(content)),
        ("sha512", hex::<Sha512>(content)),
    ];
    Upload {
        name,
        size: content.len() as u64,
        checksums: checksums
            .into_iter()
            .map(|(name, sum)| (name.to_owned(), sum))
            .collect(),
        head: content.iter().take(16).copied().collect(),
    }
}

fn attribute(head: &str, name: &str) -> Option<String> {
    let line = head
        .lines()
        .find(|line| line.to_lowercase().starts_with("content-disposition"))?;
    let start = line
        .find(&format!(" {name}=\""))
        .or_else(|| line.find(&format!(";{name}=\"")))?;
    let rest = &line[start + name.len() + 3..];
    rest.split('"').next().map(ToOwned::to_owned)
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len())
        .position(|window| window == wanted)
}

fn after<'a>(text: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    find(text, wanted).map(|at| &text[at + wanted.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(parts: &[(&str, &str)]) -> Vec<u8> {
        let mut text = String::new();
        for (head, content) in parts {
            text.push_str(&format!(
                "--B\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n"
            ));
        }
        text.push_str("--B--\r\n");
        text.into_bytes()
    }

    #[test]
    fn fields_and_file_are_read() {
        let form = parse(
            &body(&[
                ("name=\"content\"", "iso"),
                ("name=\"filename\"; filename=\"a.iso\"", "xyz"),
            ]),
            "B",
        )
        .unwrap();
        assert_eq!(form.fields["content"], "iso");
        let file = form.file.unwrap();
        assert_eq!((file.name.as_str(), file.size), ("a.iso", 3));
    }

    #[test]
    fn all_supported_checksums_are_computed() {
        let parts = body(&[("name=\"filename\"; filename=\"a.iso\"", "abc")]);
        let file = parse(&parts, "B").unwrap().file.unwrap();
        for (algorithm, digits) in [
            ("md5", 32),
            ("sha1", 40),
            ("sha224", 56),
            ("sha256", 64),
            ("sha384", 96),
            ("sha512", 128),
        ] {
            assert_eq!(file.checksums[algorithm].len(), digits, "{algorithm}");
        }
        assert_eq!(file.checksums["md5"], "900150983cd24fb0d6963f7d28e17f72");
    }

    #[test]
    fn a_checksum_before_its_algorithm_is_refused() {
        let wrong = body(&[
            ("name=\"checksum\"", "ab"),
            ("name=\"checksum-algorithm\"", "sha256"),
        ]);
        assert!(parse(&wrong, "B").is_err());
    }
}
