//! `homestak image`: root file systems and disks for nodes on this machine.

use std::process::ExitCode;

use homestak_api::v1::{self, ImageChange, ImageList, kind};
use homestak_core::error::chain;
use homestak_driver::error::count;
use homestak_driver::hosts::local::{
    self, ImageError, ImageInfo, ImageVerification, Images, LOCAL, Node,
};
use homestak_driver::{DriverError, wire};

use super::Outcome;
use crate::args::ImageCommand;
use crate::runtime::{block_on, shutdown_signal};
use crate::settings::Settings;
use crate::ui::{Printer, table};

/// Runs an image command.
pub(super) fn run(command: ImageCommand, settings: &Settings, printer: &Printer) -> Outcome {
    let images = local::images(&settings.driver);
    match command {
        ImageCommand::Build { names, disk } => {
            claim(settings, &names)?;
            build(&images, &names, disk, printer)
        }
        ImageCommand::List => {
            require_readable(settings)?;
            list(&images.list(), printer);
            Ok(ExitCode::SUCCESS)
        }
        ImageCommand::Verify { name } => {
            require_readable(settings)?;
            verify(&images, name.as_deref(), printer)
        }
        ImageCommand::Remove { names, outdated } => {
            let nodes = nodes(settings)?;
            remove(&images, (names, outdated), &nodes, printer)
        }
    }
}

