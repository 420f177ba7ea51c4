//! Files that come in: uploads and downloads.
//!
//! In: a file that came with a call, or an address. Out: a task that puts a volume on a storage.
//! Never: the network; what a download finds is told to the World beforehand.

use serde_json::json;

use super::{Context, Fail, Outcome, Upload, permission};
use crate::world::World;
use crate::world::run::Job;
use crate::world::state::{Boots, Volume};

/// The magic of a qcow2 image.
const QCOW2: &[u8] = b"QFI\xfb";

/// Makes the name safe as PVE does: no directories, no odd characters.
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

/// Returns the directory part of a volume name and its format, or the fault.
fn classify(content: &str, name: &str) -> Result<(&'static str, String), Fail> {
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    let wrong = |words: &str| Fail::parameter("filename", words);
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

/// What is to be put where.
struct Arrival {
    storage: String,
    content: &'static str,
    name: String,
    format: String,
    path: String,
}

fn arrival(context: &Context, name: &str) -> Result<Arrival, Fail> {
    let storage = context.need("storage")?.to_owned();
    let content = context.need("content")?;
    let (content, format) = classify(content, name)?;
    let state = context.world.state();
    let known = state.active_on(&context.node, &storage)?;
    if !known.content.iter().any(|has| has == content) {
        let words = format!("storage '{storage}' is not configured for content-type '{content}'");
        return Err(words.into());
    }
    let volume = format!("{content}/{name}");
    let path = known.path_of(&volume);
    drop(state);
    Ok(Arrival {
        storage,
        content,
        name: volume,
        format,
        path,
    })
}

pub(crate) fn upload(context: &mut Context) -> Outcome {
    let Some(file) = context.upload.take() else {
        return Err(Fail::parameter(
            "filename",
            "property is missing and it is not optional",
        ));
    };
    let arrival = arrival(context, &safe_name(&file.name))?;
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
        let qcow2 = arrival.format == "qcow2" && arrival.content == "import";
        if qcow2 && !file.head.starts_with(QCOW2) {
            return Err("Image is not in qcow2 format".to_owned());
        }
        job.log(format!("target node: {}", job.node));
        job.log(format!("target file: {}", arrival.path));
        job.log(format!("file size is: {}", file.size));
        job.log(format!("command: cp -- {temporary} {}", arrival.path));
        place(&job, &arrival, &file).await?;
        job.log("finished file import successfully");
        Ok(())
    })
}

fn verify(job: &Job, got: Option<&str>, expected: &str) -> Result<(), String> {
    // An algorithm that was not computed cannot disagree.
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

async fn place(job: &Job, arrival: &Arrival, file: &Upload) -> Result<(), String> {
    job.copy(&arrival.storage, file.size, None).await?;
    let ctime = job.world.epoch();
    let mut state = job.world.state();
    let storage = state.storage(&arrival.storage)?;
    if state.usage(storage, &job.node).available < file.size {
        return Err(format!(
            "cp: error writing '{}': No space left on device",
            arrival.path
        ));
    }
    let storage = state.storage_mut(&arrival.storage)?;
    let place = storage.place(&job.node);
    // An image that was known by this name before keeps what it starts.
    let boots = storage
        .volumes
        .get(&(place.clone(), arrival.name.clone()))
        .map_or_else(|| boots_of(&file.name), |old| old.boots.clone());
    storage.volumes.insert(
        (place, arrival.name.clone()),
        Volume {
            content: arrival.content,
            format: arrival.format.clone(),
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

/// Guesses what an image starts from its name, so that an image uploaded through the API can be
/// a hypervisor: one with `pve` or `proxmox` in its name.
pub(crate) fn boots_of(name: &str) -> Boots {
    let name = name.to_lowercase();
    if name.contains("pve") || name.contains("proxmox") {
        Boots::Hypervisor
    } else {
        Boots::System
    }
}

pub(crate) fn download(context: &Context) -> Outcome {
    let name = safe_name(context.need("filename")?);
    let arrival = arrival(context, &name)?;
    let url = context.need("url")?.to_owned();
    let expected = context.text("checksum").map(ToOwned::to_owned);
    context.task("download", &name.clone(), move |job| async move {
        job.log(format!("downloading {url} to {}", arrival.path));
        let exists = {
            let state = job.world.state();
            state
                .storage(&arrival.storage)?
                .volume(&job.node, &arrival.name)
                .is_some()
        };
        if exists {
            return Err(format!(
                "refusing to override existing file '{}'",
                arrival.path
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
        place(&job, &arrival, &file).await?;
        job.log(format!(
            "download of '{url}' to '{}' finished",
            arrival.path
        ));
        Ok(())
    })
}

pub(crate) fn url_metadata(context: &Context) -> Outcome {
    let node = format!("/nodes/{}", context.node);
    if !permission::allows(context, "/", "Sys.Modify") {
        permission::require(context, &node, "Sys.AccessNetwork")?;
    }
    let url = context.need("url")?;
    let found = context.world.state().downloads.get(url).cloned();
    let Some((size, _)) = found else {
        return Err("invalid server response: '404 Not Found'".into());
    };
    let name = url.rsplit('/').next().unwrap_or("");
    Ok(json!({ "size": size, "mimetype": "application/octet-stream", "filename": name }).into())
}

impl World {
    /// Tells the World what a download from an address finds.
    pub fn offer_download(&self, url: &str, size: u64, sha256: &str) {
        self.state()
            .downloads
            .insert(url.to_owned(), (size, sha256.to_owned()));
    }

    /// Puts a file on a storage of a host, as if it had always been there.
    pub fn put_file(&self, host: &str, storage: &str, name: &str, size: u64, boots: Boots) {
        let ctime = self.epoch();
        let (content, format) = match name.split_once('/') {
            // Nobody can send one, but there are some.
            Some(("snippets", _)) => ("snippets", "snippet".to_owned()),
            Some((kind, file)) => match classify(kind, file) {
                Ok(known) => known,
                Err(_) => return,
            },
            None => return,
        };
        let mut state = self.state();
        if let Some(storage) = state.storages.get_mut(storage) {
            let place = storage.place(host);
            storage.volumes.insert(
                (place, name.to_owned()),
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
