//! Removes copies of a used token from the first-boot data of this machine.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use homestak_api::durable::Access;

use crate::path::{self, Directory, Entry};

/// Larger files are skipped.
const MAX_SIZE: u64 = 16 << 20;
/// Maximum depth; above that of cloud-init's directories.
const MAX_DEPTH: usize = 12;

/// Removes a token from all files below a directory: one that has it in plain text keeps its other
/// content, one that has it in another encoding is deleted.
pub(super) fn remove(directory: &Path, token: &str) -> io::Result<()> {
    if token.is_empty() {
        return Ok(());
    }
    walk(directory, token, &encodings(token), MAX_DEPTH)
}

fn walk(path: &Path, token: &str, encoded: &[String], depth: usize) -> io::Result<()> {
    let directory = match path::directory(path).map_err(io::Error::from) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        directory => directory?,
    };
    for name in directory.names()? {
        match directory.lookup(&name)? {
            Entry::Directory(_) if depth > 0 => {
                walk(&path.join(&name), token, encoded, depth - 1)?;
            }
            Entry::File(file, stat) => {
                if let Some(content) = path::read(&file, MAX_SIZE)? {
                    let mode = path::mode(&stat);
                    clean(&directory, &name, mode, &content, (token, encoded))?;
                }
            }
            // Links are not followed; their targets are visited separately.
            Entry::Directory(_) | Entry::Nothing | Entry::Link(_) | Entry::Other => {}
        }
    }
    Ok(())
}

fn clean(
    directory: &Directory,
    name: &OsStr,
    mode: u32,
    content: &[u8],
    (token, encoded): (&str, &[String]),
) -> io::Result<()> {
    let without_whitespace: Vec<u8> = content
        .iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    if encoded
        .iter()
        .any(|one| find(&without_whitespace, one.as_bytes()).is_some())
    {
        return directory.remove(name);
    }
    let mut content = content.to_vec();
    let mut from = 0;
    while let Some(at) = find(&content[from..], token.as_bytes()) {
        let (start, end) = (from + at, from + at + token.len());
        // Keeps the length: some files record it.
        content[start..end].fill(b'x');
        from = end;
    }
    match from {
        0 => Ok(()),
        _ => directory.write(name, &content, Access::mode(mode)),
    }
}

/// Returns the base64 forms of the token for the three possible alignments.
fn encodings(token: &str) -> [String; 3] {
    [0, 1, 2].map(|before| {
        let padded = [&vec![0; before][..], token.as_bytes()].concat();
        let whole = STANDARD.encode(&padded);
        // The ends depend on the bytes around it.
        let first = [0, 2, 3][before];
        let last = padded.len() * 8 / 6;
        whole[first..last].to_owned()
    })
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TOKEN: &str = "eyJ2IjoyfQ.c2lnbmF0dXJl-_";

    #[test]
    fn a_plain_copy_is_overwritten_an_encoded_one_deleted_and_others_stay() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |name: &str| root.path().join(name);
        fs_err::create_dir_all(at("instances/i")).expect("created");
        fs_err::os::unix::fs::symlink("instances/i", at("instance")).expect("linked");
        let plain = at("instances/i/user-data.txt");
        fs_err::write(&plain, format!("a {TOKEN} b {TOKEN}{TOKEN}")).expect("written");
        fs_err::set_permissions(&plain, std::fs::Permissions::from_mode(0o640)).expect("set");
        fs_err::write(at("other"), "nothing").expect("written");
        for before in 0..4 {
            let text = format!("{}{TOKEN} and more", "#".repeat(before));
            let encoded = STANDARD.encode(text);
            let (one, two) = encoded.split_at(20);
            fs_err::write(
                at(&format!("mime-{before}")),
                format!("x: y\n\n{one}\r\n{two}\n"),
            )
            .expect("written");
        }
        remove(root.path(), TOKEN).expect("removed");
        let x = "x".repeat(TOKEN.len());
        let left = fs_err::read_to_string(&plain).expect("read");
        assert_eq!(left, format!("a {x} b {x}{x}"));
        let mode = fs_err::metadata(&plain)
            .expect("a file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(
            fs_err::read_to_string(at("other")).expect("read"),
            "nothing"
        );
        assert!(at("instance").is_symlink());
        for before in 0..4 {
            assert!(!at(&format!("mime-{before}")).exists(), "{before}");
        }
    }

    #[test]
    fn a_missing_directory_has_no_copies() {
        let root = tempfile::tempdir().expect("a directory");
        remove(&root.path().join("none"), TOKEN).expect("nothing to do");
        fs_err::write(root.path().join("a"), "a").expect("written");
        remove(root.path(), "").expect("nothing to do");
        assert_eq!(fs_err::read(root.path().join("a")).expect("read"), b"a");
    }
}
