//! Calls under `/pools`: pools of guests and storages.

use serde_json::{Value, json};

use super::{ApiError, Context, Outcome, permission};
use crate::schema::format::split_list;

pub(crate) fn list(context: &Context) -> Outcome {
    let names: Vec<(String, String)> = {
        let state = context.world.state();
        state
            .pools
            .iter()
            .map(|(name, comment)| (name.clone(), comment.clone()))
            .collect()
    };
    let list: Vec<Value> = names
        .into_iter()
        .filter(|(name, _)| permission::allows(context, &format!("/pool/{name}"), "Pool.Audit"))
        .map(|(name, comment)| {
            let mut shown = json!({ "poolid": name });
            if !comment.is_empty() {
                shown["comment"] = json!(comment);
            }
            shown
        })
        .collect();
    Ok(json!(list).into())
}

pub(crate) fn create(context: &Context) -> Outcome {
    let name = context.required("poolid")?.to_owned();
    let mut state = context.world.state();
    if state.pools.contains_key(&name) {
        return Err(format!("create pool failed: pool '{name}' already exists").into());
    }
    state
        .pools
        .insert(name, context.text("comment").unwrap_or("").to_owned());
    Ok(Value::Null.into())
}

fn no_pool(name: &str) -> ApiError {
    ApiError::new(500, format!("pool '{name}' does not exist"))
}

pub(crate) fn read(context: &Context) -> Outcome {
    let name = context.required("poolid")?;
    let now = context.world.now();
    let last_update = context.world.last_status_update();
    let state = context.world.state();
    let comment = state.pools.get(name).ok_or_else(|| no_pool(name))?;
    let mut members: Vec<Value> = state
        .guests
        .values()
        .filter(|guest| state.pool_of.get(&guest.vmid).map(String::as_str) == Some(name))
        .map(|guest| guest.resource(now, last_update))
        .map(|entry| json!(entry))
        .collect();
    for storage in state.pool_storages.get(name).into_iter().flatten() {
        members.push(
            json!({ "id": format!("storage/{storage}"), "type": "storage", "storage": storage }),
        );
    }
    let mut shown = json!({ "members": members });
    if !comment.is_empty() {
        shown["comment"] = json!(comment);
    }
    Ok(shown.into())
}

pub(crate) fn change(context: &Context) -> Outcome {
    let name = context.required("poolid")?.to_owned();
    let mut state = context.world.state();
    if !state.pools.contains_key(&name) {
        return Err(no_pool(&name));
    }
    if let Some(comment) = context.text("comment") {
        state.pools.insert(name.clone(), comment.to_owned());
    }
    for vmid in split_list(context.text("vms").unwrap_or("")) {
        let vmid: u32 = vmid.parse().unwrap_or(0);
        if context.flag("delete") {
            state.pool_of.remove(&vmid);
        } else {
            state.pool_of.insert(vmid, name.clone());
        }
    }
    for storage in split_list(context.text("storage").unwrap_or("")) {
        state.storage(storage)?;
        let held = state.pool_storages.entry(name.clone()).or_default();
        if context.flag("delete") {
            held.remove(storage);
        } else {
            held.insert(storage.to_owned());
        }
    }
    Ok(Value::Null.into())
}

pub(crate) fn delete(context: &Context) -> Outcome {
    let name = context.required("poolid")?;
    let mut state = context.world.state();
    let stored = state.pool_storages.get(name);
    if state.pool_of.values().any(|pool| pool == name)
        || stored.is_some_and(|storages| !storages.is_empty())
    {
        return Err(format!("delete pool failed: pool '{name}' is not empty").into());
    }
    state.pools.remove(name).ok_or_else(|| no_pool(name))?;
    Ok(Value::Null.into())
}
