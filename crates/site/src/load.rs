//! Reads all documents of a site, in the flat layout and in the older `v2/` one. Only regular files
//! are read, up to a maximum size.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use homestak_core::catalog::{Catalog, InputDocument, LoadProblem};
use homestak_core::doc::yaml::MAX_BYTES;
use homestak_core::doc::{Code, DocumentKind, Severity};

use crate::secrets::{self, Choice, SecretsFile};
use crate::stock;

/// Decrypts encrypted secrets; text that is not encrypted is returned unchanged.
pub type Unseal<'a> = &'a dyn Fn(&str) -> Result<String, LoadProblem>;

/// The files of a site.
#[derive(Default)]
pub struct LoadedSite {
    /// Its documents.
    pub inputs: Vec<InputDocument>,
    /// Problems that belong to no document: path and problem.
    pub problems: Vec<(String, LoadProblem)>,
    /// Unencrypted files with secrets, relative to the site.
    pub plaintext: Vec<String>,
    /// Whether the secrets are encrypted.
    pub sealed: bool,
}

impl LoadedSite {
    /// Decodes the documents.
    pub fn catalog(self) -> Catalog {
        let mut catalog = Catalog::read(self.inputs);
        for (path, problem) in self.problems {
            catalog.add_problem(path, &problem);
        }
        catalog
    }
}

/// Reads the stock site.
pub fn load_stock() -> LoadedSite {
    let mut loaded = LoadedSite::default();
    for (path, text) in stock::FILES {
        let Some(stem) = path.strip_suffix(".yaml") else {
            continue;
        };
        let (directory, name) = stem.split_once('/').unwrap_or(("", stem));
        let kind = match (directory, name) {
            ("", "site") => Some(DocumentKind::Site),
            _ => DocumentKind::ALL
                .iter()
                .copied()
                .find(|kind| kind.directory() == Some(directory)),
        };
        if let Some(kind) = kind {
            let path = format!("stock:{path}");
            loaded.inputs.push(InputDocument {
                kind,
                name: name.into(),
                path,
                text: Ok((*text).into()),
            });
        }
    }
    loaded
}

/// Reads the site in `directory`.
pub fn load(directory: &Path, unseal: Unseal<'_>) -> LoadedSite {
    let mut loaded = LoadedSite::default();
    let site = directory.join("site.yaml");
    if site.exists() {
        loaded.add(DocumentKind::Site, "site", &site);
    }
    loaded.secrets(directory, unseal);
    for kind in DocumentKind::ALL.iter().copied() {
        let Some(folder) = kind.directory() else {
            continue;
        };
        let mut names = BTreeSet::new();
        loaded.folder(kind, &directory.join(folder), &mut names);
        // `v2/nodes` contained node templates, which manifests have replaced.
        if !matches!(kind, DocumentKind::Node) {
            loaded.folder(kind, &directory.join("v2").join(folder), &mut names);
        }
        if kind == DocumentKind::Image {
            loaded.stock_images(&names);
        }
    }
    for retired in ["envs", "vms", "v2/nodes"] {
        let path = directory.join(retired);
        if path.is_dir() {
            loaded.notice(
                &path,
                Code::RetiredDirectory,
                format!("`{retired}/` belongs to an older layout and is ignored"),
                "define machines under `nodes` in a manifest, and delete the directory",
            );
        }
    }
    loaded
}

impl LoadedSite {
    fn add(&mut self, kind: DocumentKind, name: &str, path: &Path) {
        let text = read(path);
        self.inputs.push(InputDocument {
            kind,
            name: name.into(),
            path: path.display().to_string(),
            text,
        });
    }

    fn notice(&mut self, path: &Path, code: Code, message: String, hint: &str) {
        let problem = LoadProblem {
            code,
            severity: Severity::Notice,
            message,
            hint: hint.into(),
        };
        self.problems.push((path.display().to_string(), problem));
    }

