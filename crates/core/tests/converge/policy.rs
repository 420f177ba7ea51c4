//! Properties of policies: what is corrected, only reported, or ignored.

use homestak_core::converge::{
    Change, ChangeCause, ClockReading, DriftState, FileFact, Handling, Policy, Resource, decide,
};
use homestak_core::doc::{Sources, node_spec};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use crate::model::Model;
use crate::props::{WHOLE, facts, spec};
use crate::read;

/// A change on a node, by name.
type Tamper = (&'static str, fn(&mut Model));

const TAMPERS: &[Tamper] = &[
    ("name", |node| node.facts.hostname = "altered".into()),
    ("name file", |node| put(node, "/etc/hostname", "altered\n")),
    ("hosts", |node| {
        put(node, "/etc/hosts", "127.0.0.1 localhost\n");
    }),
    ("file", |node| put(node, "/etc/motd", "other\n")),
    ("file gone", |node| {
        node.facts.files.remove("/etc/own");
    }),
    ("file mode", |node| {
        if let Some(FileFact::Regular { mode, .. }) = node.facts.files.get_mut("/etc/motd") {
            *mode = 0o600;
        }
    }),
    ("sudo", |node| {
        put(
            node,
            "/etc/sudoers.d/zz",
            "alice,ops ALL=(ALL) NOPASSWD: ALL\n",
        );
    }),
    ("sudo gone", |node| {
        node.facts
            .files
            .retain(|path, _| !path.starts_with("/etc/sudoers.d/homestak-"));
    }),
    ("sshd", |node| {
        put(
            node,
            "/etc/ssh/sshd_config.d/00-homestak.conf",
            "Port 99\nPermitRootLogin yes\n",
        );
        node.refresh();
    }),
    ("keys", |node| {
        put(
            node,
            "/home/alice/.ssh/authorized_keys",
            "ssh-ed25519 AAAAeve eve\n",
        );
    }),
    ("user", |node| {
        node.facts.users.remove("bob");
    }),
    ("login", |node| {
        if let Some(user) = node.facts.users.get_mut("alice") {
            user.expired = true;
        }
    }),
    ("unit", |node| {
        if let Some(unit) = node.facts.units.get_mut("nginx.service") {
            unit.active_state = "inactive".into();
        }
    }),
    ("package", |node| {
        node.facts.packages.remove("htop");
    }),
    ("kernel", |node| {
        node.facts
            .sysctl
            .insert("net.ipv4.ip_forward".into(), "0".into());
    }),
    ("address", |node| {
        node.facts.network.addresses = vec!["10.9.9.9/24".into()];
    }),
    ("dns", |node| {
        put(node, "/etc/resolv.conf", "nameserver 9.9.9.9\n");
    }),
];

const PATTERNS: &[&str] = &[
    "*",
    "hostname/*",
    "hostname/kernel",
    "*/content",
    "* content",
    "file:/etc/motd/*",
    "file:/etc/motd/mode",
    "file:*",
    "hosts/line",
    "sudo:*",
    "sudo:alice/rule",
    "sshd/*",
    "sshd/Port",
    "sshd/P*",
    "keys:alice/*",
    "keys:*",
    "user:bob/*",
    "user:*/login",
    "service:*",
    "package:htop/state",
    "sysctl/*",
    "network/*",
    "network/dns",
];

fn put(node: &mut Model, path: &str, text: &str) {
    let file = FileFact::Regular {
        content: Some(text.to_owned()),
        mode: 0o644,
        owner: "root".into(),
        group: "root".into(),
    };
    node.facts.files.insert(path.to_owned(), file);
}

fn handling() -> impl Strategy<Value = &'static str> {
    select(vec!["enforce", "report", "ignore"])
}

fn rules() -> impl Strategy<Value = Value> {
    let patterns = subsequence(PATTERNS.to_vec(), 0..=PATTERNS.len());
    (handling(), patterns)
        .prop_flat_map(|(drift, patterns)| {
            let one = |pattern| handling().prop_map(move |handling| (pattern, handling));
            let fields = patterns.into_iter().map(one).collect::<Vec<_>>();
            (Just(drift), fields)
        })
        .prop_map(|(drift, fields)| {
            let fields: serde_json::Map<_, _> = fields
                .into_iter()
                .map(|(pattern, handling)| (pattern.to_owned(), json!(handling)))
                .collect();
            json!({ "drift": drift, "fields": fields })
        })
}

