//! What is done about a difference, by field: corrected, only reported, or ignored. The result does
//! not depend on the order of the patterns.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::{Change, ChangeCause, Handling};
use super::resource::Resource;
use crate::doc::node_config::DriftPolicy;
use crate::doc::node_spec::NodeSpec;

/// What is done about differences. A rule for a field overrides `drift`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Policy {
    /// What is done about changes on the node that no pattern matches.
    pub drift: Handling,
    /// By the id of a change, or a pattern of ids with `*`.
    pub fields: BTreeMap<String, Handling>,
    /// Ids that are only reported for now.
    pub held: BTreeSet<String>,
    /// Resources that are ignored for now.
    pub frozen: BTreeSet<String>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            drift: Handling::Enforce,
            fields: BTreeMap::new(),
            held: BTreeSet::new(),
            frozen: BTreeSet::new(),
        }
    }
}

impl From<DriftPolicy> for Handling {
    fn from(policy: DriftPolicy) -> Self {
        match policy {
            DriftPolicy::Enforce => Self::Enforce,
            DriftPolicy::Report => Self::Report,
            DriftPolicy::Ignore => Self::Ignore,
        }
    }
}

impl Policy {
    /// Returns the policy of a spec for automatic drift correction.
    pub fn of(spec: &NodeSpec) -> Self {
        let config = spec.config.as_ref();
        let Some(converge) = config.and_then(|config| config.converge.as_ref()) else {
            return Self::default();
        };
        let drift = converge.drift.as_ref();
        let fields = converge.fields.iter().flat_map(|fields| &fields.value.0);
        Self {
            drift: drift.map_or(Handling::Enforce, |drift| drift.value.into()),
            fields: fields
                .map(|(pattern, handling)| (pattern.clone(), handling.value.into()))
                .collect(),
            ..Self::default()
        }
    }

    /// Returns the policy of an explicit apply: everything is corrected except ignored fields.
    #[must_use]
    pub fn enforced(&self) -> Self {
        let fields = self.fields.iter().map(|(pattern, handling)| {
            let handling = match handling {
                Handling::Enforce | Handling::Report => Handling::Enforce,
                Handling::Ignore => Handling::Ignore,
            };
            (pattern.clone(), handling)
        });
        Self {
            fields: fields.collect(),
            ..Self::default()
        }
    }

    /// Returns the policy with some fields only reported.
    #[must_use]
    pub fn with_held(&self, ids: impl IntoIterator<Item = String>) -> Self {
        Self {
            held: ids.into_iter().collect(),
            ..self.clone()
        }
    }

    /// Returns the policy with those resources ignored that differ between two lists.
    #[must_use]
    pub fn with_frozen(&self, one: &[Resource], other: &[Resource]) -> Self {
        let is_policy = |resource: &&Resource| matches!(resource, Resource::Drift { .. });
        let both = one
            .iter()
            .chain(other)
            .filter(|resource| !is_policy(resource));
        let differs = |resource: &&Resource| !one.contains(resource) || !other.contains(resource);
        Self {
            frozen: both.filter(differs).map(Resource::id).collect(),
            ..self.clone()
        }
    }

    /// Returns the resources with this policy in place of theirs.
    pub fn attach_to(&self, desired: &[Resource]) -> Vec<Resource> {
        let is_policy = |one: &&Resource| matches!(one, Resource::Drift { .. });
        let others = desired.iter().filter(|one| !is_policy(one)).cloned();
        let mut list: Vec<Resource> = others.collect();
        if *self != Self::default() {
            let policy = self.clone();
            list.push(Resource::Drift { policy });
            list.sort_by_key(Resource::id);
        }
        list
    }

    /// Returns the policy of a list of resources.
    pub(super) fn from_resources(desired: &[Resource]) -> Self {
        let found = desired.iter().find_map(|resource| {
            if let Resource::Drift { policy } = resource {
                Some(policy.clone())
            } else {
                None
            }
        });
        found.unwrap_or_default()
    }

    /// Returns the rule of the most specific pattern that matches a field. A pattern without `*` is
    /// more specific than one with; then the one with more characters other than `*`; then the
    /// stricter rule.
    pub fn rule(&self, id: &str) -> Option<Handling> {
        self.fields
            .iter()
            .filter(|(pattern, _)| matches(pattern, id))
            .max_by_key(|(pattern, handling)| {
                let literal = pattern.chars().filter(|c| *c != '*').count();
                (!pattern.contains('*'), literal, Reverse(**handling))
            })
            .map(|(_, handling)| *handling)
    }

