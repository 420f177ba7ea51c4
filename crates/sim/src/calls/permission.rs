//! Authorization: the permission expressions of the API schema, and checks that methods make
//! themselves. A refusal is a 403 that names path and privilege as PVE does.

use serde_json::Value;

use super::{ApiError, Context};
use crate::schema::Method;

/// Checks the permission expression of a method.
pub(crate) fn check(context: &Context, method: &Method) -> Result<(), ApiError> {
    match &method.check {
        Some(expression) if !context.is_root() => evaluate(context, expression, true).map(|_| ()),
        Some(_) | None => Ok(()),
    }
}

/// Evaluates an expression. Only the outermost one names the missing privilege.
fn evaluate(context: &Context, expression: &Value, outermost: bool) -> Result<bool, ApiError> {
    let Some(list) = expression.as_array() else {
        return Ok(true);
    };
    let operator = list.first().and_then(Value::as_str).unwrap_or("");
    let good = match operator {
        "perm" => return evaluate_perm(context, list, outermost),
        "and" => list[1..]
            .iter()
            .all(|part| evaluate(context, part, false).unwrap_or(false)),
        "or" => list[1..]
            .iter()
            .any(|part| evaluate(context, part, false).unwrap_or(false)),
        "userid-param" => {
            let own = context.identity.split('!').next().unwrap_or("");
            list.get(1).and_then(Value::as_str) != Some("self")
                || context.text("userid") == Some(own)
        }
        "userid-group" => {
            let wanted = names(list.get(1));
            has_any(context, "/access/groups", &wanted)
        }
        "perm-modify" => {
            let path = list.get(1).and_then(Value::as_str).unwrap_or("/");
            return match require_any(
                context,
                &expand(context, path),
                &acl_privileges(&expand(context, path)),
            ) {
                Err(fail) if outermost => Err(fail),
                outcome => Ok(outcome.is_ok()),
            };
        }
        _ => true,
    };
    if good || !outermost {
        Ok(good)
    } else {
        Err(ApiError::new(403, "Permission check failed"))
    }
}

/// Returns the privileges any one of which allows changes to the access list of a path: whoever
/// may allocate an object may also grant access to it.
pub(crate) fn acl_privileges(path: &str) -> Vec<String> {
    let own = match path.split('/').collect::<Vec<_>>()[..] {
        ["", "storage", _, ..] => Some("Datastore.Allocate"),
        ["", "vms", _, ..] => Some("VM.Allocate"),
        ["", "pool", _, ..] => Some("Pool.Allocate"),
        _ => None,
    };
    let names = ["Permissions.Modify"].into_iter().chain(own);
    names.map(ToOwned::to_owned).collect()
}

fn evaluate_perm(context: &Context, list: &[Value], outermost: bool) -> Result<bool, ApiError> {
    let path = expand(context, list.get(1).and_then(Value::as_str).unwrap_or("/"));
    let wanted = names(list.get(2));
    // An expression about a parameter is false without it.
    if list.get(3).and_then(Value::as_str) == Some("require_param") {
        let name = list.get(4).and_then(Value::as_str).unwrap_or("");
        if context.text(name).is_none() {
            return Ok(false);
        }
    }
    let any = list.get(3).and_then(Value::as_str) == Some("any");
    let outcome = if any {
        require_any(context, &path, &wanted)
    } else {
        wanted
            .iter()
            .try_for_each(|name| require(context, &path, name))
    };
    match outcome {
        Ok(()) => Ok(true),
        Err(fail) if outermost => Err(fail),
        Err(_) => Ok(false),
    }
}

fn names(value: Option<&Value>) -> Vec<String> {
    value
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(ToOwned::to_owned))
        .collect()
}

/// Replaces `{vmid}` and other parameters in a path.
fn expand(context: &Context, template: &str) -> String {
    let mut path = template.to_owned();
    for (name, value) in &context.parameters {
        path = path.replace(&format!("{{{name}}}"), value);
    }
    path
}

fn has_any(context: &Context, path: &str, wanted: &[String]) -> bool {
    wanted.iter().any(|name| allows(context, path, name))
}

/// Whether the caller has a privilege on a path.
pub(crate) fn allows(context: &Context, path: &str, privilege: &str) -> bool {
    if context.is_root() {
        return true;
    }
    let state = context.world.state();
    state.allows(&context.identity, path, privilege)
}

/// Fails unless the caller has a privilege on a path.
pub(crate) fn require(context: &Context, path: &str, privilege: &str) -> Result<(), ApiError> {
    if allows(context, path, privilege) {
        Ok(())
    } else {
        Err(denied(&format!("{path}, {privilege}")))
    }
}

/// Fails unless the caller has one of the privileges on a path.
pub(crate) fn require_any(
    context: &Context,
    path: &str,
    wanted: &[String],
) -> Result<(), ApiError> {
    if has_any(context, path, wanted) {
        Ok(())
    } else {
        Err(denied(&format!("{path}, {}", wanted.join("|"))))
    }
}

/// Fails unless the caller has a privilege on a guest, or on the pool it will be in.
pub(crate) fn require_guest(
    context: &Context,
    vmid: u32,
    pool: Option<&str>,
    privilege: &str,
) -> Result<(), ApiError> {
    let in_pool = pool.is_some_and(|pool| allows(context, &format!("/pool/{pool}"), privilege));
    if in_pool {
        return Ok(());
    }
    require(context, &format!("/vms/{vmid}"), privilege)
}

/// Returns a 403 with PVE's message.
pub(crate) fn denied(what: &str) -> ApiError {
    ApiError::new(403, format!("Permission check failed ({what})"))
}
