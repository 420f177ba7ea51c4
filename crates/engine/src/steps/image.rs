//! Makes an image available in its storage. Images are never removed; others may use them.

use super::{StepOutcome, StepTask};
use crate::ports::{ImageRequest, ImageSource, PortError};

fn wanted(task: &StepTask) -> Result<ImageRequest, PortError> {
    let need = task.need()?;
    Ok(ImageRequest {
        file: need.file.clone(),
        kind: need.kind,
        host: need.host.clone(),
        storage: need.storage.clone(),
        // The provider decides whether an image without a source can be built.
        source: need.url.clone().map_or(ImageSource::None, ImageSource::Url),
        checksum: need.checksum.clone(),
    })
}

pub(super) async fn probe(task: &StepTask) -> Result<Option<StepOutcome>, PortError> {
    let need = task.need()?;
    let provider = task
        .context
        .provider(&need.site_host, &need.location)
        .await?;
    let there = provider.has_image(&wanted(task)?).await?;
    Ok(there.then(StepOutcome::default))
}

pub(super) async fn act(task: &StepTask) -> Result<StepOutcome, PortError> {
    if let Some(outcome) = probe(task).await? {
        return Ok(outcome);
    }
    let need = task.need()?;
    let provider = task
        .context
        .provider(&need.site_host, &need.location)
        .await?;
    provider.ensure_image(&wanted(task)?).await?;
    Ok(StepOutcome::changed())
}
