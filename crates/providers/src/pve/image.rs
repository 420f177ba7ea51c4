//! Files in storages: images, container templates, first-boot data.
//!
//! A file is never considered complete while a task may still be writing it.

use std::time::Duration;

use homestak_core::doc::image::unpinned;
use homestak_engine::ports::{ErrorClass, GuestKind, ImageRequest, ImageSource};

use super::client::{Pve, named};
use super::error::{PveError, Reason};
use super::quirks::text_of;
use super::requests::{ApiCall, CONTENT, DOWNLOAD, UPLOAD, VOLUME_DELETE};
use super::task::{RunningTask, elapsed};
use super::upload::Upload;

/// The polling interval.
const PAUSE: Duration = Duration::from_secs(2);
/// How long a file may take to be listed after its task; network storages are slow.
const LISTED: Duration = Duration::from_secs(30);
/// How often a transfer is tried.
const TRIES: u32 = 3;

/// A content type of a storage on a host.
pub(super) struct StorageContent<'a> {
    pub(super) node: &'a str,
    pub(super) storage: &'a str,
    /// `import`, `iso` or `vztmpl`.
    pub(super) kind: &'a str,
}

impl StorageContent<'_> {
    fn volume(&self, file: &str) -> String {
        format!("{}:{}/{file}", self.storage, self.kind)
    }
}

/// A checksum: algorithm and digits.
type Checksum<'a> = Option<(&'a str, &'a str)>;

impl Pve {
    /// Lists the files of a storage.
    pub(super) async fn files(
        &self,
        content: &StorageContent<'_>,
    ) -> Result<Vec<StorageFile>, PveError> {
        let call = ApiCall::to(&CONTENT)
            .at("node", content.node)
            .at("storage", content.storage)
            .param("content", content.kind);
        let data = self.ask(&call).await?;
        let rows = data.as_array().map(Vec::as_slice).unwrap_or_default();
        let files = rows.iter().filter_map(|row| {
            let volume = text_of(row, "volid");
            let name = volume.rsplit('/').next()?.to_owned();
            Some(StorageFile {
                name,
                volume,
                changed: row.get("ctime").and_then(super::quirks::parse_u64),
            })
        });
        Ok(files.collect())
    }

    async fn find_file(
        &self,
        content: &StorageContent<'_>,
        file: &str,
    ) -> Result<Option<StorageFile>, PveError> {
        let volume = content.volume(file);
        let files = self.files(content).await?;
        Ok(files.into_iter().find(|row| row.volume == volume))
    }

    async fn has_file_named(
        &self,
        content: &StorageContent<'_>,
        file: &str,
    ) -> Result<bool, PveError> {
        Ok(self.find_file(content, file).await?.is_some())
    }

    /// Returns whether an image exists and is not being written.
    pub(super) async fn has_image_file(&self, image: &ImageRequest) -> Result<bool, PveError> {
        let content = content_of(image)?;
        Ok(match self.find_file(&content, &image.file).await? {
            Some(found) => !self.is_being_written(&content, &found).await?,
            None => false,
        })
    }

    /// Returns whether a task may be writing a file: a download names it; a copy does not, but one
    /// that started after the last change of the file does not write it.
    async fn is_being_written(
        &self,
        content: &StorageContent<'_>,
        file: &StorageFile,
    ) -> Result<bool, PveError> {
        let tasks = self.running_tasks(content.node, None).await?;
        Ok(tasks.iter().any(|task| match task.upid.kind.as_str() {
            "download" => task.upid.id == file.name,
            "imgcopy" => file
                .changed
                .is_none_or(|changed| changed + 1 >= task.upid.start),
            _ => false,
        }))
    }

    /// Transfers an image to its storage if it is missing.
    pub(super) async fn ensure_file(&self, image: &ImageRequest) -> Result<(), PveError> {
        let content = content_of(image)?;
        let key = format!("file {} {} {}", content.node, content.storage, image.file);
        let _permit = self
            .limiter
            .exclusive(&key, "another transfer of the file")
            .await;
        if self.has_file_named(&content, &image.file).await? {
            return self.wait_for_writer(&content, &image.file).await;
        }
        check_name(image)?;
        let checksum = match &image.checksum {
            Some(text) => Some(parse_checksum(text)?),
            None => None,
        };
        match &image.source {
            ImageSource::File(path) => {
                self.upload_file(&content, &image.file, checksum, || {
                    Upload::File(path.clone())
                })
                .await
            }
            ImageSource::Url(url) => {
                // The host may still be downloading it for an interrupted run.
                self.wait_for_download(&content, &image.file).await?;
                if self.has_file_named(&content, &image.file).await? {
                    return Ok(());
                }
                self.download(&content, &image.file, checksum, url).await
            }
            ImageSource::None => {
                let (file, storage) = (&image.file, content.storage);
                let detail = format!(
                    "`{file}` is not in the storage `{storage}`, and its document under `images/` has no `source`"
                );
                let hint = "upload it to the storage under this name, or set `source`";
                Err(
                    PveError::new(ErrorClass::Refused, Reason::BadParameter, detail)
                        .with_hint(hint),
                )
            }
        }
    }

