//! Properties that hold for every spec and every node.

use std::collections::BTreeMap;

use homestak_core::converge::{
    ConvergeStep, Facts, FileFact, NetworkFact, NetworkManager, PackageFact, SystemFact, UnitFact,
    UserFact, decide,
};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use crate::model::Model;
use crate::{minimal_spec, read};

const USERS: &[&str] = &["ops", "alice", "bob", "carol"];
const KEYS: &[&str] = &[
    "ssh-ed25519 AAAAone one@desk",
    "ssh-ed25519 AAAAtwo two@desk",
    "ssh-rsa BBBBthree three@desk",
];
const PACKAGES: &[&str] = &["htop", "nginx", "strace", "fail2ban", "curl=7"];

fn users() -> impl Strategy<Value = Value> {
    let one = |name: &'static str| {
        (any::<bool>(), subsequence(KEYS.to_vec(), 0..=KEYS.len()))
            .prop_map(move |(sudo, keys)| json!({ "name": name, "sudo": sudo, "ssh_keys": keys }))
    };
    subsequence(USERS.to_vec(), 0..=USERS.len())
        .prop_flat_map(move |names| names.into_iter().map(one).collect::<Vec<_>>())
        .prop_map(Value::from)
}

fn posture() -> impl Strategy<Value = Value> {
    (
        select(vec![22, 2222]),
        select(vec!["yes", "no", "prohibit-password"]),
        select(vec!["yes", "no"]),
        any::<bool>(),
        any::<bool>(),
        subsequence(PACKAGES.to_vec(), 0..3),
    )
        .prop_map(|(port, root, passwords, nopasswd, banning, packages)| {
            json!({
                "ssh": { "port": port, "permit_root_login": root, "password_authentication": passwords },
                "sudo": { "nopasswd": nopasswd },
                "fail2ban": { "enabled": banning },
                "packages": packages,
            })
        })
}

pub fn spec() -> impl Strategy<Value = Value> {
    let platform = (
        subsequence(PACKAGES.to_vec(), 0..=PACKAGES.len()),
        any::<bool>(),
        any::<bool>(),
    );
    let config = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (users(), posture(), platform, config, any::<bool>()).prop_map(
        |(users, posture, (mut packages, nginx, quiet), (zone, files, sysctl, remove), fixed)| {
            let mut spec = minimal_spec();
            spec["identity"]["domain"] = json!("lab");
            spec["access"]["users"] = users;
            spec["access"]["_posture"] = posture;
            let mut enable = vec![];
            if nginx {
                packages.push("nginx");
                packages.dedup();
                enable.push("nginx");
            }
            let disable = if quiet { vec!["rpcbind"] } else { vec![] };
            spec["platform"] = json!({ "packages": packages, "services": { "enable": enable, "disable": disable } });
            let mut config = json!({ "converge": { "foreign_keys": if remove { "remove" } else { "report" } } });
            if zone {
                config["timezone"] = json!("Europe/Berlin");
            }
            if files {
                config["files"] = json!([{ "path": "/etc/motd", "content": "hello\n" }, { "path": "/etc/own", "content": "x", "mode": "0600", "owner": "root" }]);
            }
            if sysctl {
                config["sysctl"] = json!({ "net.ipv4.ip_forward": 1 });
            }
            config["x-k3s"] = json!({ "role": "server" });
            spec["config"] = config;
            if fixed {
                spec["network"] = json!({ "ip": "10.0.0.7/24", "gateway": "10.0.0.1", "dns": ["10.0.0.2"] });
            }
            spec
        },
    )
}

fn file(content: &str, mode: u32) -> FileFact {
    FileFact::Regular {
        content: Some(content.to_owned()),
        mode,
        owner: "root".into(),
        group: "root".into(),
    }
}

fn unit(file_state: &str, active: &str, triggers: &[&str]) -> UnitFact {
    UnitFact {
        file_state: file_state.into(),
        active_state: active.into(),
        triggered_by: triggers.iter().map(|one| (*one).to_owned()).collect(),
    }
}

