//! What is done about a difference, field by field.
//!
//! In: a spec's `config.converge`. Out: a [`Policy`]: mended, only named, or not looked at.
//! Never: an answer that depends on the order in which patterns are written.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::change::{Change, Handling, Since};
use super::resource::Resource;
use crate::doc::node_config::DriftPolicy;
use crate::doc::node_spec::NodeSpec;

/// What is done about differences. A rule of a field wins over `drift`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// What is done about what the node changed by itself, where no pattern says otherwise.
    pub drift: Handling,
    /// By the id of a change, or a pattern of ids with `*`.
    pub fields: BTreeMap<String, Handling>,
    /// Ids that are only named for now.
    pub held: BTreeSet<String>,
    /// Resources that are left as they are for now.
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
    fn from(word: DriftPolicy) -> Self {
        match word {
            DriftPolicy::Enforce => Self::Enforce,
            DriftPolicy::Report => Self::Report,
            DriftPolicy::Ignore => Self::Ignore,
        }
    }
}

impl Policy {
    /// Returns the policy of a spec, for a node that looks after itself.
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

    /// Returns the policy when someone asks for the spec: whoever does has decided to have it, so
    /// that only fields which are none of ours are left.
    #[must_use]
    pub fn asked(&self) -> Self {
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

    /// Returns the policy with some changes only named, whatever it says about them.
    #[must_use]
    pub fn holding(&self, ids: impl IntoIterator<Item = String>) -> Self {
        Self {
            held: ids.into_iter().collect(),
            ..self.clone()
        }
    }

    /// Returns the policy with those resources left as they are that two lists do not agree about.
    #[must_use]
    pub fn freezing(&self, one: &[Resource], other: &[Resource]) -> Self {
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

    /// Returns a list of resources with this policy instead of the one it has.
    pub fn put_into(&self, wanted: &[Resource]) -> Vec<Resource> {
        let is_policy = |one: &&Resource| matches!(one, Resource::Drift { .. });
        let others = wanted.iter().filter(|one| !is_policy(one)).cloned();
        let mut list: Vec<Resource> = others.collect();
        if *self != Self::default() {
            let policy = self.clone();
            list.push(Resource::Drift { policy });
            list.sort_by_key(Resource::id);
        }
        list
    }

    /// Returns the policy that is among resources.
    pub(super) fn among(wanted: &[Resource]) -> Self {
        let found = wanted.iter().find_map(|resource| {
            if let Resource::Drift { policy } = resource {
                Some(policy.clone())
            } else {
                None
            }
        });
        found.unwrap_or_default()
    }

    /// Returns the rule of a field: that of the most specific pattern. One without `*` is more
    /// specific than one with; of others, the one with more characters that are no `*`; of those,
    /// the one that mends.
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

    /// Tells whether a field is none of ours.
    pub fn ignores(&self, id: &str) -> bool {
        let frozen = |resource: &String| {
            let rest = id.strip_prefix(resource.as_str());
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        self.rule(id) == Some(Handling::Ignore) || self.frozen.iter().any(frozen)
    }

    /// Returns what is done about a difference. What the spec changed is done, unless the field is
    /// none of ours.
    pub fn handle(&self, id: &str, since: Since) -> Handling {
        if self.ignores(id) {
            return Handling::Ignore;
        }
        let by_node = since == Since::Node;
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

    /// Says of changes that were found when someone asked how a node that looks after itself
    /// handles them; what is not looked at there is left out.
    pub fn mark(&self, changes: &[Change]) -> Vec<Change> {
        let marked = changes.iter().map(|change| Change {
            handling: change.handling.max(self.handle(&change.id, change.since)),
            ..change.clone()
        });
        marked
            .filter(|change| change.handling != Handling::Ignore)
            .collect()
    }
}

/// Tells whether a text matches a pattern, where `*` stands for any characters, or none.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    // The first place is as good as any other: what follows can only gain.
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
    use super::{Handling, Policy, Since, matches};

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
    fn a_star_stands_for_anything_and_nothing() {
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
            // Both have six characters; the one that mends wins.
            ("sshd/Root", Handling::Enforce),
        ] {
            assert_eq!(policy.rule(id), Some(expected), "{id}");
        }
    }

    #[test]
    fn what_the_spec_changed_is_done_unless_the_field_is_none_of_ours() {
        let policy = Policy {
            drift: Handling::Ignore,
            ..policy(&[("a/*", Handling::Report), ("b/*", Handling::Ignore)])
        };
        for (id, since, expected) in [
            ("a/x", Since::Node, Handling::Report),
            ("a/x", Since::Spec, Handling::Enforce),
            ("a/x", Since::First, Handling::Enforce),
            ("b/x", Since::Node, Handling::Ignore),
            ("b/x", Since::Spec, Handling::Ignore),
            ("c/x", Since::Node, Handling::Ignore),
            ("c/x", Since::Spec, Handling::Enforce),
        ] {
            assert_eq!(policy.handle(id, since), expected, "{id} {since:?}");
        }
        // Whoever asks for the spec gets it.
        assert_eq!(policy.asked().handle("a/x", Since::Node), Handling::Enforce);
        assert_eq!(policy.asked().handle("c/x", Since::Node), Handling::Enforce);
        assert_eq!(policy.asked().handle("b/x", Since::Node), Handling::Ignore);
    }
}
