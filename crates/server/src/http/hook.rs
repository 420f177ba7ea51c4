//! Receives webhooks.

use homestak_api::v1::trigger::HookAnswer;
use homestak_store::registry::{HookOutcome, TriggerJobs};
use http::StatusCode;

use super::{Answer, Call, blocking, json};
use crate::refusal::Refusal;
use crate::throttle::ThrottleKey;
use crate::trigger::JOB_LIFETIME;
use crate::trigger::hook::{HookRequest, not_signed};

/// `POST /v1/hooks/{name}`: queues a job of every node whose spec names the webhook. The signature of
/// the body is verified; its content is ignored.
pub(super) async fn receive(call: &mut Call<'_>, name: &str) -> Answer {
    call.throttled(ThrottleKey::of(call.peer.address))?;
    let (app, now) = (call.app, call.app.now().as_second());
    let request = HookRequest::parse(&call.head.headers, now)?;
    let body = call.bytes().await?;
    let served = app.served();
    let hook = served.triggers.hooks.get(name);
    let key = hook.and_then(|hook| hook.key.as_ref());
    let is_signed = request.is_signed(key.map(|key| key.as_slice()), &body);
    let Some(hook) = hook.filter(|_| is_signed) else {
        return Err(not_signed());
    };
    let jobs = TriggerJobs {
        guests: hook.guests.clone(),
        origin: format!("webhook {name}"),
        at: now,
        expires: now + JOB_LIFETIME,
    };
    let (registry, name, id) = (app.registry.clone(), name.to_owned(), request.id);
    let (state, keep) = (app.clone(), app.jobs_per_node());
    let outcome = blocking(move || {
        let outcome = registry.accept_hook(&name, &id, &jobs)?;
        match outcome {
            HookOutcome::Accepted(added) => {
                state.jobs.announce_added(&added, keep)?;
                tracing::info!(webhook = name, id, jobs = added.len(), "webhook accepted");
                Ok(Ok(added.len()))
            }
            HookOutcome::Repeated => Ok(Err((
                StatusCode::CONFLICT,
                "E202",
                "a request with this id was accepted before",
            ))),
            HookOutcome::Full => Ok(Err((
                StatusCode::TOO_MANY_REQUESTS,
                "E303",
                "this webhook was used too often within a day",
            ))),
        }
    });
    match outcome.await? {
        Ok(jobs) => Ok(json(StatusCode::ACCEPTED, &HookAnswer { jobs })),
        Err((status, code, why)) => Err(Refusal::new(status, code, why)),
    }
}
