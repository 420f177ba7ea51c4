//! Renders a plan as a tree with a mark for each action, reasons, and a summary.
//!
//! Colour never carries meaning alone.

use std::collections::BTreeMap;

use homestak_core::converge::{self, Change};
use homestak_core::observed::{GuestKind, PowerState};
use homestak_core::plan::{
    Action, ExistingGuest, ForeignGuest, GuestPlan, NodeLocation, NodePlan, Plan, Reason, Verb,
};
use owo_colors::OwoColorize as _;

use super::count;

/// How many differences inside a node are shown without `-v`, besides those that remove something
/// or could make the node unreachable.
const SHOWN: usize = 12;

/// Renders a plan. With `more`, unchanged guests are listed too.
pub(crate) fn render(plan: &Plan, more: bool) -> String {
    let on = match plan.hosts.is_empty() {
        true => String::new(),
        false => format!(" on {}", plan.hosts.join(", ")),
    };
    let mut text = format!("{} `{}`{on}\n", plan.verb.name(), plan.manifest);
    let mut inside: BTreeMap<&str, Vec<&NodePlan>> = BTreeMap::new();
    let mut roots = Vec::new();
    for node in &plan.nodes {
        match &node.location {
            NodeLocation::Inside(parent) if plan.node(parent).is_some() => {
                inside.entry(parent).or_default().push(node);
            }
            NodeLocation::Inside(_) | NodeLocation::Host(_) => roots.push(node),
        }
    }
    // Iterative: manifests may be nested deeply.
    let mut open: Vec<(&NodePlan, usize)> = roots.into_iter().rev().map(|node| (node, 0)).collect();
    while let Some((node, level)) = open.pop() {
        text += &line(plan, node, level, more);
        let children = inside.remove(node.name.as_str()).unwrap_or_default();
        open.extend(children.into_iter().rev().map(|child| (child, level + 1)));
    }
    for refusal in &plan.refusals {
        let about = refusal.node.as_ref();
        let about = about.map_or_else(String::new, |node| format!("`{node}`: "));
        let why = reason(&refusal.reason);
        text += &format!("{} {about}{why}\n", "refused:".red().bold());
        if !refusal.hint.is_empty() {
            text += &format!("  {} {}\n", "hint:".cyan().bold(), refusal.hint);
        }
    }
    text += &others(plan, more);
    text += &simulated(plan);
    text += &summary(plan);
    text.push('\n');
    text
}

/// Reports guests that the plan does not change: copies of its guests always, others by number.
fn others(plan: &Plan, more: bool) -> String {
    let mut text = String::new();
    let (copies, foreign): (Vec<&ForeignGuest>, Vec<&ForeignGuest>) = plan
        .foreign
        .iter()
        .partition(|guest| guest.copy_of.is_some());
    for guest in copies {
        let of = guest.copy_of.as_deref().unwrap_or_default();
        text += &format!(
            "unchanged: guest {} ({}) on {} carries the identity of `{of}` and is not its guest\n",
            guest.vmid, guest.name, guest.host
        );
    }
    if foreign.is_empty() {
        return text;
    }
    let number = count(foreign.len(), "other guest");
    if !more {
        return text + &format!("unchanged: {number} (-v lists them)\n");
    }
    text += &format!("unchanged: {number}\n");
    for guest in foreign {
        let owner = match (&guest.manifest, &guest.site) {
            (Some(manifest), Some(site)) => format!(" of manifest `{manifest}`, site `{site}`"),
            (Some(manifest), None) => format!(" of manifest `{manifest}`"),
            (None, _) => String::new(),
        };
        text += &format!(
            "  {} {}{owner} on {}\n",
            guest.vmid, guest.name, guest.location
        );
    }
    text
}

/// Reports nodes whose specs are not applied because they are simulated.
fn simulated(plan: &Plan) -> String {
    match plan.nodes.iter().filter(|node| node.simulated).count() {
        0 => String::new(),
        1 => "simulated: the spec of 1 node is not applied\n".to_owned(),
        number => format!("simulated: the specs of {number} nodes are not applied\n"),
    }
}

