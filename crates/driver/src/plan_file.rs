//! Plans in files: the plan and the options it was made with, so that it can be compared with a new
//! one before it is applied.

use std::path::{Path, PathBuf};

use homestak_api::v1::{self, ManifestPlan};
use homestak_core::plan::{NodePlan, OnError, PLAN_FORMAT, Plan, PlanOptions, Refusal, Verb};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::error::DriverError;
use crate::select::ManifestSelector;

/// The options of a plan.
#[derive(Debug, Default, Deserialize)]
pub struct PlanFileOptions {
    /// The manifest, and its overrides.
    #[serde(flatten)]
    pub choice: ManifestSelector,
    /// Whether guests that the manifest no longer names are destroyed.
    #[serde(default)]
    pub prune: bool,
    /// How many levels of nodes are included.
    #[serde(default)]
    pub depth: Option<usize>,
    /// What happens when a node fails.
    #[serde(default)]
    pub on_error: Option<OnError>,
    /// How many nodes are worked on at once.
    #[serde(default)]
    pub parallelism: Option<usize>,
    /// Whether the site had no id, so that the id of the plan is new.
    #[serde(default)]
    pub site_is_new: bool,
}

impl PlanFileOptions {
    /// Fills in the options of a plan of `apply` where the command line gives none.
    pub fn merge_into(
        self,
        plan: &Plan,
        choice: &mut ManifestSelector,
        options: &mut PlanOptions,
    ) -> Result<(), DriverError> {
        if plan.verb != Verb::Apply {
            return Err(DriverError::usage("The plan was not made for `apply`."));
        }
        if !choice.is_given() {
            choice.file = self.choice.file;
            choice.json = self.choice.json;
            if !choice.is_given() {
                choice.name = Some(plan.manifest.clone());
            }
        }
        choice.mode = choice.mode.or(self.choice.mode);
        choice.host = choice.host.take().or(self.choice.host);
        options.prune |= self.prune;
        options.depth = options.depth.or(self.depth);
        options.on_error = options.on_error.or(self.on_error);
        options.parallelism = options.parallelism.or(self.parallelism);
        Ok(())
    }
}

/// Returns a plan as it is written, with the options it was made with.
pub fn write(
    plan: &Plan,
    choice: &ManifestSelector,
    site_is_new: bool,
    options: &PlanOptions,
) -> ManifestPlan {
    // It is applied from whichever directory is the current one then.
    let absolute = |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone());
    let options = v1::PlanOptions {
        file: (choice.file.as_ref()).map(|file| absolute(file).display().to_string()),
        json: choice.json.clone(),
        host: choice.host.clone(),
        mode: choice.mode,
        prune: options.prune,
        depth: options.depth,
        on_error: options.on_error,
        parallelism: options.parallelism,
        site_is_new,
    };
    ManifestPlan {
        plan: plan.clone(),
        options,
    }
}

/// Reads a plan from a file.
pub fn read(path: &Path) -> Result<(Plan, PlanFileOptions), DriverError> {
    let text =
        fs_err::read_to_string(path).map_err(|error| DriverError::file("read", path, &error))?;
    let wrong = |why: String| {
        DriverError::failed(format!("`{}` is not a plan: {why}.", path.display()))
            .hint("homestak manifest plan --out FILE writes one")
    };
    let json: Json = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if let Some(form) = json.get("form").filter(|form| **form != PLAN_FORMAT) {
        return Err(wrong(format!(
            "its format is {form}, and this version supports {PLAN_FORMAT}"
        )));
    }
    let made = json.get("options").cloned().unwrap_or_else(|| json!({}));
    let made = serde_json::from_value(made).map_err(|error| wrong(error.to_string()))?;
    let plan = serde_json::from_value(json).map_err(|error| wrong(error.to_string()))?;
    Ok((plan, made))
}

/// Fails when a new plan would do something else than an earlier one.
pub fn require_same(then: &Plan, now: &Plan) -> Result<(), DriverError> {
    if then.same_work(now) {
        return Ok(());
    }
    let refused = DriverError::refused("The plan in the file is out of date; nothing was done.");
    let differs = differences(then, now).into_iter();
    Err(differs
        .fold(refused, |refused, what| {
            refused.hint(format!("differs: {what}"))
        })
        .hint("homestak manifest plan shows what would be done now"))
}

/// Returns the differences of two plans as text.
fn differences(then: &Plan, now: &Plan) -> Vec<String> {
    if let (Some(then), Some(now)) = (&then.site, &now.site)
        && then != now
    {
        // Everything else differs then, too.
        return vec![format!(
            "the plan is of the site `{then}`, and this site is `{now}`"
        )];
    }
    let mut differences = Vec::new();
    for node in &then.nodes {
        match now.node(&node.name) {
            None => differences.push(format!("`{}` is no longer in the plan", node.name)),
            Some(other) if other.without_reasons() != node.without_reasons() => {
                differences.push(difference(node, other));
            }
            Some(_) => {}
        }
    }
    let new = now
        .nodes
        .iter()
        .filter(|node| then.node(&node.name).is_none());
    differences.extend(new.map(|node| format!("`{}` is new: {}", node.name, node.action.name())));
    let refused = |plan: &Plan| -> Vec<Refusal> {
        plan.refusals.iter().map(Refusal::without_reason).collect()
    };
    if refused(then) != refused(now) {
        differences.push("refusals".to_owned());
    }
    if then.images != now.images {
        differences.push("required images".to_owned());
    }
    if differences.is_empty() && then.steps != now.steps {
        differences.push("the steps".to_owned());
    }
    if differences.is_empty() {
        differences.push("settings of the manifest, or hosts".to_owned());
    }
    differences
}

fn difference(then: &NodePlan, now: &NodePlan) -> String {
    let name = &then.name;
    if then.action != now.action {
        return format!(
            "`{name}`: the action was {}, and is now {}",
            then.action.name(),
            now.action.name()
        );
    }
    if then.found != now.found {
        return format!("`{name}`: its guest was changed");
    }
    if then.wanted != now.wanted {
        return format!("`{name}`: its definition was changed");
    }
    format!("`{name}`: its configuration was changed")
}
