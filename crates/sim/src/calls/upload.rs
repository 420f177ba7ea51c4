//! Uploads and downloads to a storage. Nothing is really downloaded: what a URL returns is set with
//! [`World::offer_download`].

use serde_json::json;

use super::{ApiError, Context, Outcome, Upload, permission};
use crate::world::World;
use crate::world::run::Job;
use crate::world::state::{Boots, Volume};

/// The magic number of a qcow2 image.
const QCOW2: &[u8] = b"QFI\xfb";

/// Removes directories and replaces special characters, as PVE does.
fn safe_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or(name);
    last.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "-_.+=:@".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect()
}

/// Returns the directory part of a volume name and its format, or PVE's error.
fn classify(content: &str, name: &str) -> Result<(&'static str, String), ApiError> {
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    let wrong = |message: &str| ApiError::parameter("filename", message);
    match content {
        "iso" if ends(&[".iso", ".img"]) => Ok(("iso", "iso".into())),
        "iso" => Err(wrong("wrong file extension")),
        "vztmpl" if ends(&[".tar.gz", ".tar.xz", ".tar.zst"]) => {
            let format = format!("t{}", name.rsplit('.').next().unwrap_or("gz"));
            Ok(("vztmpl", format))
        }
        "vztmpl" => Err(wrong("wrong file extension")),
        "import" if ends(&[".ova", ".qcow2", ".raw", ".vmdk"]) => Ok((
            "import",
            name.rsplit('.').next().unwrap_or("raw").to_owned(),
        )),
        "import" => Err(wrong("invalid filename or wrong extension")),
        other => Err(format!("upload content type '{other}' not allowed").into()),
    }
}

/// The volume that an upload or download creates.
struct TargetFile {
    storage: String,
    content: &'static str,
    name: String,
    format: String,
    path: String,
}

fn target_file(context: &Context, name: &str) -> Result<TargetFile, ApiError> {
    let storage = context.required("storage")?.to_owned();
    let content = context.required("content")?;
    let (content, format) = classify(content, name)?;
    let state = context.world.state();
    let known = state.active_on(&context.node, &storage)?;
    if !known.content.iter().any(|has| has == content) {
        let message = format!("storage '{storage}' is not configured for content-type '{content}'");
        return Err(message.into());
    }
    let volume = format!("{content}/{name}");
    let path = known.path_of(&volume);
    drop(state);
    Ok(TargetFile {
        storage,
        content,
        name: volume,
        format,
        path,
    })
}

pub(crate) fn upload(context: &mut Context) -> Outcome {
    let Some(file) = context.upload.take() else {
        return Err(ApiError::parameter(
            "filename",
            "property is missing and it is not optional",
        ));
    };
    let target = target_file(context, &safe_name(&file.name))?;
    let expected = context.text("checksum").map(ToOwned::to_owned);
    let algorithm = context
        .text("checksum-algorithm")
        .unwrap_or("sha256")
        .to_owned();
    let temporary = format!(
        "/var/tmp/pveupload-{}",
        context.world.state().random.hex(32)
    );
    context.task("imgcopy", "", move |job| async move {
        job.log(format!("starting file import from: {temporary}"));
        if let Some(expected) = expected {
            let got = file.checksums.get(&algorithm);
            verify(&job, got.map(String::as_str), &expected)?;
        }
        let qcow2 = target.format == "qcow2" && target.content == "import";
        if qcow2 && !file.head.starts_with(QCOW2) {
            return Err("Image is not in qcow2 format".to_owned());
        }
        job.log(format!("target node: {}", job.node));
        job.log(format!("target file: {}", target.path));
        job.log(format!("file size is: {}", file.size));
        job.log(format!("command: cp -- {temporary} {}", target.path));
        store_file(&job, &target, &file).await?;
        job.log("finished file import successfully");
        Ok(())
    })
}

fn verify(job: &Job, got: Option<&str>, expected: &str) -> Result<(), String> {
    // Without a computed checksum there is nothing to compare.
    if got.is_some_and(|got| !got.eq_ignore_ascii_case(expected)) {
        job.log("calculating checksum...");
        let got = got.unwrap_or_default();
        return Err(format!(
            "checksum mismatch: got '{got}' != expect '{expected}'"
        ));
    }
    job.log("calculating checksum...OK, checksum verified");
    Ok(())
}