fn line(plan: &Plan, node: &NodePlan, level: usize, more: bool) -> String {
    let indent = "  ".repeat(level + 1);
    let (mark, what) = match node.action {
        Action::Nothing => (" ".to_owned(), unchanged(plan, node)),
        Action::Create => ("+".green().to_string(), new_guest(node)),
        Action::Start => (">".cyan().to_string(), format!("start {}", id(node))),
        Action::Change => ("~".yellow().to_string(), format!("change {}", id(node))),
        Action::Configure => ("~".yellow().to_string(), format!("configure {}", id(node))),
        Action::Replace => (
            "±".red().to_string(),
            format!("replace {} with a new one: {}", id(node), new_guest(node)),
        ),
        Action::Destroy => ("-".red().to_string(), format!("destroy {}", id(node))),
        Action::Reidentify => {
            let what = format!("give {} an identity of this site", id(node));
            ("~".yellow().to_string(), what)
        }
        Action::Keep if node.is_untagged() => (" ".to_owned(), unchanged(plan, node)),
        Action::Keep => (" ".to_owned(), format!("unchanged: {}", id(node))),
    };
    let mut text = format!("{indent}{mark} {}  {what}\n", node.name.bold());
    let with_reasons = match (node.action, plan.verb) {
        // An absent node needs no reason, unless its former guest exists.
        (Action::Nothing, Verb::Destroy) => {
            more || node.is_untagged() || destroyed_with(plan, node).is_some()
        }
        (Action::Destroy, Verb::Destroy) => more || node.reasons.len() > 1,
        _ => true,
    };
    for why in node.reasons.iter().filter(|_| with_reasons) {
        text += &format!("{indent}    {}\n", reason(why));
    }
    text += &inside(node, &indent, more);
    text
}

/// Renders the changes inside a node: its spec, or its differences.
fn inside(node: &NodePlan, indent: &str, more: bool) -> String {
    let Some(config) = &node.config else {
        return String::new();
    };
    let Some(found) = &config.found else {
        return match node.action {
            Action::Nothing => String::new(),
            Action::Create | Action::Replace => format!(
                "{indent}    then configured from its spec `{}`\n",
                config.spec
            ),
            Action::Start
            | Action::Change
            | Action::Configure
            | Action::Destroy
            | Action::Reidentify
            | Action::Keep => {
                let hint = config.unseen.as_ref().map(|unseen| &unseen.hint);
                let hint = hint.filter(|hint| !hint.is_empty());
                let hint = hint.map_or_else(String::new, |hint| {
                    format!("{indent}    {} {hint}\n", "hint:".cyan().bold())
                });
                format!(
                    "{indent}    then configured from its spec `{}`; the changes inside could not be determined\n{hint}",
                    config.spec
                )
            }
        };
    };
    let mut room = if more { usize::MAX } else { SHOWN };
    let is_shown = |change: &&Change| {
        if change.is_removal() || change.danger.is_some() {
            return true;
        }
        let fits = room > 0;
        room = room.saturating_sub(1);
        fits
    };
    let shown: Vec<Change> = found.changes.iter().filter(is_shown).cloned().collect();
    let left = found.changes.len() - shown.len();
    let mut text = String::new();
    for line in converge::render(&shown).lines() {
        text += &format!("{indent}    {line}\n");
    }
    if left > 0 {
        text += &format!("{indent}    and {left} more (-v lists them)\n");
    }
    text
}

fn unchanged(plan: &Plan, node: &NodePlan) -> String {
    let inside = node
        .config
        .as_ref()
        .and_then(|config| config.found.as_ref());
    let differs = inside.is_some_and(|found| !found.changes.is_empty());
    match (&node.found, destroyed_with(plan, node)) {
        (Some(found), Some(parent)) => {
            format!("{} is destroyed with `{parent}`", guest(found))
        }
        (None, Some(parent)) => {
            format!("no record; everything inside `{parent}` is destroyed with it")
        }
        (Some(found), None) if found.power == PowerState::Unknown => {
            format!("{}: power state unknown", guest(found))
        }
        (Some(found), None) if differs || !node.reasons.is_empty() => {
            format!("{} is unchanged", guest(found))
        }
        (Some(found), None) => format!("{} is up to date", guest(found)),
        (None, None) if node.is_untagged() => "has no guest any more".to_owned(),
        (None, None) if is_refused(plan, node) => "refused, see below".to_owned(),
        (None, None) => "does not exist".to_owned(),
    }
}

