//! Disks of guests: making, importing, growing and freeing volumes.
//!
//! In: what a drive asks for. Out: volumes on storages and the text a configuration keeps.
//! Never: locks of guests; whoever calls holds them.

use super::{Context, Fail, Outcome};
use crate::guest::drive::{Drive, is_drive, is_mount, parse_size, render_size};
use crate::world::Kind;
use crate::world::run::Job;
use crate::world::state::{Boots, State, Volume};

/// The largest image that can be made, in bytes: what fits in a signed 63-bit number.
const LARGEST: f64 = 9.2e18;
/// The size of the drive with first-boot data.
const CLOUDINIT: u64 = 4 << 20;

/// Whether volumes of a storage are files in a directory per guest.
pub(crate) fn has_directories(kind: &str) -> bool {
    matches!(
        kind,
        "dir" | "nfs" | "cifs" | "btrfs" | "glusterfs" | "cephfs"
    )
}

impl State {
    /// Returns the name of the next free disk of a guest, with `stem` such as `vm` or `subvol`.
    pub(crate) fn free_name(
        &self,
        host: &str,
        storage: &str,
        stem: &str,
        vmid: u32,
        format: &str,
    ) -> Result<String, String> {
        let storage = self.storage(storage)?;
        let name = |n: u32| {
            if has_directories(&storage.kind) {
                format!("{vmid}/{stem}-{vmid}-disk-{n}.{format}")
            } else {
                format!("{stem}-{vmid}-disk-{n}")
            }
        };
        let place = storage.place(host);
        let mark = format!("{stem}-{vmid}-disk-");
        let taken = |n: u32| {
            let wanted = format!("{mark}{n}");
            storage
                .volumes
                .range((place.clone(), String::new())..)
                .take_while(|((at, _), _)| *at == place)
                .any(|((_, known), volume)| {
                    volume.vmid == Some(vmid)
                        && known
                            .rsplit('/')
                            .next()
                            .is_some_and(|file| file.split('.').next() == Some(wanted.as_str()))
                })
        };
        // Few guests have more than a handful of disks, so trying in turn is short; but asking
        // for each of them walks the volumes of the host, so look at exact names first.
        let quick = |n: u32| storage.volumes.contains_key(&(place.clone(), name(n)));
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
        let key = (known.place(host), name.to_owned());
        known.volumes.insert(key, volume);
        Ok(format!("{storage}:{name}"))
    }
}

/// What an empty disk takes, in bytes.
const EMPTY: u64 = 331_776;

/// What a new disk is to be.
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