/// Requires that images can be listed; that there is no directory yet means that there are none.
fn require_readable(settings: &Settings) -> Result<(), DriverError> {
    let directory = settings.driver.local_root.join("images");
    match fs_err::read_dir(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let failed = DriverError::file("read", &directory, &error);
            Err(match error.kind() {
                std::io::ErrorKind::PermissionDenied => failed.hint("repeat it with sudo"),
                _ => failed,
            })
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Requires that the image directory belongs to the local host.
fn claim(settings: &Settings, names: &[String]) -> Result<(), DriverError> {
    // Missing permissions and unknown names are reported first.
    if !rustix::process::geteuid().is_root() || !names.iter().all(|name| Images::is_known(name)) {
        return Ok(());
    }
    local::claim(&settings.driver)
}

fn build(images: &Images, names: &[String], disk: bool, printer: &Printer) -> Outcome {
    if let Some(unknown) = names.iter().find(|name| !Images::is_known(name)) {
        let names = Images::names();
        return Err(DriverError::unknown("image", unknown, names.into_iter()));
    }
    let report = |line: &str| printer.message(line);
    let building = async {
        for name in names {
            images.ensure_tree(name, &report).await?;
            if disk {
                images.ensure_disk(name, &report).await?;
            }
        }
        Ok(())
    };
    let built = block_on(async {
        // Dropping a build stops it and deletes its files.
        tokio::select! {
            built = building => Some(built),
            () = shutdown_signal() => None,
        }
    })?;
    let Some(built) = built else {
        printer.message("Interrupted; incomplete images were deleted.");
        return Ok(ExitCode::from(130));
    };
    built.map_err(driver_error)?;
    let keys: Vec<String> = names
        .iter()
        .filter_map(|name| Some(images.current_tree(name)?.key))
        .collect();
    let is_built =
        |image: &&ImageInfo| keys.contains(&image.key) || disk && is_disk_of(image, names);
    let images = wire::image::images(images.list().iter().filter(is_built));
    if printer.output.json {
        let success = true;
        printer.json(&kind::IMAGE_BUILD, &ImageChange { success, images });
    } else {
        for image in &images {
            printer.data(&format!("{}\n", image.path));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_disk_of(image: &ImageInfo, names: &[String]) -> bool {
    let tree = image.name.strip_suffix("-disk");
    image.current
        && tree.is_some_and(|tree| {
            names
                .iter()
                .any(|name| Images::canonical_name(name) == tree)
        })
}

fn list(images: &[ImageInfo], printer: &Printer) {
    if printer.output.json {
        let images = wire::image::images(images);
        printer.json(&kind::IMAGE_LIST, &ImageList { images });
        return;
    }
    if images.is_empty() {
        let names = Images::names().join(", ");
        return printer.message(&format!(
            "No image is built. `homestak image build NAME` builds one of: {names}."
        ));
    }
    let rows = images.iter().map(|image| {
        let state = match (image.current, image.in_use) {
            (true, true) => "in use",
            (true, false) => "current",
            (false, true) => "outdated, in use",
            (false, false) => "outdated",
        };
        vec![
            image.name.clone(),
            image.key.clone(),
            image.made.strftime("%Y-%m-%d %H:%M").to_string(),
            format!("{} MiB", image.bytes >> 20),
            image.files.to_string(),
            state.to_owned(),
        ]
    });
    let headings = ["name", "key", "created", "size", "files", "state"];
    printer.data(&table::render(&headings, rows.collect()));
}

fn verify(images: &Images, name: Option<&str>, printer: &Printer) -> Outcome {
    let names: Vec<String> = match name {
        Some(name) => vec![name.to_owned()],
        None => images.list().iter().map(ImageInfo::id).collect(),
    };
    let verifications = block_on(async {
        let mut verifications: Vec<ImageVerification> = Vec::new();
        for name in &names {
            printer.detail(&format!("reading {name}"));
            verifications.extend(images.verify(name).await?);
        }
        Ok(verifications)
    })?;
    let verifications = verifications.map_err(driver_error)?;
    let damaged: Vec<String> = verifications
        .iter()
        .filter(|verification| !verification.is_intact())
        .map(|verification| verification.info.id())
        .collect();
    if printer.output.json {
        let verification = v1::ImageVerification {
            success: damaged.is_empty(),
            images: verifications.iter().map(wire::image::verified).collect(),
        };
        printer.json(&kind::IMAGE_VERIFY, &verification);
        return Ok(ExitCode::from(u8::from(!damaged.is_empty())));
    }
    for verification in &verifications {
        let status = if verification.is_intact() {
            "sound"
        } else {
            "CHANGED"
        };
        printer.data(&format!("{status:<8} {}\n", verification.info.id()));
    }
    if damaged.is_empty() {
        printer.message(&format!(
            "{} as built.",
            count(verifications.len(), "image")
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let error = DriverError::failed(format!(
        "{} not as built: {}.",
        count(damaged.len(), "image"),
        damaged.join(", ")
    ));
    Err(damaged.iter().fold(error, |error, id| {
        let name = id.rsplit_once('-').map_or(&**id, |(name, _)| name);
        let name = name.trim_end_matches("-disk");
        error.hint(format!(
            "homestak image remove {id} && homestak image build {name}"
        ))
    }))
}

/// Returns the nodes of this machine: they need their images, also while they are stopped.
fn nodes(settings: &Settings) -> Result<Vec<Node>, DriverError> {
    let local = local::open(&settings.driver);
    let nodes = local.and_then(|local| local.nodes());
    let nodes = nodes.map_err(|error| DriverError::of_host(LOCAL, &error))?;
    Ok(nodes.into_iter().map(|(node, _)| node).collect())
}

fn remove(
    images: &Images,
    (names, outdated): (Vec<String>, bool),
    nodes: &[Node],
    printer: &Printer,
) -> Outcome {
    let needed_by = |image: &ImageInfo| {
        let of = |node: &&Node| node.tree.starts_with(&image.path);
        nodes.iter().find(of).map(|node| node.name.clone())
    };
    let names: Vec<String> = if outdated {
        let list = images.list();
        let old = list.iter().filter(|image| !image.current);
        let free = old.filter(|image| needed_by(image).is_none());
        free.map(ImageInfo::id).collect()
    } else {
        for name in &names {
            for image in images.find(name).map_err(driver_error)? {
                if let Some(node) = needed_by(&image) {
                    return Err(DriverError::refused(format!(
                        "The image `{}` is used by node `{node}`.",
                        image.id()
                    ))
                    .hint("destroy the node first; homestak local show lists them"));
                }
            }
        }
        names
    };
    let removed = block_on(async {
        let mut removed: Vec<ImageInfo> = Vec::new();
        for name in &names {
            removed.extend(images.remove(name).await?);
        }
        Ok(removed)
    })?;
    let removed = removed.map_err(driver_error)?;
    if printer.output.json {
        let (success, images) = (true, wire::image::images(&removed));
        printer.json(&kind::IMAGE_REMOVE, &ImageChange { success, images });
    } else {
        let bytes: u64 = removed.iter().map(|image| image.bytes).sum();
        printer.message(&format!(
            "Removed {}, {} MiB.",
            count(removed.len(), "image"),
            bytes >> 20
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Words an error for a person.
fn driver_error(error: ImageError) -> DriverError {
    let text = chain(&error);
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    let text: String = first.into_iter().chain(letters).collect();
    let made = match error {
        // The image is valid; it can be removed once no node uses it.
        ImageError::InUse { .. } => DriverError::refused(format!("{text}.")),
        _ => DriverError::failed(format!("{text}.")),
    };
    let log = error.log().iter().map(|line| format!("log: {line}"));
    let made = log.fold(made, DriverError::hint);
    match error.hint() {
        hint if hint.is_empty() => made,
        hint => made.hint(hint),
    }
}