fn user(name: &str, shell: &str, sudo: bool) -> UserFact {
    UserFact {
        home: format!("/home/{name}"),
        group: name.to_owned(),
        shell: shell.into(),
        groups: sudo.then(|| "sudo".to_owned()).into_iter().collect(),
        ..UserFact::default()
    }
}

/// A Debian node with configuration from first boot and from its users.
pub fn facts() -> impl Strategy<Value = Facts> {
    let sudoers = select(vec![
        "",
        "ops ALL=(ALL) NOPASSWD:ALL\n",
        "ops,alice ALL=(ALL) NOPASSWD:ALL\n%sudo ALL=(ALL) NOPASSWD: ALL\n",
        "# quiet\nbob ALL=(ALL) \\\n  ALL\n",
    ]);
    let sshd = select(vec![
        "Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes\n",
        "PermitRootLogin yes\nInclude /etc/ssh/sshd_config.d/*.conf\nPort 22\n",
        "Port 2222\nPort 22\nPasswordAuthentication yes\nMatch User x\n  PermitRootLogin yes\n",
    ]);
    let keys = select(vec![
        "",
        "ssh-ed25519 AAAAone old\n",
        "ssh-ed25519 CCCC foreign\n# note\n",
    ]);
    let known = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (
        sudoers,
        sshd,
        keys,
        known,
        subsequence(PACKAGES.to_vec(), 0..3),
    )
        .prop_map(
            |(sudoers, sshd, keys, (ops, alice, sudo, quiet), packages)| {
                let mut facts = Facts {
                    system: SystemFact {
                        id: "debian".into(),
                        version: "12".into(),
                        systemd: true,
                    },
                    hostname: "localhost".into(),
                    network: NetworkFact {
                        interface: "eth0".into(),
                        addresses: vec!["10.0.0.9/24".into()],
                        gateway: Some("10.0.0.1".into()),
                        manager: NetworkManager::Networkd,
                    },
                    ..Facts::default()
                };
                for name in packages
                    .into_iter()
                    .chain(["openssh-server", "sudo", "tzdata"])
                {
                    let (name, _) = name.split_once('=').unwrap_or((name, ""));
                    let version = "0".to_owned();
                    facts
                        .packages
                        .insert(name.to_owned(), PackageFact { version });
                    if matches!(name, "nginx" | "fail2ban") {
                        let state = if quiet {
                            unit("disabled", "failed", &[])
                        } else {
                            unit("enabled", "active", &[])
                        };
                        facts.units.insert(format!("{name}.service"), state);
                    }
                }
                facts.units.insert(
                    "rpcbind.service".into(),
                    unit("enabled", "active", &["rpcbind.socket"]),
                );
                facts
                    .units
                    .insert("rpcbind.socket".into(), unit("enabled", "active", &[]));
                if ops {
                    facts
                        .users
                        .insert("ops".into(), user("ops", "/bin/bash", sudo));
                }
                if alice {
                    facts
                        .users
                        .insert("alice".into(), user("alice", "/usr/sbin/nologin", false));
                    facts.files.insert(
                        "/home/alice/.ssh".into(),
                        FileFact::Directory {
                            mode: 0o755,
                            owner: "root".into(),
                            group: "root".into(),
                        },
                    );
                    facts
                        .files
                        .insert("/home/alice/.ssh/authorized_keys".into(), file(keys, 0o644));
                }
                facts.files.insert(
                    "/etc/sudoers".into(),
                    file("Defaults env_reset\n%sudo ALL=(ALL:ALL) ALL\n", 0o440),
                );
                if !sudoers.is_empty() {
                    facts.files.insert(
                        "/etc/sudoers.d/90-cloud-init-users".into(),
                        file(sudoers, 0o440),
                    );
                }
                facts
                    .files
                    .insert("/etc/ssh/sshd_config".into(), file(sshd, 0o644));
                // Minimal systems have none.
                if !quiet {
                    facts
                        .files
                        .insert("/etc/hosts".into(), file("127.0.0.1 localhost\n", 0o644));
                }
                facts
                    .files
                    .insert("/etc/timezone".into(), file("Etc/UTC\n", 0o644));
                facts.files.insert(
                    "/etc/resolv.conf".into(),
                    file("nameserver 1.1.1.1\n", 0o644),
                );
                facts
                    .files
                    .insert("/usr/share/zoneinfo/Europe/Berlin".into(), FileFact::Other);
                facts
                    .sysctl
                    .insert("net.ipv4.ip_forward".into(), "0".into());
                facts
            },
        )
}

