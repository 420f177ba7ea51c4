//! The API of the simulator itself, under `/sim`: advances the clock, and reports whether a guest
//! accepts SSH connections. Proxmox VE has no such calls.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;

use crate::calls::{Answer, ApiError, Outcome, Request};
use crate::world::World;

/// Whether a request is for the simulator itself.
pub(crate) fn is_control_request(request: &Request) -> bool {
    let path = request.api_path();
    path == "/sim" || path.starts_with("/sim/")
}

/// Answers a request for the simulator itself.
pub(crate) async fn answer(world: &World, request: &Request) -> Answer {
    match handle(world, request).await {
        Ok(output) => Answer::ok(output),
        Err(error) => Answer::refused(error),
    }
}

async fn handle(world: &World, request: &Request) -> Outcome {
    world.authenticate(request)?;
    match (request.method.as_str(), request.api_path()) {
        ("GET", "/sim/time") => {}
        ("GET", "/sim/ssh") => {
            let address = request.parameters.get("address").map(String::as_str);
            let address =
                address.ok_or_else(|| ApiError::parameter("address", "address is required"))?;
            return Ok(json!({ "answers": world.ssh_answers(address) }).into());
        }
        ("POST", "/sim/step") => step(world, request).await?,
        _ => {
            return Err(ApiError::new(
                501,
                "the simulator implements `GET /sim/time`, `GET /sim/ssh` and `POST /sim/step`",
            ));
        }
    }
    let now = world.clock().now();
    // `quiet`: no task is running.
    let next = world.stepped().and_then(|clock| clock.next_due());
    Ok(json!({
        "now": now.to_string(),
        "next": next.map(|next| next.duration_since(now).as_secs_f64()),
        "quiet": world.is_idle(),
    })
    .into())
}

/// Advances the clock by a number of seconds, or to the next timer.
async fn step(world: &World, request: &Request) -> Result<(), ApiError> {
    let clock = world.stepped().ok_or_else(|| {
        ApiError::new(
            409,
            "the clock cannot be stepped; serve with `--pace stepped`",
        )
    })?;
    let by = match request.parameters.get("seconds") {
        Some(text) => text
            .parse::<f64>()
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .ok_or_else(|| {
                ApiError::parameter("seconds", "must be a number of seconds, 0 or more")
            })?,
        None => {
            let now = world.clock().now();
            let next = clock.next_due().unwrap_or(now);
            let until: SignedDuration = next.duration_since(now);
            Duration::try_from(until).unwrap_or_default()
        }
    };
    clock.advance(by).await;
    world.apply_due_events();
    Ok(())
}
