//! What the simulator is told and asked over the network besides calls of Proxmox VE: to let time
//! pass, and whether the SSH of a guest answers.
//!
//! In: a request under `/sim`. Out: an answer in the form of the others.
//! Never: anything for those without a token; anything that a client of Proxmox VE would meet.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;

use crate::calls::{Answer, Fail, Outcome, Request};
use crate::world::World;

/// Whether a request is for the simulator itself.
pub(crate) fn is_meant(request: &Request) -> bool {
    // Clients of the API put its prefix before it.
    let path = request.api_path();
    path == "/sim" || path.starts_with("/sim/")
}

/// Answers a request for the simulator itself.
pub(crate) async fn answer(world: &World, request: &Request) -> Answer {
    match act(world, request).await {
        Ok(output) => Answer::ok(output),
        Err(fail) => Answer::refused(fail),
    }
}

async fn act(world: &World, request: &Request) -> Outcome {
    world.authenticate(request)?;
    match (request.method.as_str(), request.api_path()) {
        ("GET", "/sim/time") => {}
        ("GET", "/sim/ssh") => {
            let address = request.parameters.get("address").map(String::as_str);
            let address = address.ok_or_else(|| Fail::parameter("address", "an address"))?;
            return Ok(json!({ "answers": world.ssh_answers(address) }).into());
        }
        ("POST", "/sim/step") => step(world, request).await?,
        _ => {
            return Err(Fail::new(
                501,
                "the simulator has `GET /sim/time`, `GET /sim/ssh` and `POST /sim/step`",
            ));
        }
    }
    let now = world.clock().now();
    let next = world.stepped().and_then(|clock| clock.next_due());
    Ok(json!({
        "now": now.to_string(),
        "next": next.map(|next| next.duration_since(now).as_secs_f64()),
        "quiet": world.is_quiet(),
    })
    .into())
}

/// Lets time pass: so many seconds, or until the next thing happens.
async fn step(world: &World, request: &Request) -> Result<(), Fail> {
    let clock = world
        .stepped()
        .ok_or_else(|| Fail::new(409, "time goes by itself here; serve with `--pace stepped`"))?;
    let by = match request.parameters.get("seconds") {
        Some(text) => text
            .parse::<f64>()
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .ok_or_else(|| Fail::parameter("seconds", "a number of seconds, 0 or more"))?,
        None => {
            let now = world.clock().now();
            let next = clock.next_due().unwrap_or(now);
            let until: SignedDuration = next.duration_since(now);
            Duration::try_from(until).unwrap_or_default()
        }
    };
    clock.advance(by).await;
    world.catch_up();
    Ok(())
}