    /// Uploads a file and waits until it is listed.
    pub(super) async fn upload_file(
        &self,
        content: &StorageContent<'_>,
        file: &str,
        checksum: Checksum<'_>,
        upload: impl Fn() -> Upload,
    ) -> Result<(), PveError> {
        let call = ApiCall::to(&UPLOAD)
            .at("node", content.node)
            .at("storage", content.storage)
            .param("content", content.kind)
            .optional_param(
                "checksum-algorithm",
                checksum.map(|(algorithm, _)| algorithm),
            )
            .optional_param("checksum", checksum.map(|(_, digits)| digits))
            .param("filename", file);
        let mut tried = 0;
        loop {
            tried += 1;
            let (storage, node) = (content.storage, content.node);
            self.notifier
                .waiting(format!("upload of `{file}` into {storage} on {node}"));
            match self.send_file(&call, upload()).await {
                Ok(()) => return self.wait_until_listed(content, file).await,
                // The same bytes under the same name: sending them again replaces them whole.
                Err(error) if error.is_transient() || error.may_have_acted() => {
                    if tried >= TRIES {
                        return Err(error);
                    }
                    self.clock.sleep(PAUSE).await;
                }
                Err(error) if error.reason == Reason::Locked && tried < TRIES => {
                    self.clock.sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn download(
        &self,
        content: &StorageContent<'_>,
        file: &str,
        checksum: Checksum<'_>,
        url: &str,
    ) -> Result<(), PveError> {
        let call = ApiCall::to(&DOWNLOAD)
            .at("node", content.node)
            .at("storage", content.storage)
            .param("content", content.kind)
            .param("filename", file)
            .param("url", url)
            .optional_param(
                "checksum-algorithm",
                checksum.map(|(algorithm, _)| algorithm),
            )
            .optional_param("checksum", checksum.map(|(_, digits)| digits));
        if let Some(why) = unpinned(url, checksum.is_some()) {
            self.notifier.warning(format!("`{file}`: {why}"));
        }
        let (storage, node) = (content.storage, content.node);
        self.notifier
            .waiting(format!("download of `{file}` into {storage} on {node}"));
        match self.run(&call).await {
            Ok(()) => self.wait_until_listed(content, file).await,
            Err(error) if error.reason == Reason::FileExists || error.may_have_acted() => {
                self.wait_for_download(content, file).await?;
                self.wait_for_writer(content, file).await?;
                if self.has_file_named(content, file).await? {
                    Ok(())
                } else {
                    Err(error)
                }
            }
            Err(error) => Err(error.with_required_privileges(&format!(
                "Datastore.AllocateTemplate on /storage/{storage} and Sys.AccessNetwork on \
                 /nodes/{node}"
            ))),
        }
    }

    /// Waits until no task writes a file.
    async fn wait_for_writer(
        &self,
        content: &StorageContent<'_>,
        file: &str,
    ) -> Result<(), PveError> {
        let started = self.clock.now();
        let mut reported = false;
        while let Some(found) = self.find_file(content, file).await?
            && self.is_being_written(content, &found).await?
        {
            if elapsed(started, self.clock.now()) > self.settings.limits.task_stall {
                let detail = format!("`{}` is still being written", content.volume(file));
                return Err(PveError::new(ErrorClass::Busy, Reason::Stalled, detail));
            }
            if !reported {
                let volume = content.volume(file);
                self.notifier
                    .waiting(format!("`{volume}`, which is still being written"));
                reported = true;
            }
            self.clock.sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Waits until no task downloads a file. It is listed under its name only when complete.
    async fn wait_for_download(
        &self,
        content: &StorageContent<'_>,
        file: &str,
    ) -> Result<(), PveError> {
        let started = self.clock.now();
        let mut reported = false;
        loop {
            let tasks = self.running_tasks(content.node, None).await?;
            let fetched = |task: &RunningTask| task.upid.kind == "download" && task.upid.id == file;
            if !tasks.iter().any(fetched) {
                return Ok(());
            }
            if elapsed(started, self.clock.now()) > self.settings.limits.task_stall {
                let detail = format!("`{}` is still being downloaded", content.volume(file));
                return Err(PveError::new(ErrorClass::Busy, Reason::Stalled, detail));
            }
            if !reported {
                let volume = content.volume(file);
                self.notifier
                    .waiting(format!("`{volume}`, which is still being downloaded"));
                reported = true;
            }
            self.clock.sleep(PAUSE).await;
        }
    }

    async fn wait_until_listed(
        &self,
        content: &StorageContent<'_>,
        file: &str,
    ) -> Result<(), PveError> {
        let started = self.clock.now();
        loop {
            if self.has_file_named(content, file).await? {
                return Ok(());
            }
            if elapsed(started, self.clock.now()) > LISTED {
                let detail = format!(
                    "`{}` was transferred but is not listed",
                    content.volume(file)
                );
                return Err(PveError::new(ErrorClass::Missing, Reason::NoVolume, detail)
                    .with_hint("the token may lack Datastore.Audit on the storage"));
            }
            self.clock.sleep(PAUSE).await;
        }
    }

    /// Removes a file; a missing file is no error.
    pub(super) async fn remove_file(&self, node: &str, volume: &str) -> Result<(), PveError> {
        let storage = volume.split(':').next().unwrap_or_default();
        let call = ApiCall::to(&VOLUME_DELETE)
            .at("node", node)
            .at("storage", storage)
            .at("volume", volume);
        let mut tried = 0;
        loop {
            tried += 1;
            match self.run(&call).await {
                Ok(()) => return Ok(()),
                Err(error) if error.reason == Reason::NoVolume => return Ok(()),
                // Deleting is idempotent, so it can be repeated.
                Err(error)
                    if tried < TRIES
                        && (error.may_have_acted() || error.reason == Reason::Locked) =>
                {
                    self.clock.sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A file of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StorageFile {
    pub(super) name: String,
    pub(super) volume: String,
    /// Seconds since 1970.
    pub(super) changed: Option<u64>,
}

fn content_of(image: &ImageRequest) -> Result<StorageContent<'_>, PveError> {
    Ok(StorageContent {
        node: &image.host,
        storage: named(image.storage.as_deref())?,
        kind: match image.kind {
            GuestKind::Vm => "import",
            GuestKind::Ct => "vztmpl",
        },
    })
}

/// Refuses names the server would refuse, or would silently store under another name.
fn check_name(image: &ImageRequest) -> Result<(), PveError> {
    let file = image.file.as_str();
    let refuse = |hint: &str| {
        let detail = format!("`{file}` is not a valid file name for a storage");
        Err(PveError::new(ErrorClass::Refused, Reason::BadParameter, detail).with_hint(hint))
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    if file.is_empty() || file.starts_with('.') || !file.bytes().all(plain) {
        return refuse("use letters, digits, `-`, `_`, `+` and `.`");
    }
    let endings: &[&str] = match image.kind {
        GuestKind::Vm => &[".qcow2", ".raw", ".vmdk"],
        GuestKind::Ct => &[".tar.gz", ".tar.xz", ".tar.zst", ".tar.bz2"],
    };
    if endings.iter().any(|ending| file.ends_with(ending)) {
        Ok(())
    } else {
        refuse(&format!(
            "use a name with one of these suffixes: {}",
            endings.join(" ")
        ))
    }
}

/// Reads `sha256:...`.
pub(super) fn parse_checksum(text: &str) -> Result<(&str, &str), PveError> {
    let lengths = [
        ("md5", 32),
        ("sha1", 40),
        ("sha224", 56),
        ("sha256", 64),
        ("sha384", 96),
        ("sha512", 128),
    ];
    text.split_once(':')
        .filter(|(algorithm, digits)| {
            lengths.contains(&(algorithm, digits.len()))
                && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
        .ok_or_else(|| {
            let detail = format!("`{text}` is not a checksum such as sha256:...");
            PveError::new(ErrorClass::Refused, Reason::BadParameter, detail)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(kind: GuestKind, file: &str) -> ImageRequest {
        ImageRequest {
            file: file.to_owned(),
            kind,
            host: "pve1".to_owned(),
            storage: Some("local".to_owned()),
            source: ImageSource::Url("https://example.org/x".to_owned()),
            checksum: None,
        }
    }

    #[test]
    fn invalid_file_names_are_refused() {
        assert!(check_name(&image(GuestKind::Vm, "debian-12.qcow2")).is_ok());
        assert!(check_name(&image(GuestKind::Ct, "debian-12_12.0-1_amd64.tar.zst")).is_ok());
        for file in ["debian-12.img", "sp ace.qcow2", "../x.qcow2", ".qcow2", ""] {
            assert!(check_name(&image(GuestKind::Vm, file)).is_err(), "{file}");
        }
    }

    #[test]
    fn checksums_are_validated() {
        let digits = "a".repeat(64);
        assert_eq!(
            parse_checksum(&format!("sha256:{digits}")).ok(),
            Some(("sha256", digits.as_str()))
        );
        for text in [
            "sha256:abc",
            "abc",
            "crc32:aaaaaaaa",
            &format!("sha512:{digits}"),
        ] {
            assert!(parse_checksum(text).is_err(), "{text}");
        }
    }
}
