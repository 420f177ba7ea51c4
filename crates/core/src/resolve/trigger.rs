//! Triggers of runs: checks the fields of `run` in specs, and selects the triggers that a server handles.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::catalog::Catalog;
use crate::doc::git::Signer;
use crate::doc::manifest::Mode;
use crate::doc::secrets::webhook_key;
use crate::doc::spec::{Run, Spec, SshKeyId, Trigger};
use crate::doc::{Code, Diagnostic, Diagnostics, Span, Spanned};

use super::ResolvedNode;
use super::reference::dangling;
use super::site;
use super::spec::ssh_keys;

/// How often a repository is checked if the spec does not set it, in seconds.
pub const DEFAULT_POLL: u64 = 300;
/// The shortest time between checks, in seconds. More frequent ones would burden the machine with the
/// repository.
const SHORTEST_POLL: u64 = 30;
/// The longest time between checks, in seconds. With a longer one, a trigger would appear not to work.
const LONGEST_POLL: u64 = 86_400;
/// The most signers of a spec.
const MAX_SIGNERS: usize = 32;

/// A trigger that the server handles. It is part of what a driver publishes: fields are only added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ServerTrigger {
    /// A signed request.
    Webhook {
        /// Its name.
        name: String,
    },
    /// A new commit.
    Git {
        /// The address of the repository.
        repo: String,
        /// The branch; the default one of the repository if there is none.
        branch: Option<String>,
        /// The time between checks, in seconds.
        poll_interval: u64,
        /// Public keys, one of which must have signed the commit. `None`: no signature is required. With
        /// an empty list, every commit is refused.
        signed_by: Option<Vec<String>>,
    },
}

/// Returns the trigger of a spec that a server handles.
pub fn server_trigger(catalog: &Catalog, spec: &str) -> Option<ServerTrigger> {
    let spec = catalog.specs.get(spec)?.value.as_ref()?;
    let run = &spec.run.as_ref()?.value;
    match run.trigger.as_ref()?.value {
        Trigger::Schedule | Trigger::Manual => None,
        Trigger::Webhook => Some(ServerTrigger::Webhook {
            name: run.webhook.as_ref()?.to_string(),
        }),
        Trigger::Git => {
            let key_of = |signer: &Spanned<Signer>| match &signer.value {
                Signer::Key(key) => Some(key.clone()),
                Signer::Id(id) => Signer::key(ssh_keys(catalog)?.get(id)?.expose()),
            };
            let signers = run.signed_by.as_ref();
            let interval = run.poll_interval.as_ref();
            Some(ServerTrigger::Git {
                repo: run.repo.as_ref()?.to_string(),
                branch: run.branch.as_ref().map(ToString::to_string),
                poll_interval: interval.map_or(DEFAULT_POLL, |interval| interval.seconds()),
                // Without an unknown key, commits that are signed with it are refused.
                signed_by: signers.map(|signers| signers.iter().filter_map(key_of).collect()),
            })
        }
    }
}

/// Returns the secrets of the webhooks that specs use, by the name of the webhook.
pub fn webhook_secrets(catalog: &Catalog) -> BTreeMap<String, Zeroizing<String>> {
    let secrets = catalog
        .secrets
        .as_ref()
        .and_then(|secrets| secrets.value.as_ref());
    let auth = secrets.and_then(|secrets| secrets.auth.as_ref());
    let webhooks = auth.and_then(|auth| auth.webhooks.as_ref());
    let named = catalog
        .specs
        .keys()
        .filter_map(|spec| match server_trigger(catalog, spec)? {
            ServerTrigger::Webhook { name } => Some(name),
            ServerTrigger::Git { .. } => None,
        });
    let named = named.filter_map(|name| {
        let secret = webhooks?.get(&name)?.expose();
        webhook_key(secret)?;
        Some((name, Zeroizing::new(secret.to_owned())))
    });
    named.collect()
}

/// Checks the fields of `run` against its trigger.
pub(super) fn check(catalog: &Catalog, spec: &Spec, diagnostics: &mut Diagnostics) {
    let Some(run) = &spec.run else { return };
    // The trigger is unknown if its value is invalid; only without a value is it `manual`.
    if run.invalid.contains(&"trigger") {
        return;
    }
    let trigger = run.trigger.as_ref().map(|trigger| trigger.value);
    let trigger = trigger.unwrap_or(Trigger::Manual);
    check_unused(run, trigger, diagnostics);
    match trigger {
        Trigger::Schedule | Trigger::Manual => {}
        Trigger::Webhook => check_webhook(catalog, run, diagnostics),
        Trigger::Git => check_git(catalog, run, diagnostics),
    }
}

