//! Calls about tasks: list, status, log, stop.

use serde_json::{Value, json};

use super::{ApiError, Context, Outcome, Output, permission};
use crate::schema::format::split_list;
use crate::world::task::{Task, is_upid};

impl Context {
    /// Finds the task of a call. Callers other than its owner need `Sys.Audit`.
    fn task_of_call(&self) -> Result<Task, ApiError> {
        let upid = self.required("upid")?;
        if !is_upid(upid) {
            return Err(ApiError::parameter("upid", "unable to parse worker upid"));
        }
        let task = self.world.state().tasks.by_upid.get(upid).cloned();
        let task = task.ok_or_else(|| ApiError::parameter("upid", "no such task"))?;
        let own = self.identity.split('!').next() == Some(task.user());
        if !own {
            permission::require(self, &format!("/nodes/{}", task.node), "Sys.Audit")?;
        }
        Ok(task)
    }
}

pub(crate) fn status(context: &Context) -> Outcome {
    let task = context.task_of_call()?;
    let mut shown = json!({
        "upid": task.upid,
        "node": task.node,
        "pid": task.pid,
        "pstart": task.pstart,
        "starttime": task.started,
        "type": task.kind,
        "id": task.id,
        "user": task.user(),
        "status": if task.ended.is_some() { "stopped" } else { "running" },
    });
    if let Some(token) = task.token() {
        shown["tokenid"] = json!(token);
    }
    if let Some(exit) = &task.exit {
        shown["exitstatus"] = json!(exit);
    }
    Ok(shown.into())
}

pub(crate) fn log(context: &Context) -> Outcome {
    let task = context.task_of_call()?;
    let start = context.number("start").unwrap_or(0) as usize;
    // PVE returns only 50 lines by default.
    let limit = match context.number("limit") {
        None => 50,
        Some(0) => usize::MAX,
        Some(limit) => limit as usize,
    };
    let lines: Vec<Value> = task
        .log
        .iter()
        .enumerate()
        .skip(start)
        .take(limit)
        .map(|(at, line)| json!({ "n": at + 1, "t": line }))
        .collect();
    let lines = if lines.is_empty() && start == 0 {
        vec![json!({ "n": 1, "t": "no content" })]
    } else {
        lines
    };
    Ok(Output::Page(json!(lines), task.log.len().max(1)))
}

pub(crate) fn stop(context: &Context) -> Outcome {
    let task = context.task_of_call()?;
    let own = context.identity.split('!').next() == Some(task.user());
    if !own {
        permission::require(context, &format!("/nodes/{}", task.node), "Sys.Modify")?;
    }
    task.cancel.cancel();
    Ok(Value::Null.into())
}

/// Lists the tasks of a host, newest first.
pub(crate) fn list(context: &Context) -> Outcome {
    let all = permission::allows(context, &format!("/nodes/{}", context.node), "Sys.Audit");
    let user = context.identity.split('!').next().unwrap_or("").to_owned();
    let state = context.world.state();
    let source = context.text("source").unwrap_or("archive");
    let time = |name: &str| context.text(name).and_then(|text| text.parse::<i64>().ok());
    let (since, until) = (time("since"), time("until"));
    let found: Vec<&Task> = state
        .tasks
        .order
        .iter()
        .rev()
        .filter_map(|upid| state.tasks.by_upid.get(upid))
        .filter(|task| task.node == context.node && (all || task.user() == user))
        .filter(|task| match source {
            "active" => task.ended.is_none(),
            "all" => true,
            _ => task.ended.is_some(),
        })
        .filter(|task| context.text("vmid").is_none_or(|vmid| task.id == vmid))
        .filter(|task| {
            context
                .text("typefilter")
                .is_none_or(|kind| task.kind == kind)
        })
        .filter(|task| {
            context
                .text("userfilter")
                .is_none_or(|user| task.identity.contains(user))
        })
        .filter(|task| !context.flag("errors") || task.exit.as_deref() != Some("OK"))
        .filter(|task| since.is_none_or(|since| task.started >= since))
        .filter(|task| until.is_none_or(|until| task.started <= until))
        .filter(|task| {
            let wanted = context.text("statusfilter");
            wanted.is_none_or(|wanted| split_list(wanted).any(|word| word == class_of(task)))
        })
        .collect();
    let total = found.len();
    let start = context.number("start").unwrap_or(0) as usize;
    let limit = context.number("limit").unwrap_or(50) as usize;
    let page: Vec<Value> = found
        .into_iter()
        .skip(start)
        .take(limit)
        .map(entry)
        .collect();
    // An empty list has no total.
    Ok(match total {
        0 => Output::Data(json!(page)),
        total => Output::Page(json!(page), total),
    })
}

/// Returns the result of a task in the terms of `statusfilter`.
fn class_of(task: &Task) -> &'static str {
    match task.exit.as_deref() {
        Some("OK") => "ok",
        Some(exit) if exit.starts_with("WARNINGS: ") => "warning",
        Some("unexpected status") | None => "unknown",
        Some(_) => "error",
    }
}

fn entry(task: &Task) -> Value {
    let mut shown = json!({
        "upid": task.upid,
        "node": task.node,
        "pid": task.pid,
        "pstart": task.pstart,
        "starttime": task.started,
        "type": task.kind,
        "id": task.id,
        "user": task.user(),
    });
    if let Some(token) = task.token() {
        shown["tokenid"] = json!(token);
    }
    if let Some(ended) = task.ended {
        shown["endtime"] = json!(ended);
        shown["status"] = json!(task.exit);
    }
    shown
}

/// Lists the recent tasks of all hosts.
pub(crate) fn cluster(context: &Context) -> Outcome {
    let all = permission::allows(context, "/", "Sys.Audit");
    let user = context.identity.split('!').next().unwrap_or("").to_owned();
    let state = context.world.state();
    let list: Vec<Value> = state
        .tasks
        .order
        .iter()
        .rev()
        .filter_map(|upid| state.tasks.by_upid.get(upid))
        .filter(|task| all || task.user() == user)
        .take(25)
        .map(|task| {
            let mut shown = entry(task);
            if let Some(object) = shown.as_object_mut() {
                object.remove("pid");
                object.remove("pstart");
                if task.ended.is_some() {
                    object.insert("saved".into(), json!("1"));
                }
            }
            shown
        })
        .collect();
    Ok(json!(list).into())
}
