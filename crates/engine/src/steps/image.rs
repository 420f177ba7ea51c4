//! Brings an image into its storage.
//!
//! In: a step with its image. Out: whether it had to be fetched.
//! Never: an image removed; others may use it.

use super::{Came, Task};
use crate::ports::{ImageSource, ImageWanted, PortError};

fn wanted(task: &Task) -> Result<ImageWanted, PortError> {
    let need = task.need()?;
    Ok(ImageWanted {
        file: need.file.clone(),
        kind: need.kind,
        host: need.host.clone(),
        storage: need.storage.clone(),
        // Whether one without a source can be made is for the provider to say.
        source: need.url.clone().map_or(ImageSource::None, ImageSource::Url),
        checksum: need.checksum.clone(),
    })
}

pub(super) async fn probe(task: &Task) -> Result<Option<Came>, PortError> {
    let need = task.need()?;
    let provider = task.board.open(&need.site_host, &need.location).await?;
    let there = provider.has_image(&wanted(task)?).await?;
    Ok(there.then(Came::default))
}

pub(super) async fn act(task: &Task) -> Result<Came, PortError> {
    if let Some(came) = probe(task).await? {
        return Ok(came);
    }
    let need = task.need()?;
    let provider = task.board.open(&need.site_host, &need.location).await?;
    provider.ensure_image(&wanted(task)?).await?;
    Ok(Came::changed())
}