    fn folder(&mut self, kind: DocumentKind, folder: &Path, names: &mut BTreeSet<String>) {
        let Ok(entries) = fs_err::read_dir(folder) else {
            if folder.exists() {
                let hint = "check its owner and mode";
                self.notice(
                    folder,
                    Code::Unreadable,
                    "the directory cannot be read".into(),
                    hint,
                );
            }
            return;
        };
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        paths.sort();
        for path in paths {
            let file = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let stem = file
                .strip_suffix(".yaml")
                .or_else(|| file.strip_suffix(".yml"));
            let Some(name) = stem.filter(|name| !name.starts_with('.')) else {
                let expected =
                    file.starts_with('.') || file.ends_with(".md") || file.ends_with(".example");
                if !expected && path.is_file() {
                    let message =
                        format!("`{file}` is ignored: document names end in `.yaml` or `.yml`");
                    self.notice(
                        &path,
                        Code::UnknownFile,
                        message,
                        "rename it, or move it out of the site",
                    );
                }
                continue;
            };
            if names.insert(name.to_owned()) {
                self.add(kind, name, &path);
            } else {
                let used = self
                    .inputs
                    .iter()
                    .find(|input| input.kind == kind && input.name == name);
                let used = used.map_or("another one", |input| input.path.as_str());
                let message = format!("ignored, because the {} in {used} is used", kind.name());
                self.notice(
                    &path,
                    Code::Shadowed,
                    message,
                    "remove one of the two files",
                );
            }
        }
    }

    /// Adds the built-in images, unless the site has one of the same name.
    fn stock_images(&mut self, own: &BTreeSet<String>) {
        let stock = load_stock().inputs.into_iter();
        self.inputs.extend(
            stock.filter(|input| input.kind == DocumentKind::Image && !own.contains(&input.name)),
        );
    }

    /// Reads `secrets.yaml.enc`, which must be encrypted, or else `secrets.yaml`, plain or encrypted.
    fn secrets(&mut self, directory: &Path, unseal: Unseal<'_>) {
        let mut open = |name: &str| {
            let path = directory.join(name);
            if !path.exists() {
                return None;
            }
            let file = SecretsFile::open(path.clone(), read(&path), unseal);
            if !file.sealed {
                self.plaintext.push(name.to_owned());
                self.check_mode(&path);
            }
            Some(file)
        };
        let (plain, sealed) = (open(secrets::PLAIN), open(secrets::SEALED));
        let Some(Choice { file, notice }) = secrets::choose(plain, sealed) else {
            return;
        };
        self.sealed = file.sealed;
        self.problems
            .extend(notice.map(|(path, problem)| (path.display().to_string(), problem)));
        self.inputs.push(InputDocument {
            kind: DocumentKind::Secrets,
            name: "secrets".into(),
            path: file.path.display().to_string(),
            text: file.text,
        });
    }

    fn check_mode(&mut self, path: &Path) {
        let mode = fs_err::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o077 != 0 {
            let message = format!(
                "the secrets are readable by other users (mode {:04o})",
                mode & 0o7777
            );
            let hint = format!("chmod 600 {}", path.display());
            self.notice(path, Code::OpenPermissions, message, &hint);
        }
    }
}

/// Reads a text file, up to the maximum size of a document.
fn read(path: &Path) -> Result<String, LoadProblem> {
    let unreadable = |message: String| LoadProblem {
        code: Code::Unreadable,
        severity: Severity::Error,
        message,
        hint: "check the file's owner and mode".into(),
    };
    let metadata = fs_err::metadata(path).map_err(|error| {
        if path.is_symlink() && error.kind() == std::io::ErrorKind::NotFound {
            return LoadProblem {
                hint: "fix the link, or delete it".into(),
                ..unreadable("this is a broken symbolic link".into())
            };
        }
        unreadable(error.to_string())
    })?;
    if !metadata.is_file() {
        // Opening a pipe would block until a writer opens it.
        return Err(LoadProblem {
            hint: "documents must be regular files: delete this, or move it out of the site".into(),
            ..unreadable("this is not a regular file".into())
        });
    }
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX) + 1;
    fs_err::File::open(path)
        .and_then(|file| file.take(limit).read_to_end(&mut bytes))
        .map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() > MAX_BYTES {
        return Err(LoadProblem {
            code: Code::TooLarge,
            severity: Severity::Error,
            message: format!("the file is too large: {} bytes", metadata.len()),
            hint: format!("split it: a document may have up to {MAX_BYTES} bytes"),
        });
    }
    text(bytes)
}

/// Converts the bytes of a document to text.
pub fn text(bytes: Vec<u8>) -> Result<String, LoadProblem> {
    String::from_utf8(bytes).map_err(|error| {
        let bytes = error.as_bytes();
        let (valid, rest) = bytes.split_at(error.utf8_error().valid_up_to());
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        let message = if matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
            "the file is UTF-16 text, not UTF-8".to_owned()
        } else {
            let byte = rest.first().copied().unwrap_or_default();
            format!("the file is not UTF-8 text: line {line} contains the byte 0x{byte:02x}")
        };
        LoadProblem {
            code: Code::NotText,
            severity: Severity::Error,
            message,
            hint: "is this a binary file, or text in another encoding? Save it as UTF-8".into(),
        }
    })
}
