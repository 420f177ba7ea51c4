//! Which webhooks and branches start runs of which nodes, as far as published.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use homestak_api::publication::{Published, sha256};
use homestak_core::doc::git::{GitBranch, GitUrl, Signer};
use homestak_core::doc::secrets::webhook_key;
use homestak_core::resolve::trigger::ServerTrigger;
use homestak_store::registry::RepositoryKey;
use zeroize::Zeroizing;

/// The most branches that are checked: each takes a process and a connection at every check.
const MOST_BRANCHES: usize = 500;

/// Everything that starts runs.
#[derive(Default, PartialEq)]
pub(crate) struct Triggers {
    /// Webhooks by name.
    pub(crate) hooks: BTreeMap<String, Hook>,
    /// Branches to check.
    pub(crate) branches: BTreeMap<Branch, Polling>,
}

/// A webhook.
#[derive(Default, PartialEq)]
pub(crate) struct Hook {
    /// The key of its signatures; none when the secret is missing or too short.
    pub(crate) key: Option<Zeroizing<Vec<u8>>>,
    /// The guests that it starts runs of.
    pub(crate) guests: Vec<String>,
}

/// A branch of a repository.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Branch {
    pub(crate) repo: GitUrl,
    /// `None`: the default one of the repository.
    pub(crate) branch: Option<GitBranch>,
}

/// How a branch is checked, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Polling {
    /// The shortest time that a spec sets.
    pub(crate) interval: Duration,
    /// Who needs which signatures, by what identifies the signers.
    pub(crate) followers: BTreeMap<String, Followers>,
}

/// Nodes that need the same signatures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Followers {
    /// Keys, one of which must have signed a commit; `None` if no signature is needed.
    pub(crate) signers: Option<BTreeSet<String>>,
    pub(crate) guests: Vec<String>,
}

impl Branch {
    /// Returns the name of the reference.
    pub(crate) fn reference(&self) -> String {
        match &self.branch {
            Some(branch) => format!("refs/heads/{branch}"),
            None => "HEAD".to_owned(),
        }
    }

    /// Returns what its state is recorded under.
    pub(crate) fn key(&self, signers: &str) -> RepositoryKey {
        RepositoryKey {
            repo: self.repo.to_string(),
            branch: self
                .branch
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            signers: signers.to_owned(),
        }
    }
}

impl Triggers {
    /// Collects what was published. What cannot be used is logged.
    pub(crate) fn read(published: &Published) -> Self {
        let mut triggers = Self::default();
        for (name, secret) in &published.secrets.webhooks {
            let key = webhook_key(secret);
            if key.is_none() {
                tracing::warn!(
                    webhook = name,
                    "its secret is too short, so that it is not served"
                );
            }
            let hook = triggers.hooks.entry(name.clone()).or_default();
            hook.key = key;
        }
        for (statement, spec) in published.specs.values() {
            let guest = statement.uuid.as_str();
            let is_used = match &spec.trigger {
                None => true,
                Some(ServerTrigger::Webhook { name }) => {
                    let hook = triggers.hooks.entry(name.clone()).or_default();
                    hook.guests.push(guest.to_owned());
                    true
                }
                Some(ServerTrigger::Git {
                    repo,
                    branch,
                    poll_interval,
                    signed_by,
                }) => {
                    let names = (repo.as_str(), branch.as_deref());
                    let interval = Duration::from_secs(*poll_interval);
                    triggers.follow(guest, names, interval, signed_by.as_deref())
                }
            };
            if !is_used {
                tracing::warn!(
                    node = statement.node,
                    "its repository is not checked: the address or the branch is malformed, or there are too many"
                );
            }
        }
        triggers
    }

    /// Adds a node that follows a branch. Returns whether it can.
    fn follow(
        &mut self,
        guest: &str,
        (repo, branch): (&str, Option<&str>),
        interval: Duration,
        signed_by: Option<&[String]>,
    ) -> bool {
        let Some(repo) = GitUrl::new(repo) else {
            return false;
        };
        let branch = match branch.map(GitBranch::new) {
            None => None,
            Some(None) => return false,
            Some(branch) => branch,
        };
        let branch = Branch { repo, branch };
        if self.branches.len() >= MOST_BRANCHES && !self.branches.contains_key(&branch) {
            return false;
        }
        // A key that cannot be read is left out, so that its commits are refused.
        let signers = signed_by.map(|keys| {
            let keys = keys.iter().filter_map(|key| Signer::key(key));
            keys.collect::<BTreeSet<_>>()
        });
        let name = signers.as_ref().map(|signers| {
            let all: Vec<&str> = signers.iter().map(String::as_str).collect();
            sha256(all.join("\n").as_bytes())
        });
        let polling = self.branches.entry(branch).or_insert_with(|| Polling {
            interval,
            followers: BTreeMap::new(),
        });
        polling.interval = polling.interval.min(interval);
        let followers = polling.followers.entry(name.unwrap_or_default());
        let followers = followers.or_insert_with(|| Followers {
            signers,
            guests: Vec::new(),
        });
        followers.guests.push(guest.to_owned());
        true
    }

    /// Returns what is different from before, a line each.
    pub(crate) fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        if self.hooks != before.hooks {
            changes.push("webhooks".to_owned());
        }
        if self.branches != before.branches {
            changes.push("repositories that start runs".to_owned());
        }
        changes
    }
}
