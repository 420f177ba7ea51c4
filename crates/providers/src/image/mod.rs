//! Debian root file systems and disks, built once and cached with a checksum.

mod archive;
mod builder;
mod checksum;
mod disk;
mod error;
pub(crate) mod process;
mod progress;
mod recipe;
mod store;
#[cfg(test)]
mod tests;
mod tree;

use std::path::{Path, PathBuf};

use homestak_api::runtime::{self, Clock as _, WallClock};

use archive::Archive;
use builder::Builder;
pub use error::ImageError;
use progress::BuildProgress;
use recipe::{ImageFormat, Recipe, canonical_name};
use store::{ImageRecord, ImageStore, RECORD, file};

/// Where apt's sources are configured.
const APT: &str = "/etc/apt";

/// Receives progress, one line at a time.
pub type ProgressCallback<'s> = &'s (dyn Fn(&str) + Send + Sync);

/// The image cache of a local host.
#[derive(Clone, Debug)]
pub struct Images {
    store: ImageStore,
    mirror: Option<String>,
}

/// A root file system that is never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageTree {
    /// Key of the recipe it was created by.
    pub key: String,
    /// Its root directory.
    pub path: PathBuf,
}

/// A disk that is never changed, with the kernel that boots from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskImage {
    /// Key of the recipe it was created by.
    pub key: String,
    /// The disk: one ext4 file system with the label `root`.
    pub qcow2: PathBuf,
    /// The kernel.
    pub kernel: PathBuf,
    /// Its first file system.
    pub initrd: PathBuf,
}

/// What is known of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Name of its recipe.
    pub name: String,
    /// Key of its recipe.
    pub key: String,
    /// When it was created.
    pub made: jiff::Timestamp,
    /// Where its packages came from.
    pub mirror: String,
    /// Bytes on the disk.
    pub bytes: u64,
    /// Files, directories and everything else.
    pub files: u64,
    /// Its checksum when it was built.
    pub checksum: String,
    /// Whether the recipe is still the same.
    pub current: bool,
    /// Whether a node uses it now.
    pub in_use: bool,
    /// Where it is.
    pub path: PathBuf,
}

/// The result of verifying an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageVerification {
    /// The image.
    pub info: ImageInfo,
    /// Its checksum now.
    pub found: String,
}

impl ImageInfo {
    /// Returns its name with its key, which is its name on the disk.
    pub fn id(&self) -> String {
        format!("{}-{}", self.name, self.key)
    }
}

impl ImageVerification {
    /// Returns whether it is unchanged.
    pub fn is_intact(&self) -> bool {
        self.found == self.info.checksum
    }
}

impl ImageTree {
    /// Holds the tree against removal, for as long as the file is open in any process.
    pub fn hold(&self) -> std::io::Result<std::fs::File> {
        store::hold(self.path.parent().unwrap_or(&self.path))
    }
}

impl DiskImage {
    fn at(directory: &Path, key: String) -> Self {
        Self {
            key,
            qcow2: directory.join(disk::DISK),
            kernel: directory.join(disk::KERNEL),
            initrd: directory.join(disk::INITRD),
        }
    }

    /// Holds the disk against removal, for as long as the file is open in any process.
    pub fn hold(&self) -> std::io::Result<std::fs::File> {
        store::hold(self.qcow2.parent().unwrap_or(&self.qcow2))
    }
}

