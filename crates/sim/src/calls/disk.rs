//! Disks of guests: creates, imports, resizes and frees volumes. The caller holds the guest's lock.

use super::{ApiError, Context, Outcome};
use crate::guest::drive::{Drive, is_drive, is_mount, parse_size, render_size};
use crate::world::Kind;
use crate::world::run::Job;
use crate::world::state::{Boots, State, Volume};

/// The largest size of an image in bytes, just below 2^63.
const MAX_IMAGE_BYTES: f64 = 9.2e18;
/// The size of a cloud-init drive in bytes.
const CLOUDINIT_BYTES: u64 = 4 << 20;

/// Whether volumes of a storage are files in a directory per guest.
pub(crate) fn is_file_based(kind: &str) -> bool {
    matches!(
        kind,
        "dir" | "nfs" | "cifs" | "btrfs" | "glusterfs" | "cephfs"
    )
}

impl State {
    /// Returns the name of the next free disk of a guest, with `stem` such as `vm` or `subvol`.
    pub(crate) fn free_disk_name(
        &self,
        host: &str,
        storage: &str,
        stem: &str,
        vmid: u32,
        format: &str,
    ) -> Result<String, String> {
        let storage = self.storage(storage)?;
        let name = |n: u32| {
            if is_file_based(&storage.kind) {
                format!("{vmid}/{stem}-{vmid}-disk-{n}.{format}")
            } else {
                format!("{stem}-{vmid}-disk-{n}")
            }
        };
        let volume_host = storage.volume_host(host);
        let mark = format!("{stem}-{vmid}-disk-");
        let taken = |n: u32| {
            let wanted = format!("{mark}{n}");
            storage
                .volumes
                .range((volume_host.clone(), String::new())..)
                .take_while(|((at, _), _)| *at == volume_host)
                .any(|((_, known), volume)| {
                    volume.vmid == Some(vmid)
                        && known
                            .rsplit('/')
                            .next()
                            .is_some_and(|file| file.split('.').next() == Some(wanted.as_str()))
                })
        };
        // `taken` walks all volumes of the host, which is too slow on large storages: there only
        // exact names are compared.
        let quick = |n: u32| {
            storage
                .volumes
                .contains_key(&(volume_host.clone(), name(n)))
        };
        let large = storage.volumes.len() > 2_000;
        (0..1000)
            .find(|n| if large { !quick(*n) } else { !taken(*n) })
            .map(name)
            .ok_or_else(|| "unable to allocate an image name".to_owned())
    }

    /// Adds a volume.
    pub(crate) fn add_volume(
        &mut self,
        host: &str,
        storage: &str,
        name: &str,
        volume: Volume,
    ) -> Result<String, String> {
        let known = self.storage_mut(storage)?;
        let key = (known.volume_host(host), name.to_owned());
        known.volumes.insert(key, volume);
        Ok(format!("{storage}:{name}"))
    }
}

/// The space that an empty disk uses, in bytes.
const EMPTY_DISK_BYTES: u64 = 331_776;

/// The properties of a new disk.
pub(crate) struct NewDisk<'a> {
    pub(crate) vmid: u32,
    pub(crate) storage: &'a str,
    pub(crate) stem: &'a str,
    pub(crate) format: &'a str,
    pub(crate) size: u64,
    pub(crate) used: u64,
    pub(crate) content: &'static str,
    pub(crate) boots: Boots,
}

/// Creates a volume under the storage's lock and logs the output of `qemu-img`.
pub(crate) async fn allocate(job: &Job, new: NewDisk<'_>) -> Result<String, String> {
    let _lock = job.lock_storage(new.storage).await?;
    let name = {
        let state = job.world.state();
        let storage = state.active_on(&job.node, new.storage)?;
        let name = state.free_disk_name(&job.node, new.storage, new.stem, new.vmid, new.format)?;
        // An empty disk can be created on a full storage.
        if storage.full && new.used > EMPTY_DISK_BYTES {
            return Err(match (new.content, new.format) {
                ("rootdir", "raw") => format!(
                    "command 'mkfs.ext4 -O mmp -E 'root_owner=100000:100000' {}' failed: exit code 1",
                    storage.path_of(&name)
                ),
                _ => "unable to create image: No space left on device".to_owned(),
            });
        }
        name
    };
    if new.size as f64 > MAX_IMAGE_BYTES || new.size == u64::MAX {
        return Err("unable to create image: Invalid image size specified".to_owned());
    }
    if new.content == "images" {
        let path = job.world.state().storage(new.storage)?.path_of(&name);
        job.log(formatting_line(&path, new.format, new.size));
    }
    let wait = job.world.state().timing.allocate;
    let outcome = job.sleep(wait).await;
    outcome.map_err(|fault| format!("unable to create image: {fault}"))?;
    let ctime = job.world.epoch();
    let mut state = job.world.state();
    state.add_volume(
        &job.node,
        new.storage,
        &name,
        Volume {
            content: new.content,
            format: new.format.to_owned(),
            size: new.size,
            used: new.used,
            ctime,
            vmid: Some(new.vmid),
            parent: None,
            boots: new.boots,
            backup: None,
        },
    )
}