/// Reverses every list of a spec.
fn reversed(spec: &Value) -> Value {
    match spec {
        Value::Array(items) => items.iter().rev().map(reversed).collect(),
        Value::Object(map) => map
            .iter()
            .rev()
            .map(|(key, value)| (key.clone(), reversed(value)))
            .collect(),
        other => other.clone(),
    }
}

/// Reverses every list but that of name servers, whose order matters.
fn reversed_but_dns(spec: &Value) -> Value {
    let mut other = reversed(spec);
    if spec.get("network").is_some() {
        other["network"] = spec["network"].clone();
    }
    other
}

pub const WHOLE: usize = usize::MAX;

proptest! {
    #[test]
    fn converging_twice_changes_nothing(spec in spec(), facts in facts()) {
        let desired = read(&spec);
        let mut model = Model::new(facts);
        let first = model.converge(&desired, WHOLE);
        prop_assert_eq!(first.steps.is_empty(), first.is_converged());
        let again = decide(&desired, &model.facts, &model.state);
        prop_assert!(again.is_converged() && again.steps.is_empty(), "{:#?}", again);
        // The stored state does not grow.
        prop_assert_eq!(&again.next, &model.state);
    }

    #[test]
    fn the_order_in_a_spec_does_not_change_the_bytes_of_the_decision(spec in spec(), facts in facts()) {
        let model = Model::new(facts);
        let text = |spec: &Value| {
            let decision = decide(&read(spec), &model.facts, &model.state);
            serde_json::to_string(&decision).unwrap()
        };
        prop_assert_eq!(text(&spec), text(&spec));
        prop_assert_eq!(text(&spec), text(&reversed_but_dns(&spec)));
    }

    #[test]
    fn a_run_killed_after_any_step_and_repeated_ends_the_same(spec in spec(), facts in facts(), at in 0usize..40) {
        let desired = read(&spec);
        let mut whole = Model::new(facts);
        let mut killed = whole.clone();
        whole.converge(&desired, WHOLE);
        killed.converge(&desired, at);
        killed.converge(&desired, WHOLE);
        prop_assert_eq!(&killed.facts, &whole.facts);
        prop_assert_eq!(&killed.loaded, &whole.loaded);
        prop_assert_eq!(&killed.state, &whole.state);
    }

    #[test]
    fn reverting_after_any_step_restores_the_node(one in spec(), other in spec(), facts in facts(), at in 0usize..40) {
        let mut model = Model::new(facts);
        model.converge(&read(&one), WHOLE);
        let before = model.apply_and_revert(&read(&other), at);
        for (unit, was) in &before.facts.units {
            // Failed and stopped are not distinguished.
            let runs = |unit: &UnitFact| unit.active_state == "active";
            prop_assert_eq!(runs(&model.facts.units[unit]), runs(was), "{}", unit);
            prop_assert_eq!(&model.facts.units[unit].file_state, &was.file_state, "{}", unit);
        }
        for (unit, was) in &before.loaded {
            let runs = before.facts.units.get(unit).is_none_or(|unit| unit.active_state == "active");
            if runs {
                prop_assert_eq!(&model.loaded[unit], was, "{}", unit);
            }
        }
        model.facts.units = before.facts.units.clone();
        prop_assert_eq!(&model.facts, &before.facts);
        // Nothing that does not exist is managed.
        for path in &model.state.managed.files {
            prop_assert!(model.facts.files.contains_key(path), "{} is managed", path);
        }
        for user in model.state.managed.users.keys() {
            prop_assert!(model.facts.users.contains_key(user), "{} is managed", user);
        }
        // The earlier spec needs no steps except for packages.
        let earlier = decide(&read(&one), &model.facts, &model.state);
        let about_files = |step: &&ConvergeStep| matches!(step, ConvergeStep::Write { .. } | ConvergeStep::Delete { .. } | ConvergeStep::DisableLogin { .. } | ConvergeStep::EnableLogin { .. });
        // If a package must be installed first, the node is compared again afterwards.
        let again = matches!(earlier.steps.first(), Some(ConvergeStep::Packages { install, .. }) if !install.is_empty());
        let steps: Vec<_> = earlier.steps.iter().filter(about_files).filter(|_| !again).collect();
        prop_assert!(steps.is_empty(), "{:#?}", steps);
        // The other spec can be applied later.
        model.converge(&read(&other), WHOLE);
        let again = decide(&read(&other), &model.facts, &model.state);
        prop_assert!(again.is_converged(), "{:#?}", again);
    }

    #[test]
    fn access_of_an_earlier_spec_is_removed(one in spec(), other in spec(), facts in facts()) {
        let (before, after) = (read(&one), read(&other));
        let mut model = Model::new(facts.clone());
        model.converge(&before, WHOLE);
        model.converge(&after, WHOLE);
        let mut direct = Model::new(facts.clone());
        direct.converge(&after, WHOLE);
        // Also when the specs alternate.
        let mut twice = model.clone();
        twice.converge(&before, WHOLE);
        twice.converge(&after, WHOLE);
        let mut thrice = twice.clone();
        thrice.converge(&before, WHOLE);
        thrice.converge(&after, WHOLE);
        prop_assert_eq!(&thrice.facts, &twice.facts);
        for model in [model, twice] {
            prop_assert_eq!(sudo_rules(&model), sudo_rules(&direct));
            for (name, user) in &model.facts.users {
                if !direct.facts.users.contains_key(name) {
                    prop_assert!(user.expired, "{} can still log in", name);
                    let keys = format!("/home/{name}/.ssh/authorized_keys");
                    prop_assert!(!model.facts.files.contains_key(&keys));
                }
            }
            prop_assert_eq!(&model.facts.sshd, &direct.facts.sshd);
            let installed = |model: &Model| model.facts.packages.keys().cloned().collect::<Vec<_>>();
            prop_assert_eq!(installed(&model), installed(&direct));
        }
    }

    #[test]
    fn changes_on_the_node_and_of_the_spec_are_distinguished(spec in spec(), facts in facts()) {
        let desired = read(&spec);
        let mut model = Model::new(facts);
        model.converge(&desired, WHOLE);
        model.facts.hostname = "altered".to_owned();
        let found = decide(&desired, &model.facts, &model.state);
        let ours: Vec<_> = found.changes.iter().filter(|change| change.id == "hostname/kernel").collect();
        prop_assert_eq!(ours.len(), 1);
        prop_assert_eq!(serde_json::to_value(ours[0].cause).unwrap(), json!("node"));
        let mut other = spec.clone();
        other["identity"]["hostname"] = json!("other");
        let found = decide(&read(&other), &model.facts, &model.state);
        let ours: Vec<_> = found.changes.iter().filter(|change| change.id == "hostname/kernel").collect();
        prop_assert_eq!(serde_json::to_value(ours[0].cause).unwrap(), json!("spec"));
    }
}

/// Returns the managed sudo rules.
fn sudo_rules(model: &Model) -> BTreeMap<String, String> {
    let rules = model
        .facts
        .files
        .iter()
        .filter(|(path, _)| path.starts_with("/etc/sudoers.d/homestak-"));
    rules
        .map(|(path, file)| (path.clone(), file.text().unwrap_or_default().to_owned()))
        .collect()
}