/// Reports fields that have no effect: those of other triggers, and those that no trigger uses.
fn check_unused(run: &Spanned<Run>, trigger: Trigger, diagnostics: &mut Diagnostics) {
    for (key, owner, span) in [
        (
            "webhook",
            Trigger::Webhook,
            run.webhook.as_ref().map(|field| field.span),
        ),
        (
            "repo",
            Trigger::Git,
            run.repo.as_ref().map(|field| field.span),
        ),
        (
            "branch",
            Trigger::Git,
            run.branch.as_ref().map(|field| field.span),
        ),
        (
            "poll_interval",
            Trigger::Git,
            run.poll_interval.as_ref().map(|field| field.span),
        ),
        (
            "signed_by",
            Trigger::Git,
            run.signed_by.as_ref().map(|field| field.span),
        ),
    ] {
        if let Some(span) = span.filter(|_| owner != trigger) {
            diagnostics.push(
                Diagnostic::error(
                    Code::IneffectiveKey,
                    span,
                    format!("`{key}` has no effect with `trigger: {trigger}`"),
                )
                .hint(format!("remove it, or write `trigger: {owner}`")),
            );
        }
    }
    let hook = run.webhook.as_ref().map_or("NAME", |hook| hook.as_str());
    for (key, span, hint) in [
        (
            "port",
            run.port.as_ref().map(|field| field.span),
            "remove it: the server receives webhooks on its own port".to_owned(),
        ),
        (
            "path",
            run.path.as_ref().map(|field| field.span),
            format!("remove it, and write `webhook: {hook}`: its path is `/v1/hooks/{hook}`"),
        ),
    ] {
        if let Some(span) = span {
            let message = format!("`{key}` has no effect");
            diagnostics.push(Diagnostic::error(Code::IneffectiveKey, span, message).hint(hint));
        }
    }
}

fn check_webhook(catalog: &Catalog, run: &Spanned<Run>, diagnostics: &mut Diagnostics) {
    let Some(name) = &run.webhook else {
        missing(run, "webhook", "NAME", diagnostics);
        return;
    };
    if site::secrets_unknown(catalog) {
        return;
    }
    let secrets = catalog.secrets.as_ref();
    let auth = secrets.and_then(|secrets| secrets.value.as_ref()?.auth.as_ref());
    let known = auth.and_then(|auth| auth.webhooks.as_ref());
    let hint = format!(
        "write a secret under `auth.webhooks.{}` in `secrets.yaml`; `openssl rand -hex 32` creates one",
        name.value
    );
    let secret = known.and_then(|known| known.get(name.as_str()));
    if secret.is_some_and(|secret| secret.expose().is_empty()) {
        let message = format!("the secret of the webhook `{}` is empty", name.value);
        diagnostics.push(Diagnostic::error(Code::Empty, name.span, message).hint(hint));
    } else if secret.is_none() {
        let names = known.into_iter().flat_map(|known| known.keys());
        let names = names.map(String::as_str);
        let diagnostic = dangling(
            Code::NoSuchWebhook,
            name.span,
            "secret of a webhook",
            name.as_str(),
            names,
        );
        let is_first = known.is_none_or(|known| known.is_empty());
        diagnostics.push(if is_first {
            diagnostic.hint(hint)
        } else {
            diagnostic
        });
    }
}

fn check_git(catalog: &Catalog, run: &Spanned<Run>, diagnostics: &mut Diagnostics) {
    if run.repo.is_none() {
        missing(run, "repo", "https://HOST/PATH", diagnostics);
    }
    if let Some(interval) = &run.poll_interval
        && !(SHORTEST_POLL..=LONGEST_POLL).contains(&interval.seconds())
    {
        let message = format!("`{}` is out of range", interval.value);
        diagnostics.push(
            Diagnostic::error(Code::OutOfRange, interval.span, message)
                .hint("write a time from `30s` to `1d`"),
        );
    }
    let Some(signers) = &run.signed_by else {
        return;
    };
    // The list is also empty if all signers are invalid, which was reported.
    let is_reported = diagnostics.iter().any(|found| {
        let (all, one) = (signers.span, found.span);
        all.file == one.file && all.start <= one.start && one.end <= all.end
    });
    if signers.is_empty() && !is_reported {
        diagnostics.push(
            Diagnostic::error(
                Code::Empty,
                signers.span,
                "`signed_by` is empty, so no commit would be accepted",
            )
            .hint("list the public keys of those who sign commits"),
        );
    }
    if signers.len() > MAX_SIGNERS {
        let message = format!("`signed_by` has {} keys", signers.len());
        diagnostics.push(
            Diagnostic::error(Code::TooManyValues, signers.span, message)
                .hint(format!("list {MAX_SIGNERS} keys at most")),
        );
    }
    let mut seen = BTreeSet::new();
    for signer in &signers.value {
        if !seen.insert(&signer.value) {
            diagnostics.push(
                Diagnostic::error(Code::Repeated, signer.span, "this signer is listed twice")
                    .hint("remove one of them"),
            );
        }
    }
    let ids: Vec<Spanned<SshKeyId>> = signers.iter().filter_map(key_id).collect();
    site::check_ssh_keys(catalog, ids.iter(), diagnostics);
}