fn is_refused(plan: &Plan, node: &NodePlan) -> bool {
    let mut refusals = plan.refusals.iter();
    refusals.any(|refusal| refusal.node.as_deref() == Some(&node.name))
}

/// Returns the node that is destroyed with this one in it, however deep.
fn destroyed_with<'p>(plan: &'p Plan, node: &'p NodePlan) -> Option<&'p str> {
    let parent = |node: &&'p NodePlan| match &node.location {
        NodeLocation::Inside(parent) => plan.node(parent),
        NodeLocation::Host(_) => None,
    };
    // A plan file that was edited may have a cycle.
    let above = std::iter::successors(parent(&node), parent).take(plan.nodes.len());
    let mut destroyed = above.filter(|node| node.action == Action::Destroy);
    destroyed.next().map(|node| node.name.as_str())
}

fn id(node: &NodePlan) -> String {
    node.found.as_ref().map_or_else(String::new, guest)
}

fn guest(found: &ExistingGuest) -> String {
    let kind = kind(found.guest.kind);
    match found.guest.vmid {
        None => kind.to_owned(),
        Some(vmid) => format!("{kind} {vmid} on {}", found.guest.host),
    }
}

fn kind(kind: GuestKind) -> &'static str {
    match kind {
        GuestKind::Vm => "vm",
        GuestKind::Ct => "ct",
    }
}

fn new_guest(node: &NodePlan) -> String {
    let Some(wanted) = &node.wanted else {
        return String::new();
    };
    let GuestPlan {
        cores,
        memory,
        disk,
        ..
    } = &wanted.guest;
    let source = &wanted.source;
    let vmid = wanted.vmid.map_or_else(String::new, |id| format!(" {id}"));
    format!(
        "{}{vmid} on {}: {}, {memory}, {disk}, from {source}",
        kind(wanted.kind),
        wanted.host,
        count(*cores as usize, "CPU"),
    )
}

fn reason(reason: &Reason) -> String {
    match &reason.source {
        Some(source) => format!("{} {}", reason.text, format!("({source})").dimmed()),
        None => reason.text.clone(),
    }
}

/// Summarizes a plan in one line.
pub(crate) fn summary(plan: &Plan) -> String {
    if plan.is_empty() && plan.refusals.is_empty() {
        return "Nothing to do.".to_owned();
    }
    // Guests inside a node that is destroyed are destroyed with it.
    let number = |action| {
        let nodes = plan.nodes.iter().filter(|node| {
            let destroyed = node.action == Action::Nothing
                && node.found.is_some()
                && destroyed_with(plan, node).is_some();
            action
                == if destroyed {
                    Action::Destroy
                } else {
                    node.action
                }
        });
        nodes.count()
    };
    let mut parts: Vec<String> = [
        Action::Create,
        Action::Start,
        Action::Change,
        Action::Configure,
        Action::Replace,
        Action::Destroy,
        Action::Reidentify,
    ]
    .into_iter()
    .map(|action| (number(action), action))
    .filter(|(number, _)| *number > 0)
    .map(|(number, action)| format!("{number} to {}", action.name()))
    .collect();
    let unchanged = match plan.verb {
        Verb::Apply => (number(Action::Nothing), "unchanged"),
        Verb::Destroy | Verb::Reidentify => (number(Action::Nothing), "absent"),
    };
    for (number, label) in [
        unchanged,
        (number(Action::Keep), "no longer in the manifest"),
        (plan.refusals.len(), "refused"),
    ] {
        if number > 0 {
            parts.push(format!("{number} {label}"));
        }
    }
    if plan.is_empty() {
        return format!("{}.", parts.join(", "));
    }
    let takes = match (plan.estimate, plan.measured) {
        (Some(seconds), true) => format!("about {}", duration(seconds)),
        (Some(seconds), false) => {
            format!("roughly {}, as measured on other hosts", duration(seconds))
        }
        (None, _) => "duration was not measured yet".to_owned(),
    };
    format!("{}; {takes}", parts.join(", "))
}