/// Returns the line that `qemu-img create` prints.
pub(crate) fn formatting_line(path: &str, format: &str, size: u64) -> String {
    match format {
        "qcow2" => format!(
            "Formatting '{path}', fmt=qcow2 cluster_size=65536 extended_l2=off preallocation=metadata \
             compression_type=zlib size={size} lazy_refcounts=off refcount_bits=16"
        ),
        other => format!("Formatting '{path}', fmt={other} size={size} preallocation=off"),
    }
}

/// Logs the progress of a copy.
pub(crate) fn log_progress(job: &Job, size: u64) {
    let unit = |bytes: f64| {
        if bytes >= 1_073_741_824.0 {
            format!("{:.1} GiB", bytes / 1_073_741_824.0)
        } else if bytes >= 1_048_576.0 {
            format!("{:.1} MiB", bytes / 1_048_576.0)
        } else {
            format!("{bytes:.1} B")
        }
    };
    let total = size as f64;
    let mut state = job.world.state();
    for step in 0..=20_u32 {
        let done = total * f64::from(step) / 20.0;
        let line = format!(
            "transferred {} of {} ({:.2}%)",
            unit(done),
            unit(total),
            f64::from(step) * 5.0
        );
        state.tasks.log(&job.upid, line);
    }
}

/// Creates the volume of a drive if needed. Returns the drive's value in the configuration.
pub(crate) async fn create_drive(
    job: &Job,
    vmid: u32,
    key: &str,
    text: &str,
) -> Result<(String, Boots), String> {
    let mut drive = Drive::parse(Kind::Qemu, text);
    let volume = drive.volume().to_owned();
    if let Some(storage) = volume.strip_suffix(":cloudinit") {
        let text = create_cloudinit_drive(job, vmid, storage).await?;
        job.log(format!("{key}: successfully created disk '{text}'"));
        return Ok((text, Boots::Nothing));
    }
    if let Some((storage, gib)) = drive.allocation() {
        let storage = storage.to_owned();
        let (size, boots) = match drive.part("import-from").map(ToOwned::to_owned) {
            Some(source) => import(job, vmid, &storage, &source, &mut drive).await?,
            None => {
                let size = if gib * 1e9 > MAX_IMAGE_BYTES {
                    u64::MAX
                } else {
                    (gib * 1_073_741_824.0) as u64
                };
                let format = drive.part("format").unwrap_or("raw").to_owned();
                let created = allocate(
                    job,
                    NewDisk {
                        vmid,
                        storage: &storage,
                        stem: "vm",
                        format: &format,
                        size,
                        used: EMPTY_DISK_BYTES.min(size),
                        content: "images",
                        boots: Boots::Nothing,
                    },
                )
                .await?;
                drive.set_volume(created);
                (size, Boots::Nothing)
            }
        };
        drive.remove("import-from");
        drive.remove("format");
        drive.set("size", render_size(size));
        let text = drive.render();
        job.log(format!("{key}: successfully created disk '{text}'"));
        return Ok((text, boots));
    }
    if matches!(volume.as_str(), "none" | "cdrom") || volume.starts_with('/') {
        if volume == "none" || volume == "cdrom" {
            drive.set("media", "cdrom");
        }
        return Ok((drive.render(), Boots::Nothing));
    }
    let state = job.world.state();
    let Some(known) = state.volume(&job.node, &volume) else {
        return Err(format!("volume '{volume}' does not exist"));
    };
    let (size, boots) = (known.size, known.boots.clone());
    drop(state);
    drive.set("size", render_size(size));
    let boots = if drive.is_cdrom() {
        Boots::Nothing
    } else {
        boots
    };
    Ok((drive.render(), boots))
}