    /// Returns whether a field is ignored.
    pub fn ignores(&self, id: &str) -> bool {
        let frozen = |resource: &String| {
            let rest = id.strip_prefix(resource.as_str());
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        self.rule(id) == Some(Handling::Ignore) || self.frozen.iter().any(frozen)
    }

    /// Returns what is done about a difference. Changes of the spec are applied unless the field is
    /// ignored.
    pub fn handling(&self, id: &str, cause: ChangeCause) -> Handling {
        if self.ignores(id) {
            return Handling::Ignore;
        }
        let by_node = cause == ChangeCause::Node;
        let handling = match (self.rule(id), self.drift) {
            (Some(rule), _) if by_node => rule,
            (None, drift) if by_node => drift,
            (Some(_) | None, _) => Handling::Enforce,
        };
        if self.held.contains(id) {
            handling.max(Handling::Report)
        } else {
            handling
        }
    }

    /// Sets how automatic drift correction handles each change; ignored ones are left out.
    pub fn annotate(&self, changes: &[Change]) -> Vec<Change> {
        let marked = changes.iter().map(|change| Change {
            handling: change.handling.max(self.handling(&change.id, change.cause)),
            ..change.clone()
        });
        marked
            .filter(|change| change.handling != Handling::Ignore)
            .collect()
    }
}

/// Returns whether a text matches a pattern, where `*` matches any number of characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    // The first match leaves the most text for the parts that follow.
    for part in parts {
        let Some(at) = text.find(part) else {
            return false;
        };
        text = &text[at + part.len()..];
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::{ChangeCause, Handling, Policy, matches};

    fn policy(fields: &[(&str, Handling)]) -> Policy {
        let fields = fields.iter();
        Policy {
            fields: fields
                .map(|(pattern, handling)| ((*pattern).to_owned(), *handling))
                .collect(),
            ..Policy::default()
        }
    }

    #[test]
    fn a_star_matches_any_number_of_characters() {
        for (pattern, text, expected) in [
            ("sshd/*", "sshd/Port", true),
            ("sshd/*", "sshd/", true),
            ("sshd/*", "sshd", false),
            ("*", "", true),
            ("*/content", "file:/etc/motd/content", true),
            ("file:/etc/*/content", "file:/etc/a/b/content", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("sshd/Port", "sshd/Ports", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn the_most_specific_pattern_wins() {
        let policy = policy(&[
            ("*", Handling::Ignore),
            ("sshd/*", Handling::Report),
            ("sshd/P*", Handling::Enforce),
            ("sshd/Port", Handling::Ignore),
            ("*d/Root", Handling::Ignore),
            ("sshd/R*", Handling::Enforce),
        ]);
        for (id, expected) in [
            ("hosts/line", Handling::Ignore),
            ("sshd/KbdInteractiveAuthentication", Handling::Report),
            ("sshd/PermitRootLogin", Handling::Enforce),
            ("sshd/Port", Handling::Ignore),
            // Both have six characters; the stricter rule wins.
            ("sshd/Root", Handling::Enforce),
        ] {
            assert_eq!(policy.rule(id), Some(expected), "{id}");
        }
    }

    #[test]
    fn changes_of_the_spec_are_applied_unless_the_field_is_ignored() {
        let policy = Policy {
            drift: Handling::Ignore,
            ..policy(&[("a/*", Handling::Report), ("b/*", Handling::Ignore)])
        };
        for (id, cause, expected) in [
            ("a/x", ChangeCause::Node, Handling::Report),
            ("a/x", ChangeCause::Spec, Handling::Enforce),
            ("a/x", ChangeCause::FirstRun, Handling::Enforce),
            ("b/x", ChangeCause::Node, Handling::Ignore),
            ("b/x", ChangeCause::Spec, Handling::Ignore),
            ("c/x", ChangeCause::Node, Handling::Ignore),
            ("c/x", ChangeCause::Spec, Handling::Enforce),
        ] {
            assert_eq!(policy.handling(id, cause), expected, "{id} {cause:?}");
        }
        // An explicit apply corrects everything that is not ignored.
        assert_eq!(
            policy.enforced().handling("a/x", ChangeCause::Node),
            Handling::Enforce
        );
        assert_eq!(
            policy.enforced().handling("c/x", ChangeCause::Node),
            Handling::Enforce
        );
        assert_eq!(
            policy.enforced().handling("b/x", ChangeCause::Node),
            Handling::Ignore
        );
    }
}