impl Images {
    /// Keeps images in a directory, which need not be there yet.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            store: ImageStore { directory },
            mirror: None,
        }
    }

    /// Builds from this mirror instead of the one that apt uses on this machine.
    #[must_use]
    pub fn with_mirror(self, mirror: Option<String>) -> Self {
        Self { mirror, ..self }
    }

    /// Returns whether there is a tree of that name, built or not.
    pub fn is_known(name: &str) -> bool {
        Recipe::tree(name).is_some()
    }

    /// Returns the names of trees.
    pub fn names() -> Vec<&'static str> {
        Recipe::names()
    }

    /// Returns the own name of a tree that has several.
    pub fn canonical_name(name: &str) -> &str {
        canonical_name(name)
    }

    /// Returns a tree that is built and current. Only names are compared, not contents.
    pub fn current_tree(&self, name: &str) -> Option<ImageTree> {
        let recipe = Recipe::tree(name)?;
        let key = recipe.key(&self.archive());
        let directory = self.built_path(&recipe, &key)?;
        Some(ImageTree {
            key,
            path: directory.join("root"),
        })
    }

    /// Returns a tree, and builds it first when it is missing or its recipe has changed.
    /// Cancel-safe: a build that is dropped ends at once and leaves nothing.
    pub async fn ensure_tree(
        &self,
        name: &str,
        report: ProgressCallback<'_>,
    ) -> Result<ImageTree, ImageError> {
        let recipe = Recipe::tree(name).ok_or_else(|| unknown(name))?;
        let (key, directory) = self.build(&recipe, None, report).await?;
        Ok(ImageTree {
            key,
            path: directory.join("root"),
        })
    }

    /// Returns the disk of a tree, and creates it from the tree if it is missing. Cancel-safe like
    /// [`Self::ensure_tree`].
    pub async fn ensure_disk(
        &self,
        name: &str,
        report: ProgressCallback<'_>,
    ) -> Result<DiskImage, ImageError> {
        let recipe = Recipe::disk(name).ok_or_else(|| unknown(name))?;
        let key = recipe.key(&self.archive());
        let tree = match self.built_path(&recipe, &key) {
            Some(_) => None,
            None => Some(self.ensure_tree(name, report).await?),
        };
        let (key, directory) = self.build(&recipe, tree.as_ref(), report).await?;
        Ok(DiskImage::at(&directory, key))
    }

    /// Returns the disk that belongs to a tree, when it is built and current.
    pub fn current_disk(&self, name: &str) -> Option<DiskImage> {
        let recipe = Recipe::disk(name)?;
        let key = recipe.key(&self.archive());
        let directory = self.built_path(&recipe, &key)?;
        Some(DiskImage::at(&directory, key))
    }

    /// Returns all images, including outdated ones.
    pub fn list(&self) -> Vec<ImageInfo> {
        let archive = self.archive();
        let images = self.store.images().into_iter();
        images
            .map(|(directory, record)| info(directory, record, &archive))
            .collect()
    }

    /// Verifies the checksums of the images of a name, or of the one with this name and key.
    pub async fn verify(&self, name: &str) -> Result<Vec<ImageVerification>, ImageError> {
        let mut verifications = Vec::new();
        for info in self.find(name)? {
            let found = checksum_of(info.path.clone()).await?.checksum;
            verifications.push(ImageVerification { info, found });
        }
        Ok(verifications)
    }

    /// Removes the images of a name, or the one with this name and key. Removes none when a node uses
    /// one of them.
    pub async fn remove(&self, name: &str) -> Result<Vec<ImageInfo>, ImageError> {
        let images = self.find(name)?;
        if !rustix::process::geteuid().is_root() {
            return Err(ImageError::NotRoot {
                doing: format!("removing image `{name}`"),
            });
        }
        if let Some(held) = images.iter().find(|image| image.in_use) {
            return Err(ImageError::InUse { name: held.id() });
        }
        for image in &images {
            let lock = self.store.lock(&image.name, || ()).await?;
            let (store, image) = (self.store.clone(), image.clone());
            run_blocking(move || store.remove(&image.path, &image.id())).await?;
            drop(lock);
        }
        Ok(images)
    }

    /// Removes leftovers of killed builders and returns their number.
    pub fn sweep(&self) -> Result<usize, ImageError> {
        self.store.sweep_all()
    }

    fn archive(&self) -> Archive {
        Archive::choose(self.mirror.as_deref(), Path::new(APT))
    }

    /// Returns where a finished image is.
    fn built_path(&self, recipe: &Recipe, key: &str) -> Option<PathBuf> {
        let directory = self.store.path(recipe.name, key);
        let record = self.store.record(&directory)?;
        (record.name == recipe.name && record.key == key).then_some(directory)
    }

    /// Returns the images of a name, or the one of a name with its key.
    pub fn find(&self, name: &str) -> Result<Vec<ImageInfo>, ImageError> {
        let own = canonical_name(name);
        let mut images = self.list();
        images.retain(|image| image.name == own || image.id() == name);
        if !images.is_empty() {
            return Ok(images);
        }
        let known = Recipe::named(own).is_some() || Self::is_known(name);
        if !known {
            return Err(unknown(name));
        }
        Err(ImageError::Absent {
            name: name.to_owned(),
            directory: self.store.directory.clone(),
        })
    }

    /// Returns the key and directory of an image, and builds it when it is missing.
    async fn build(
        &self,
        recipe: &Recipe,
        tree: Option<&ImageTree>,
        report: ProgressCallback<'_>,
    ) -> Result<(String, PathBuf), ImageError> {
        let archive = self.archive();
        let key = recipe.key(&archive);
        if let Some(directory) = self.built_path(recipe, &key) {
            return Ok((key, directory));
        }
        let name = recipe.name;
        if !rustix::process::geteuid().is_root() {
            return Err(ImageError::NotRoot {
                doing: format!("building image `{name}`"),
            });
        }
        let waiting = || report(&format!("{name}: waiting for another build of it"));
        let lock = self.store.lock(name, waiting).await?;
        // The previous holder of the lock may have built it.
        if let Some(directory) = self.built_path(recipe, &key) {
            return Ok((key, directory));
        }
        let store = self.store.clone();
        run_blocking(move || store.sweep(name)).await?;
        let mut builder = Builder {
            recipe,
            archive: &archive,
            store: &self.store,
            progress: BuildProgress::new(name, report),
        };
        builder.check()?;
        let store = self.store.clone();
        let build_directory = run_blocking(move || store.begin(name)).await?;
        let path = build_directory.path();
        match recipe.make {
            ImageFormat::Tree => tree::build(&mut builder, &path.join("root")).await?,
            ImageFormat::Disk => {
                let tree = tree.ok_or_else(|| unknown(name))?;
                let of = tree.clone();
                // Cancel safety: a lock whose result is dropped is released.
                let held = run_blocking(move || {
                    let held = of.hold();
                    held.map_err(|source| file("hold", &of.path, source))
                });
                let held = held.await?;
                disk::build(&mut builder, &tree.path, &path).await?;
                drop(held);
            }
            #[cfg(test)]
            ImageFormat::Script(script) => {
                let words = ["sh", "-euc", script, "sh"].map(Into::into);
                let words = words.into_iter().chain([path.clone().into()]);
                builder.run("sh", words.collect()).await?;
            }
        }
        builder.progress.phase("computing the checksum");
        let sum = checksum_of(path).await?;
        let record = ImageRecord {
            version: 1,
            name: name.to_owned(),
            key: key.clone(),
            made: WallClock.now(),
            archive: archive.clone(),
            checksum: sum.checksum,
            bytes: sum.bytes,
            files: sum.files,
        };
        let store = self.store.clone();
        let directory = run_blocking(move || store.finish(build_directory, &record)).await?;
        drop(lock);
        report(&format!(
            "{name}: ready after {} s: {} MiB in {} files",
            builder.progress.seconds(),
            sum.bytes >> 20,
            sum.files
        ));
        Ok((key, directory))
    }
}

fn info(path: PathBuf, record: ImageRecord, archive: &Archive) -> ImageInfo {
    let recipe = Recipe::named(&record.name);
    ImageInfo {
        current: recipe.is_some_and(|recipe| recipe.key(archive) == record.key),
        in_use: store::held(&path),
        name: record.name,
        key: record.key,
        made: record.made,
        mirror: record.archive.name().to_owned(),
        bytes: record.bytes,
        files: record.files,
        checksum: record.checksum,
        path,
    }
}

fn unknown(name: &str) -> ImageError {
    ImageError::Unknown {
        name: name.to_owned(),
        known: Recipe::names(),
    }
}

/// Computes the checksum of an image.
async fn checksum_of(path: PathBuf) -> Result<checksum::TreeChecksum, ImageError> {
    run_blocking(move || checksum::sum(&path, RECORD).map_err(|source| file("read", &path, source)))
        .await
}

/// Runs blocking work on a separate thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    let done = runtime::run_blocking(work).await;
    done.unwrap_or_else(|error| {
        let source = std::io::Error::other(error);
        Err(file("use", Path::new("the images"), source))
    })
}