async fn store_file(job: &Job, target: &TargetFile, file: &Upload) -> Result<(), String> {
    job.copy(&target.storage, file.size, None).await?;
    let ctime = job.world.epoch();
    let mut state = job.world.state();
    let storage = state.storage(&target.storage)?;
    if state.usage(storage, &job.node).available < file.size {
        return Err(format!(
            "cp: error writing '{}': No space left on device",
            target.path
        ));
    }
    let storage = state.storage_mut(&target.storage)?;
    let volume_host = storage.volume_host(&job.node);
    // An image that replaces one of the same name boots the same.
    let boots = storage
        .volumes
        .get(&(volume_host.clone(), target.name.clone()))
        .map_or_else(|| guess_boots(&file.name), |old| old.boots.clone());
    storage.volumes.insert(
        (volume_host, target.name.clone()),
        Volume {
            content: target.content,
            format: target.format.clone(),
            size: file.size,
            used: file.size,
            ctime,
            vmid: None,
            parent: None,
            boots,
            backup: None,
        },
    );
    Ok(())
}

/// Guesses from the name of an image what it boots: a hypervisor if it contains `pve` or
/// `proxmox`.
pub(crate) fn guess_boots(name: &str) -> Boots {
    let name = name.to_lowercase();
    if name.contains("pve") || name.contains("proxmox") {
        Boots::Hypervisor
    } else {
        Boots::System
    }
}

pub(crate) fn download(context: &Context) -> Outcome {
    let name = safe_name(context.required("filename")?);
    let target = target_file(context, &name)?;
    let url = context.required("url")?.to_owned();
    let expected = context.text("checksum").map(ToOwned::to_owned);
    context.task("download", &name.clone(), move |job| async move {
        job.log(format!("downloading {url} to {}", target.path));
        let exists = {
            let state = job.world.state();
            state
                .storage(&target.storage)?
                .volume(&job.node, &target.name)
                .is_some()
        };
        if exists {
            return Err(format!(
                "refusing to override existing file '{}'",
                target.path
            ));
        }
        let found = job.world.state().downloads.get(&url).cloned();
        let Some((size, sha256)) = found else {
            return Err("download failed: wget: server returned error: 404 Not Found".to_owned());
        };
        let wait = job.world.state().timing.copy(size, Some(400_000), 1);
        job.sleep(wait).await?;
        if let Some(expected) = expected {
            verify(&job, Some(&sha256), &expected)?;
        }
        let file = Upload {
            name,
            size,
            ..Upload::default()
        };
        store_file(&job, &target, &file).await?;
        job.log(format!("download of '{url}' to '{}' finished", target.path));
        Ok(())
    })
}

pub(crate) fn url_metadata(context: &Context) -> Outcome {
    let node = format!("/nodes/{}", context.node);
    if !permission::allows(context, "/", "Sys.Modify") {
        permission::require(context, &node, "Sys.AccessNetwork")?;
    }
    let url = context.required("url")?;
    let found = context.world.state().downloads.get(url).cloned();
    let Some((size, _)) = found else {
        return Err("invalid server response: '404 Not Found'".into());
    };
    let name = url.rsplit('/').next().unwrap_or("");
    Ok(json!({ "size": size, "mimetype": "application/octet-stream", "filename": name }).into())
}

impl World {
    /// Makes a file available for download at a URL.
    pub fn offer_download(&self, url: &str, size: u64, sha256: &str) {
        self.state()
            .downloads
            .insert(url.to_owned(), (size, sha256.to_owned()));
    }

    /// Adds a file to a storage of a host, without a task.
    pub fn put_file(&self, host: &str, storage: &str, name: &str, size: u64, boots: Boots) {
        let ctime = self.epoch();
        let (content, format) = match name.split_once('/') {
            // Snippets cannot be uploaded, but they exist.
            Some(("snippets", _)) => ("snippets", "snippet".to_owned()),
            Some((kind, file)) => match classify(kind, file) {
                Ok(known) => known,
                Err(_) => return,
            },
            None => return,
        };
        let mut state = self.state();
        if let Some(storage) = state.storages.get_mut(storage) {
            let volume_host = storage.volume_host(host);
            storage.volumes.insert(
                (volume_host, name.to_owned()),
                Volume {
                    content,
                    format,
                    size,
                    used: size,
                    ctime,
                    vmid: None,
                    parent: None,
                    boots,
                    backup: None,
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_directories_and_spaces() {
        assert_eq!(safe_name("../../a.iso"), "a.iso");
        assert_eq!(safe_name("sp ace.iso"), "sp_ace.iso");
    }
}