/// Creates a cloud-init drive.
pub(crate) async fn create_cloudinit_drive(
    job: &Job,
    vmid: u32,
    storage: &str,
) -> Result<String, String> {
    let (name, format) = {
        let state = job.world.state();
        let known = state.storage_on(&job.node, storage)?;
        if is_file_based(&known.kind) {
            (format!("{vmid}/vm-{vmid}-cloudinit.qcow2"), "qcow2")
        } else {
            (format!("vm-{vmid}-cloudinit"), "raw")
        }
    };
    let _lock = job.lock_storage(storage).await?;
    let path = job.world.state().storage(storage)?.path_of(&name);
    job.log(formatting_line(&path, format, CLOUDINIT_BYTES));
    let wait = job.world.state().timing.allocate;
    job.sleep(wait).await?;
    let ctime = job.world.epoch();
    let volid = job.world.state().add_volume(
        &job.node,
        storage,
        &name,
        Volume {
            content: "images",
            format: format.to_owned(),
            size: CLOUDINIT_BYTES,
            used: 0,
            ctime,
            vmid: Some(vmid),
            parent: None,
            boots: Boots::Nothing,
            backup: None,
        },
    )?;
    Ok(format!("{volid},media=cdrom"))
}

async fn import(
    job: &Job,
    vmid: u32,
    storage: &str,
    source: &str,
    drive: &mut Drive,
) -> Result<(u64, Boots), String> {
    let (size, virtual_size, boots, source_format) = {
        let state = job.world.state();
        match state.volume(&job.node, source) {
            Some(volume) => {
                let grown = if volume.format == "qcow2" && volume.vmid.is_none() {
                    // The virtual size of a compressed image is larger; the ratio is invented.
                    volume
                        .size
                        .max(1_572_864_000.min(volume.size.saturating_mul(64)))
                } else {
                    volume.size
                };
                (
                    volume.size,
                    grown,
                    volume.boots.clone(),
                    volume.format.clone(),
                )
            }
            None => {
                let path = source
                    .split_once(':')
                    .and_then(|(storage, name)| Some(state.storages.get(storage)?.path_of(name)));
                return Err(format!(
                    "failed to stat '{}'",
                    path.unwrap_or_else(|| source.to_owned())
                ));
            }
        }
    };
    job.log(format!("create full clone of drive ({source})"));
    let format = drive.part("format").unwrap_or(&source_format).to_owned();
    let created = allocate(
        job,
        NewDisk {
            vmid,
            storage,
            stem: "vm",
            format: &format,
            size: virtual_size,
            used: virtual_size / 5,
            content: "images",
            boots: boots.clone(),
        },
    )
    .await?;
    job.log(format!("allocated target volume '{created}'"));
    let copied = job.copy(storage, virtual_size.max(size), None).await;
    if let Err(fault) = copied {
        job.world.state().remove_volume(&job.node, &created);
        let path = |volume: &str| {
            let state = job.world.state();
            let (storage, name) = volume.split_once(':')?;
            Some(state.storages.get(storage)?.path_of(name))
        };
        let (from, to) = (path(source), path(&created));
        return Err(format!(
            "cannot import from '{source}' - copy failed: command '/usr/bin/qemu-img convert -p -n \
             -f {source_format} -O {format} {} zeroinit:{}' failed: {fault}",
            from.unwrap_or_default(),
            to.unwrap_or_default()
        ));
    }
    log_progress(job, virtual_size);
    drive.set_volume(created);
    Ok((virtual_size, boots))
}

/// Frees the volumes of a guest whose creation failed.
pub(crate) fn free_volumes(job: &Job, vmid: u32) {
    let mut state = job.world.state();
    for storage in state.storages.values_mut() {
        let volume_host = storage.volume_host(&job.node);
        storage
            .volumes
            .retain(|(at, _), volume| *at != volume_host || !volume.is_disk_of(vmid));
    }
}

