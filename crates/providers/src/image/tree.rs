//! Builds a root file system with mmdebstrap. It contains nothing of this machine.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::archive::KEYRING;
use super::builder::Builder;
use super::error::ImageError;
use super::recipe::{APT, DPKG, ENABLED, FILES, MASKED};
use super::store::file;

/// Builds into `root`, which must not exist.
pub(super) async fn build(builder: &mut Builder<'_>, root: &Path) -> Result<(), ImageError> {
    let command = command(builder, root);
    builder.run("mmdebstrap", command).await?;
    builder.progress.phase("preparing");
    let sources = builder.archive.render(builder.recipe.suite);
    prepare(root, sources.as_deref())
}

fn command(builder: &Builder<'_>, root: &Path) -> Vec<OsString> {
    let (archive, suite) = (builder.archive, builder.recipe.suite);
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |word: &str| words.push(word.into());
    add("mmdebstrap");
    add("--verbose");
    add("--mode=root");
    add("--format=directory");
    add("--variant=minbase");
    add(&format!(
        "--include={}",
        builder.recipe.packages().join(",")
    ));
    for option in APT {
        add(&format!("--aptopt={option}"));
    }
    for option in DPKG {
        add(&format!("--dpkgopt={option}"));
    }
    let enabled = ENABLED.join(" ");
    add(&format!(
        "--customize-hook=chroot \"$1\" systemctl enable {enabled}"
    ));
    add(suite);
    words.push(root.into());
    // Without an address mmdebstrap uses the mirror and the suites that it knows.
    for (uri, suites) in archive.suites(suite) {
        let line = |suite: String| format!("deb [signed-by={KEYRING}] {uri} {suite} main").into();
        words.extend(suites.into_iter().map(line));
    }
    words
}

/// Turns what was installed into what nodes are created of.
fn prepare(root: &Path, sources: Option<&str>) -> Result<(), ImageError> {
    remove_host_keys(&root.join("etc/ssh"))?;
    remove(&root.join("var/lib/dbus/machine-id"))?;
    if let Some(sources) = sources {
        remove(&root.join("etc/apt/sources.list"))?;
        write(&root.join("etc/apt/sources.list.d/debian.sources"), sources)?;
    }
    for (path, text) in FILES {
        write(&root.join(path), text)?;
    }
    for unit in MASKED {
        let path = root.join("etc/systemd/system").join(unit);
        remove(&path)?;
        fs_err::os::unix::fs::symlink("/dev/null", &path)
            .map_err(|source| file("create", &path, source))?;
    }
    // Last, because systemd compares their times with that of `/usr`: if `/usr` were newer, the
    // first boot would rebuild caches that exist.
    for path in ["etc/.updated", "var/.updated"] {
        write(&root.join(path), "")?;
    }
    Ok(())
}

/// Each node gets host keys of its own.
fn remove_host_keys(directory: &Path) -> Result<(), ImageError> {
    let entries = fs_err::read_dir(directory);
    let entries = entries.map_err(|source| file("read", directory, source))?;
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with("ssh_host_") {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a file that may not be there.
pub(super) fn remove(path: &Path) -> Result<(), ImageError> {
    match fs_err::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(file("remove", path, source))
        }
        _ => Ok(()),
    }
}

/// Writes a world-readable file; replaces an existing file or link.
pub(super) fn write(path: &Path, text: &str) -> Result<(), ImageError> {
    remove(path)?;
    let failed = |source| file("write", path, source);
    if let Some(directory) = path.parent() {
        fs_err::create_dir_all(directory).map_err(failed)?;
    }
    fs_err::write(path, text).map_err(failed)?;
    let mode = std::fs::Permissions::from_mode(0o644);
    fs_err::set_permissions(path, mode).map_err(failed)
}
