//! What starts runs, for operators.

use homestak_api::v1::trigger::{RepositoryStatus, Triggers, WebhookStatus};
use http::StatusCode;

use super::{Answer, Call, blocking, json};

/// `GET /v1/triggers`
pub(super) async fn list(call: &Call<'_>) -> Answer {
    call.operator()?;
    let (served, registry) = (call.app.served(), call.app.registry.clone());
    let triggers = blocking(move || {
        let mut webhooks = Vec::new();
        for (name, hook) in &served.triggers.hooks {
            webhooks.push(WebhookStatus {
                name: name.clone(),
                nodes: hook.guests.len(),
                has_secret: hook.key.is_some(),
                accepted: registry.last_hook(name)?,
            });
        }
        let mut repositories = Vec::new();
        for (branch, polling) in &served.triggers.branches {
            for (signers, followers) in &polling.followers {
                let found = registry.repository(&branch.key(signers))?;
                let refused = found.as_ref().and_then(|found| found.refused.clone());
                let (refused, reason) = refused.unzip();
                repositories.push(RepositoryStatus {
                    repo: branch.repo.to_string(),
                    branch: branch.branch.as_ref().map(ToString::to_string),
                    nodes: followers.guests.len(),
                    signed: followers.signers.is_some(),
                    commit: found.as_ref().and_then(|found| found.accepted.clone()),
                    changed: found.as_ref().and_then(|found| found.changed),
                    refused,
                    reason,
                    checked: found.as_ref().map(|found| found.checked),
                    error: found.and_then(|found| found.error),
                });
            }
        }
        Ok(Triggers {
            webhooks,
            repositories,
        })
    });
    Ok(json(StatusCode::OK, &triggers.await?))
}