/// Resizes a disk, which can only grow.
pub(crate) fn resize(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let disk = context.required("disk")?.to_owned();
    let wanted = context.required("size")?.to_owned();
    super::vm_config::check_skiplock(context)?;
    if kind == Kind::Lxc {
        let state = context.world.state();
        state
            .guest(&context.node, kind, vmid)?
            .check_unlocked(&[])?;
    }
    let digest = context.text("digest").map(ToOwned::to_owned);
    if let Some(digest) = &digest {
        let state = context.world.state();
        super::guest::verify_digest(state.guest(&context.node, kind, vmid)?, digest)?;
    }
    context.task("resize", &vmid.to_string(), move |job| async move {
        let _lock = job.lock_guest(kind, vmid).await?;
        let drive = {
            let state = job.world.state();
            let guest = state.guest(&job.node, kind, vmid)?;
            guest.check_unlocked(&[])?;
            let known = match kind {
                Kind::Qemu => is_drive(&disk),
                Kind::Lxc => is_mount(&disk),
            };
            let text = guest.config.value(&disk).filter(|_| known);
            let text = text.ok_or_else(|| format!("disk '{disk}' does not exist"))?;
            Drive::parse(kind, text)
        };
        grow(&job, kind, vmid, &disk, drive, &wanted).await
    })
}

async fn grow(
    job: &Job,
    kind: Kind,
    vmid: u32,
    disk: &str,
    mut drive: Drive,
    wanted: &str,
) -> Result<(), String> {
    let volume = drive.volume().to_owned();
    if volume.ends_with(".subvol") {
        return Err("can't resize this image format".to_owned());
    }
    if drive.is_cdrom() {
        return Err("you can't resize a cdrom".to_owned());
    }
    let old = drive.size();
    let new = match wanted.strip_prefix('+') {
        Some(more) => parse_size(more).map(|more| old + more),
        None => parse_size(wanted),
    }
    .unwrap_or(old);
    if new < old {
        return Err("shrinking disks is not supported".to_owned());
    }
    if new == old {
        return Ok(());
    }
    let wait = job.world.state().timing.allocate;
    job.sleep(wait).await?;
    job.log("Image resized.");
    // The task succeeds anyway.
    if kind == Kind::Lxc && job.world.state().fixed_size_filesystems.contains(&vmid) {
        job.log(
            "Failed to update the container's filesystem: command 'resize2fs' failed: exit code 1",
        );
    }
    let (now, last_update) = (job.world.now(), job.world.last_status_update());
    let mut state = job.world.state();
    if let Some((storage, name)) = volume.split_once(':')
        && let Some(storage) = state.storages.get_mut(storage)
    {
        let key = (storage.volume_host(&job.node), name.to_owned());
        if let Some(known) = storage.volumes.get_mut(&key) {
            known.size = new;
        }
    }
    drive.set("size", render_size(new));
    let guest = state.guest_mut(&job.node, kind, vmid)?;
    guest.touch(now, last_update);
    guest.config.set(disk, drive.render());
    Ok(())
}

/// Checks the drive of a VM before its volume is created.
pub(crate) fn check_drive(context: &Context, key: &str, text: &str) -> Result<(), ApiError> {
    let drive = Drive::parse(Kind::Qemu, text);
    let volume = drive.volume();
    if let Some(source) = drive.part("import-from") {
        if drive.allocation().is_none_or(|(_, size)| size != 0.0) {
            let message =
                "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>";
            return Err(ApiError::parameter(key, message));
        }
        if source.starts_with('/') {
            if !context.is_root() {
                return Err("Only root can pass arbitrary filesystem paths".into());
            }
            return Ok(());
        }
        let (storage, name) = source.split_once(':').unwrap_or(("", source));
        context.world.state().storage_on(&context.node, storage)?;
        super::storage::check_name(name)?;
        let kind = name.split('/').next().unwrap_or("");
        if matches!(kind, "iso" | "vztmpl" | "snippets" | "backup") {
            let message =
                format!("{source} has wrong type '{kind}' - needs to be 'images' or 'import'");
            return Err(ApiError::parameter(key, message));
        }
    }
    if volume.starts_with('/') && !context.is_root() {
        return Err("Only root can pass arbitrary filesystem paths".into());
    }
    let Some((storage, name)) = volume.split_once(':') else {
        return Ok(());
    };
    context.world.state().storage_on(&context.node, storage)?;
    if name == "cloudinit" || drive.allocation().is_some() {
        let path = format!("/storage/{storage}");
        super::permission::require(context, &path, "Datastore.AllocateSpace")?;
        return Ok(());
    }
    if name.starts_with("iso/") && drive.part("media") != Some("cdrom") {
        return Err(ApiError::parameter(
            key,
            "explicit 'media=cdrom' is required for iso images",
        ));
    }
    Ok(())
}
