//! Finds and reads the file of a secrets command.

use std::path::{Path, PathBuf};

use homestak_driver::DriverError;
use homestak_driver::secrets::sealed;
use homestak_site::{SiteSource, find};

use crate::settings::Settings;

/// A file of secrets.
pub(super) struct SecretsText {
    /// Where it is.
    pub(super) path: PathBuf,
    /// What is in it.
    pub(super) text: zeroize::Zeroizing<String>,
}

/// Reads the file that was named, or the first of `names` that the site has.
pub(super) fn read(
    named: Option<&Path>,
    names: &[&str],
    settings: &Settings,
) -> Result<SecretsText, DriverError> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => of_site(names, settings)?,
    };
    let text =
        fs_err::read_to_string(&path).map_err(|error| DriverError::file("read", &path, &error))?;
    Ok(SecretsText {
        path,
        text: zeroize::Zeroizing::new(text),
    })
}

fn of_site(names: &[&str], settings: &Settings) -> Result<PathBuf, DriverError> {
    let SiteSource::Directory(site) = find(&settings.driver.candidates)?.source else {
        return Err(DriverError::failed("The stock site has no secrets.")
            .hint("name a file, or start a site: homestak site init DIR"));
    };
    let found = names
        .iter()
        .map(|name| site.join(name))
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        DriverError::failed(format!(
            "There is no {} in {}",
            names.join(" or "),
            site.display()
        ))
        .hint("name the file, or copy secrets.yaml.example to secrets.yaml and fill it in")
    })
}

/// Returns a warning when an encrypted file has a plain one beside it.
pub(super) fn plain_beside(path: &Path) -> Option<String> {
    let plain = without_suffix(path)?;
    let text = zeroize::Zeroizing::new(fs_err::read_to_string(&plain).ok()?);
    (!sealed(&text)).then(|| {
        let (plain, path) = (plain.display(), path.display());
        format!("warning: `{plain}` is not encrypted and is not used, because `{path}` exists; delete it: rm {plain}")
    })
}

/// Returns the name of the plain file that belongs to an encrypted one.
pub(super) fn without_suffix(path: &Path) -> Option<PathBuf> {
    Some(PathBuf::from(path.to_str()?.strip_suffix(".enc")?))
}