/// Returns the id of a key among the secrets, unless the signer is a key itself.
fn key_id(signer: &Spanned<Signer>) -> Option<Spanned<SshKeyId>> {
    match &signer.value {
        Signer::Key(_) => None,
        Signer::Id(id) => Some(Spanned {
            value: SshKeyId(id.clone()),
            span: signer.span,
        }),
    }
}

/// Reports that a field which the trigger needs is missing, unless its value was reported as invalid.
fn missing(run: &Spanned<Run>, key: &'static str, example: &str, diagnostics: &mut Diagnostics) {
    if run.invalid.contains(&key) {
        return;
    }
    let Some(trigger) = &run.trigger else { return };
    let message = format!("`trigger: {}` needs `{key}`", trigger.value);
    diagnostics.push(
        Diagnostic::error(Code::MissingKey, trigger.span, message)
            .hint(format!("add `{key}: {example}`")),
    );
}

/// Reports triggers and intervals that have no effect in the mode of a node: triggers that a server
/// handles start runs only on nodes that fetch their specs.
pub(super) fn check_modes(
    catalog: &Catalog,
    nodes: &[ResolvedNode],
    diagnostics: &mut Diagnostics,
) {
    let run_of = |node: &ResolvedNode| {
        let spec = catalog.specs.get(&node.spec.as_ref()?.value)?;
        spec.value.as_ref()?.run.as_ref()
    };
    // Specs whose interval was reported, or has an effect on some node of the manifest.
    let mut settled = BTreeSet::new();
    for node in nodes {
        let is_scheduled = |run: &Spanned<Run>| {
            let trigger = run.trigger.as_ref().map(|trigger| trigger.value);
            trigger == Some(Trigger::Schedule)
        };
        if node.mode.value == Mode::Pull || run_of(node).is_some_and(is_scheduled) {
            settled.extend(node.spec.as_ref().map(|spec| &spec.value));
        }
    }
    for node in nodes {
        let (Some(run), Some(spec)) = (run_of(node), &node.spec) else {
            continue;
        };
        let trigger = run
            .trigger
            .as_ref()
            .map(|trigger| (trigger.value, trigger.span));
        let mode = node.mode.value;
        match (mode, trigger) {
            (Mode::Pull, _) | (_, Some((Trigger::Schedule, _))) => {}
            (
                Mode::Push | Mode::Hybrid,
                Some((trigger @ (Trigger::Webhook | Trigger::Git), span)),
            ) => {
                diagnostics.push(needs_pull(node, trigger, span));
            }
            (Mode::Push | Mode::Hybrid, None | Some((Trigger::Manual, _))) => {
                if let Some(interval) = &run.interval
                    && settled.insert(&spec.value)
                {
                    diagnostics.push(unused_interval(node, interval.span));
                }
            }
        }
    }
}

fn needs_pull(node: &ResolvedNode, trigger: Trigger, span: Span) -> Diagnostic {
    let mode = node.mode.value;
    Diagnostic::error(
        Code::TriggerMode,
        node.span,
        format!(
            "`{}` has mode {mode}, so `trigger: {trigger}` cannot start anything",
            node.name
        ),
    )
    .label(span, "in its spec")
    .hint("write `execution: {mode: pull}` on the node, or use `trigger: schedule` or `manual`")
}

fn unused_interval(node: &ResolvedNode, span: Span) -> Diagnostic {
    let mode = node.mode.value;
    Diagnostic::error(
        Code::IneffectiveKey,
        span,
        format!(
            "`interval` has no effect on `{}`, which has mode {mode}",
            node.name
        ),
    )
    .hint("write `trigger: schedule` to check for drift at this interval, or remove it")
}