/// Makes a volume: takes the storage's lock, waits, and says what `qemu-img` says.
pub(crate) async fn allocate(job: &Job, new: NewDisk<'_>) -> Result<String, String> {
    let _lock = job.lock_storage(new.storage).await?;
    let name = {
        let state = job.world.state();
        let storage = state.active_on(&job.node, new.storage)?;
        let name = state.free_name(&job.node, new.storage, new.stem, new.vmid, new.format)?;
        // A disk that is empty takes nothing, so that it can be made where there is no space.
        if storage.full && new.used > EMPTY {
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
    if new.size as f64 > LARGEST || new.size == u64::MAX {
        return Err("unable to create image: Invalid image size specified".to_owned());
    }
    if new.content == "images" {
        let path = job.world.state().storage(new.storage)?.path_of(&name);
        job.log(formatting(&path, new.format, new.size));
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

/// Returns the line `qemu-img` prints.
pub(crate) fn formatting(path: &str, format: &str, size: u64) -> String {
    match format {
        "qcow2" => format!(
            "Formatting '{path}', fmt=qcow2 cluster_size=65536 extended_l2=off preallocation=metadata \
             compression_type=zlib size={size} lazy_refcounts=off refcount_bits=16"
        ),
        other => format!("Formatting '{path}', fmt={other} size={size} preallocation=off"),
    }
}

/// Writes the progress of a copy as PVE does, about one line per percent.
pub(crate) fn progress(job: &Job, size: u64) {
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

/// Makes what a drive asks for and returns the text the configuration keeps.
pub(crate) async fn make_drive(
    job: &Job,
    vmid: u32,
    key: &str,
    text: &str,
) -> Result<(String, Boots), String> {
    let mut drive = Drive::parse(Kind::Qemu, text);
    let volume = drive.volume().to_owned();
    if let Some(storage) = volume.strip_suffix(":cloudinit") {
        let text = make_cloudinit(job, vmid, storage).await?;
        job.log(format!("{key}: successfully created disk '{text}'"));
        return Ok((text, Boots::Nothing));
    }
    if let Some((storage, gib)) = drive.allocation() {
        let storage = storage.to_owned();
        let (size, boots) = match drive.part("import-from").map(ToOwned::to_owned) {
            Some(source) => import(job, vmid, &storage, &source, &mut drive).await?,
            None => {
                let size = if gib * 1e9 > LARGEST {
                    u64::MAX
                } else {
                    (gib * 1_073_741_824.0) as u64
                };
                let format = drive.part("format").unwrap_or("raw").to_owned();
                let made = allocate(
                    job,
                    NewDisk {
                        vmid,
                        storage: &storage,
                        stem: "vm",
                        format: &format,
                        size,
                        used: EMPTY.min(size),
                        content: "images",
                        boots: Boots::Nothing,
                    },
                )
                .await?;
                drive.set_volume(made);
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

/// Makes the drive with first-boot data.
pub(crate) async fn make_cloudinit(job: &Job, vmid: u32, storage: &str) -> Result<String, String> {
    let (name, format) = {
        let state = job.world.state();
        let known = state.storage_on(&job.node, storage)?;
        if has_directories(&known.kind) {
            (format!("{vmid}/vm-{vmid}-cloudinit.qcow2"), "qcow2")
        } else {
            (format!("vm-{vmid}-cloudinit"), "raw")
        }
    };
    let _lock = job.lock_storage(storage).await?;
    let path = job.world.state().storage(storage)?.path_of(&name);
    job.log(formatting(&path, format, CLOUDINIT));
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
            size: CLOUDINIT,
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
                    // A compressed image says how large it is when unpacked; pretend the ratio.
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
    let made = allocate(
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
    job.log(format!("allocated target volume '{made}'"));
    let copied = job.copy(storage, virtual_size.max(size), None).await;
    if let Err(fault) = copied {
        job.world.state().remove_volume(&job.node, &made);
        return Err(format!("unable to create image: {fault}"));
    }
    progress(job, virtual_size);
    drive.set_volume(made);
    Ok((virtual_size, boots))
}

/// Frees what a failed creation left.
pub(crate) fn free_all(job: &Job, vmid: u32) {
    let mut state = job.world.state();
    for storage in state.storages.values_mut() {
        let place = storage.place(&job.node);
        storage
            .volumes
            .retain(|(at, _), volume| *at != place || !volume.is_disk_of(vmid));
    }
}

/// Grows a disk.
pub(crate) fn resize(context: &Context, kind: Kind) -> Outcome {
    let vmid = context.vmid()?;
    let disk = context.need("disk")?.to_owned();
    let wanted = context.need("size")?.to_owned();
    if kind == Kind::Lxc {
        context.exists(kind, vmid)?;
    }
    let digest = context.text("digest").map(ToOwned::to_owned);
    if let Some(digest) = &digest {
        let state = context.world.state();
        super::guest::same_digest(state.guest(&context.node, kind, vmid)?, digest)?;
    }
    context.task("resize", &vmid.to_string(), move |job| async move {
        let _lock = job.lock_guest(kind, vmid).await?;
        let drive = {
            let state = job.world.state();
            let guest = state.guest(&job.node, kind, vmid)?;
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
    let (now, sweep) = (job.world.now(), job.world.last_sweep());
    let mut state = job.world.state();
    if let Some((storage, name)) = volume.split_once(':')
        && let Some(storage) = state.storages.get_mut(storage)
    {
        let key = (storage.place(&job.node), name.to_owned());
        if let Some(known) = storage.volumes.get_mut(&key) {
            known.size = new;
        }
    }
    drive.set("size", render_size(new));
    let guest = state.guest_mut(&job.node, kind, vmid)?;
    guest.touch(now, sweep);
    guest.config.set(disk, drive.render());
    Ok(())
}

/// Checks what a drive of a VM asks for before anything is made.
pub(crate) fn check_drive(context: &Context, key: &str, text: &str) -> Result<(), Fail> {
    let drive = Drive::parse(Kind::Qemu, text);
    let volume = drive.volume();
    if let Some(source) = drive.part("import-from") {
        if drive.allocation().is_none_or(|(_, size)| size != 0.0) {
            let words =
                "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>";
            return Err(Fail::parameter(key, words));
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
            let words =
                format!("{source} has wrong type '{kind}' - needs to be 'images' or 'import'");
            return Err(Fail::parameter(key, words));
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
        return Err(Fail::parameter(
            key,
            "explicit 'media=cdrom' is required for iso images",
        ));
    }
    Ok(())
}