fn tampers() -> impl Strategy<Value = Vec<Tamper>> {
    subsequence(TAMPERS.to_vec(), 0..=TAMPERS.len())
}

fn policy(spec: &Value) -> Policy {
    let mut sources = Sources::default();
    let (spec, _) = node_spec::read("spec.yaml", &spec.to_string(), &mut sources);
    Policy::of(&spec.unwrap())
}

fn with_rules(spec: &Value, rules: &Value) -> Value {
    let mut spec = spec.clone();
    for key in ["drift", "fields"] {
        spec["config"]["converge"][key] = rules[key].clone();
    }
    spec
}

fn ids(changes: &[Change], handling: Handling) -> Vec<String> {
    let changes = changes.iter().filter(|change| change.handling == handling);
    changes.map(|change| change.id.clone()).collect()
}

/// The desired resources for automatic drift correction.
fn watched(spec: &Value) -> Vec<Resource> {
    policy(spec).attach_to(&read(spec))
}

/// Each case converges several times.
fn fewer() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig {
        cases: usual.cases / 3,
        ..usual
    }
}

proptest! {
    #![proptest_config(fewer())]

    #[test]
    fn enforced_fields_are_corrected_and_reported_fields_stay(
        spec in spec(), facts in facts(), rules in rules(), tampers in tampers()
    ) {
        // Created without rules, so that everything is managed.
        let mut node = Model::new(facts);
        node.converge(&read(&spec), WHOLE);
        let spec = with_rules(&spec, &rules);
        let desired = watched(&spec);
        for (_, act) in &tampers {
            act(&mut node);
        }
        let before = decide(&desired, &node.facts, &node.state);
        if !before.refusals.is_empty() {
            return Ok(());
        }
        node.converge(&desired, WHOLE);
        let after = decide(&desired, &node.facts, &node.state);
        prop_assert!(after.is_converged() && after.steps.is_empty(), "{:#?}", after);
        // Reported fields are still reported, with the same value.
        let named = ids(&before.changes, Handling::Report);
        let now: Vec<_> = after.changes.iter().map(|change| (&change.id, &change.found)).collect();
        for change in before.changes.iter().filter(|change| named.contains(&change.id)) {
            // Content is shown again once the file is world-readable.
            if change.found.starts_with("not shown") {
                prop_assert!(now.iter().any(|(id, _)| **id == change.id), "{}", change.id);
                continue;
            }
            prop_assert!(now.contains(&(&change.id, &change.found)), "{} in {:#?}", change.id, now);
        }
        // The stored state does not grow.
        prop_assert_eq!(&after.next, &node.state);
    }

    #[test]
    fn an_explicit_apply_corrects_everything_that_is_not_ignored(
        spec in spec(), facts in facts(), rules in rules(), tampers in tampers()
    ) {
        let spec = with_rules(&spec, &rules);
        let desired = read(&spec);
        let policy = policy(&spec);
        // A service cannot be enabled if its package is ignored.
        let unit = "service:nginx.service";
        let units = ["enabled", "active"].map(|field| policy.ignores(&format!("{unit}/{field}")));
        prop_assume!(!policy.ignores("package:nginx/state") || units == [true, true]);
        let mut node = Model::new(facts);
        for round in 0..2 {
            let first = decide(&desired, &node.facts, &node.state);
            if !first.refusals.is_empty() {
                return Ok(());
            }
            let ignored = first.changes.iter().find(|change| policy.ignores(&change.id));
            prop_assert!(ignored.is_none(), "{:#?}", ignored);
            node.converge(&desired, WHOLE);
            let again = decide(&desired, &node.facts, &node.state);
            prop_assert!(again.is_converged() && again.steps.is_empty(), "{} {:#?}", round, again);
            for (_, act) in &tampers {
                act(&mut node);
            }
        }
    }

    #[test]
    fn ignored_fields_are_unchanged(spec in spec(), facts in facts(), tampers in tampers()) {
        let rules = json!({ "drift": "enforce", "fields": {
            "sshd/Port": "ignore", "file:/etc/motd/mode": "ignore", "hostname/*": "ignore",
            "sudo:*": "ignore", "keys:alice/*": "ignore", "user:alice/*": "ignore",
            "sysctl/*": "ignore", "hosts/*": "ignore",
        } });
        let desired = read(&with_rules(&spec, &rules));
        let mut node = Model::new(facts);
        // A setting in the managed file takes effect when the server begins to read it.
        for (_, act) in tampers.iter().filter(|(what, _)| *what != "sshd") {
            act(&mut node);
        }
        let before = node.facts.clone();
        if !decide(&desired, &node.facts, &node.state).refusals.is_empty() {
            return Ok(());
        }
        node.converge(&desired, WHOLE);
        let port = |facts: &homestak_core::converge::Facts| facts.sshd.as_ref().map(|sshd| sshd["port"].clone());
        prop_assert_eq!(port(&node.facts), port(&before));
        prop_assert_eq!(&node.facts.hostname, &before.hostname);
        prop_assert_eq!(&node.facts.sysctl, &before.sysctl);
        prop_assert_eq!(node.facts.users.get("alice"), before.users.get("alice"));
        for path in ["/etc/hostname", "/etc/hosts", "/home/alice/.ssh/authorized_keys", "/etc/sudoers.d/homestak-alice"] {
            prop_assert_eq!(node.facts.files.get(path), before.files.get(path), "{}", path);
        }
        let mode = |facts: &homestak_core::converge::Facts| match facts.files.get("/etc/motd") {
            Some(FileFact::Regular { mode, .. }) => Some(*mode),
            _ => None,
        };
        if mode(&before).is_some() {
            prop_assert_eq!(mode(&node.facts), mode(&before));
        }
    }

    #[test]
    fn the_result_is_one_of_the_rules_whatever_their_order(rules in rules()) {
        let spec = with_rules(&crate::minimal_spec(), &rules);
        let policy = policy(&spec);
        for id in ["hostname/kernel", "file:/etc/motd/mode", "sshd/Port", "user:bob/account", "x/y"] {
            let rule = policy.rule(id);
            let words: Vec<_> = policy.fields.values().copied().map(Some).chain([None]).collect();
            prop_assert!(words.contains(&rule));
            // Changes of the spec, and an explicit apply, are never only reported.
            for cause in [ChangeCause::FirstRun, ChangeCause::Spec] {
                prop_assert_ne!(policy.handling(id, cause), Handling::Report);
            }
            let explicit = policy.enforced().handling(id, ChangeCause::Node);
            prop_assert_eq!(explicit == Handling::Ignore, rule == Some(Handling::Ignore));
            prop_assert_ne!(explicit, Handling::Report);
            let held = policy.with_held([id.to_owned()]).handling(id, ChangeCause::Node);
            prop_assert_ne!(held, Handling::Enforce);
        }
    }

    #[test]
    fn no_field_is_corrected_more_than_five_times_in_ten_minutes(gaps in prop::collection::vec(0u64..400, 1..200)) {
        let mut drift = DriftState::default();
        let mut now = ClockReading { time: jiff::Timestamp::UNIX_EPOCH, uptime: 0 };
        let mut corrections = Vec::new();
        for gap in gaps {
            now.uptime += gap * 1_000;
            drift.record_check(&[altered()], now);
            if !drift.held_fields(now).contains("hostname/kernel") {
                corrections.push(now.uptime);
                drift.record_corrected(&["hostname/kernel".to_owned()], now);
            }
            let is_recent = |at: &&u64| **at + 600_000 > now.uptime;
            prop_assert!(corrections.iter().filter(is_recent).count() <= 5);
        }
    }
}

fn altered() -> Change {
    Change {
        id: "hostname/kernel".into(),
        resource: "hostname".into(),
        field: "kernel".into(),
        expected: "web".into(),
        found: "altered".into(),
        cause: ChangeCause::Node,
        danger: None,
        handling: Handling::Enforce,
    }
}