/// Formats a duration.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..=119 => format!("{whole} s"),
        120..=7_199 => format!("{} min", (whole + 30) / 60),
        _ => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn removals_and_dangerous_changes_are_shown_however_many_others_there_are() {
        let change = |resource: &str, field: &str, expected: &str, found: &str| {
            json!({
                "id": format!("{resource}/{field}"), "resource": resource, "field": field,
                "expected": expected, "found": found, "since": "spec", "handling": "enforce",
            })
        };
        let mut changes: Vec<_> = (0..20)
            .map(|n| change(&format!("file:/etc/{n}"), "content", "new", "old"))
            .collect();
        let mut rule = change("sudo:ops", "rule", "absent", "present");
        rule["danger"] = "sudo".into();
        changes.push(rule);
        changes.push(change("user:alice", "login", "closed", "open"));
        let node: NodePlan = serde_json::from_value(json!({
            "name": "web", "host": "father", "place": { "host": "father" }, "depth": 0,
            "action": "configure", "reasons": [],
            "config": {
                "spec": "web", "digest": "", "port": 22,
                "found": { "settled": false, "changes": changes },
            },
        }))
        .expect("a node");
        let text = inside(&node, "", false);
        for part in ["file:/etc/11", "sudo:ops", "user:alice", "and 8 more"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("file:/etc/12"), "{text}");
        assert!(!inside(&node, "", true).contains(" more"));
    }

    fn rendered(verb: &str, nodes: serde_json::Value, refusals: serde_json::Value) -> String {
        let plan: Plan = serde_json::from_value(json!({
            "form": 2, "verb": verb, "manifest": "u", "hosts": ["sim"], "on_error": "stop",
            "parallelism": 1, "verify_ssh": false, "timeout_buffer": 0, "nodes": nodes,
            "images": [], "foreign": [], "refusals": refusals,
        }))
        .expect("a plan");
        render(&plan, false)
    }

    fn existing(
        name: &str,
        place: serde_json::Value,
        vmid: u32,
        action: &str,
    ) -> serde_json::Value {
        json!({
            "name": name, "host": "sim", "place": place, "depth": 0, "action": action,
            "reasons": [{ "text": "why", "source": null }],
            "found": {
                "guest": {
                    "uuid": "07070707-0707-0707-0707-070707070707", "kind": "vm", "vmid": vmid,
                    "host": "pve1",
                },
                "power": "Unknown", "made": true, "ready": null, "cores": null, "memory": null,
                "disk": null,
            },
        })
    }

    #[test]
    fn guests_inside_a_destroyed_node_are_reported_and_counted_as_destroyed_at_any_depth() {
        let inside = |parent: &str| json!({ "inside": parent });
        let text = rendered(
            "destroy",
            json!([
                existing("hyper", json!({ "host": "sim" }), 7000, "destroy"),
                existing("kid", inside("hyper"), 7002, "nothing"),
                existing("grandkid", inside("kid"), 7003, "nothing"),
            ]),
            json!([]),
        );
        assert_eq!(text.matches("is destroyed with").count(), 2, "{text}");
        assert!(text.contains("3 to destroy"), "{text}");
        assert!(!text.contains("absent"), "{text}");
    }

    #[test]
    fn a_node_that_could_not_be_observed_is_not_reported_as_up_to_date() {
        let mut node = existing("web", json!({ "host": "sim" }), 7000, "nothing");
        node["reasons"] = json!([]);
        let why = json!({ "text": "no answer", "source": null });
        let refusals = json!([{ "node": "web", "reason": why, "hint": "" }]);
        let text = rendered("apply", json!([node]), refusals);
        assert!(!text.contains("up to date"), "{text}");
        assert!(text.contains("unknown"), "{text}");
        assert!(!text.contains("hint:"), "{text}");
    }
}
