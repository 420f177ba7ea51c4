//! A model of a Debian node that steps are applied to.

use std::collections::{BTreeMap, BTreeSet};

use homestak_core::converge::{
    ACCOUNTS, ConvergeStep, Decision, Facts, FileFact, PackageFact, Resource, SSHD, SSHD_D, State,
    UndoPlan, UnitFact, UserFact, decide,
};

/// A node, and the configuration its services have loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub facts: Facts,
    /// Files of each service as last loaded.
    pub loaded: BTreeMap<String, BTreeMap<String, FileFact>>,
    pub state: State,
}

impl Model {
    pub fn new(mut facts: Facts) -> Self {
        refresh(&mut facts);
        let mut model = Self {
            facts,
            loaded: BTreeMap::new(),
            state: State::default(),
        };
        for unit in ["ssh.service", "fail2ban.service", "network"] {
            model.load(unit);
        }
        model
    }

    /// Updates what is derived from files, after they were changed.
    pub fn refresh(&mut self) {
        refresh(&mut self.facts);
    }

    /// Loads the files of a unit.
    fn load(&mut self, unit: &str) {
        let start = match unit {
            "ssh.service" => "/etc/ssh/",
            "fail2ban.service" => "/etc/fail2ban/",
            "network" => "/etc/systemd/network/",
            _ => return,
        };
        let files = self.facts.files.iter();
        let read = files
            .filter(|(path, _)| path.starts_with(start))
            .map(|(path, file)| (path.clone(), file.clone()))
            .collect();
        self.loaded.insert(unit.to_owned(), read);
    }

    /// Converges as the agent does: after packages, the node is compared again. Stops after `limit`
    /// steps, as if killed.
    pub fn converge(&mut self, desired: &[Resource], mut limit: usize) -> Decision {
        let first = decide(desired, &self.facts, &self.state);
        let mut decision = first.clone();
        let before = self.state.managed.clone();
        let mut managed = decision.intent.clone();
        loop {
            assert_eq!(decision.refusals, [""; 0]);
            self.state.managed = before.with(&managed);
            self.state.pending = decision
                .steps
                .iter()
                .filter(|step| step.follows_files())
                .cloned()
                .collect();
            let mut again = false;
            for step in &decision.steps {
                if limit == 0 {
                    return first;
                }
                limit -= 1;
                self.act(step);
                self.state.pending.remove(step);
                if matches!(step, ConvergeStep::Packages { .. }) {
                    again = true;
                    break;
                }
            }
            if !again {
                break;
            }
            decision = decide(desired, &self.facts, &self.state);
            managed = managed.with(&decision.intent);
        }
        self.state = decision.next;
        first
    }

    /// Runs the first steps after packages, and reverts them as the agent does. Returns the node
    /// before them.
    pub fn apply_and_revert(&mut self, desired: &[Resource], limit: usize) -> Self {
        let before_packages = self.state.clone();
        let mut decision = decide(desired, &self.facts, &self.state);
        assert_eq!(decision.refusals, [""; 0]);
        if let Some(packages @ ConvergeStep::Packages { .. }) = decision.steps.first() {
            self.act(packages);
            self.state.managed = self.state.managed.with(&decision.intent);
            decision = decide(desired, &self.facts, &self.state);
        }
        let before = self.clone();
        let undo = UndoPlan::new(&decision.steps, &self.facts);
        let reverted = UndoPlan::reverted_state(&before_packages, &self.state);
        for step in decision.steps.iter().take(limit) {
            self.act(step);
        }
        self.state = reverted;
        let facts = &mut self.facts;
        for path in &undo.paths {
            match before.facts.files.get(path) {
                Some(file) => facts.files.insert(path.clone(), file.clone()),
                None => facts.files.remove(path),
            };
        }
        if undo.paths.contains(ACCOUNTS[0]) {
            facts.users = before.facts.users.clone();
        }
        if let Some(network) = &undo.network {
            facts.network = network.clone();
        }
        for step in &undo.steps {
            self.act(step);
        }
        if let Some(network) = undo.network {
            self.facts.network = network;
        }
        before
    }

    fn act(&mut self, step: &ConvergeStep) {
        let facts = &mut self.facts;
        match step.clone() {
            ConvergeStep::Packages { install, remove } => {
                for package in install {
                    let (name, version) = package.split_once('=').unwrap_or((&package, "1"));
                    self.facts.packages.insert(
                        name.to_owned(),
                        PackageFact {
                            version: version.to_owned(),
                        },
                    );
                    if matches!(name, "nginx" | "fail2ban" | "chrony") {
                        self.facts.units.insert(
                            format!("{name}.service"),
                            UnitFact {
                                file_state: "enabled".into(),
                                active_state: "active".into(),
                                triggered_by: vec![],
                            },
                        );
                        self.load(&format!("{name}.service"));
                    }
                }
                for name in remove {
                    self.facts.packages.remove(&name);
                    self.facts.units.remove(&format!("{name}.service"));
                }
            }
            ConvergeStep::CreateUser { name, shell } => {
                let user = UserFact {
                    home: format!("/home/{name}"),
                    group: name.clone(),
                    shell,
                    groups: BTreeSet::new(),
                    ..UserFact::default()
                };
                facts.users.insert(name, user);
            }
            ConvergeStep::EnableLogin { name, shell } => {
                let user = facts.users.get_mut(&name).unwrap();
                user.shell = shell;
                user.expired = false;
            }
            ConvergeStep::Directory {
                path,
                mode,
                owner,
                group,
            } => {
                facts
                    .files
                    .insert(path, FileFact::Directory { mode, owner, group });
            }
            ConvergeStep::Write {
                path,
                content,
                mode,
                owner,
                group,
            } => {
                assert!(
                    owner == "root" || facts.users.contains_key(&owner),
                    "{path}"
                );
                let content = Some(content);
                facts.files.insert(
                    path,
                    FileFact::Regular {
                        content,
                        mode,
                        owner,
                        group,
                    },
                );
            }
            ConvergeStep::Link { path, target } => {
                facts.files.insert(path, FileFact::Link { target });
            }
            ConvergeStep::Delete { path } => {
                facts.files.remove(&path);
            }
            ConvergeStep::Hostname { name } => facts.hostname = name,
            ConvergeStep::Sysctl { key, value } => {
                facts.sysctl.insert(key, value);
            }
            ConvergeStep::Network { .. } => {
                self.load("network");
                let own = self
                    .facts
                    .files
                    .get("/etc/systemd/network/05-homestak.network");
                let Some(text) = own.and_then(FileFact::text).map(str::to_owned) else {
                    return;
                };
                let value = |key: &str| {
                    text.lines()
                        .find_map(|line| line.strip_prefix(key))
                        .map(str::to_owned)
                };
                self.facts.network.addresses = value("Address=").into_iter().collect();
                self.facts.network.gateway = value("Gateway=");
            }
            ConvergeStep::DaemonReload => {}
            ConvergeStep::Stop { unit } => {
                facts.units.get_mut(&unit).unwrap().active_state = "inactive".into();
            }
            ConvergeStep::Disable { unit } => {
                facts.units.get_mut(&unit).unwrap().file_state = "disabled".into();
            }
            ConvergeStep::Enable { unit, .. } => {
                facts.units.get_mut(&unit).unwrap().file_state = "enabled".into();
            }
            ConvergeStep::Start { unit } => {
                facts.units.get_mut(&unit).unwrap().active_state = "active".into();
                self.load(&unit);
            }
            ConvergeStep::Reload { unit } | ConvergeStep::Restart { unit } => self.load(&unit),
            ConvergeStep::RemoveFromGroup { user, group } => {
                facts.users.get_mut(&user).unwrap().groups.remove(&group);
            }
            ConvergeStep::DisableLogin { name } => {
                let user = facts.users.get_mut(&name).unwrap();
                user.expired = true;
                user.shell = "/usr/sbin/nologin".into();
            }
        }
        refresh(&mut self.facts);
    }
}

/// Updates the effective settings of the SSH server.
fn refresh(facts: &mut Facts) {
    let mut effective: BTreeMap<String, Vec<String>> = BTreeMap::new();
    read_sshd(SSHD, facts, &mut effective);
    for (name, usual) in [
        ("port", "22"),
        ("permitrootlogin", "without-password"),
        ("passwordauthentication", "yes"),
        ("kbdinteractiveauthentication", "yes"),
    ] {
        effective
            .entry(name.to_owned())
            .or_insert_with(|| vec![usual.to_owned()]);
    }
    facts.sshd = Some(effective);
}

/// Reads settings as sshd does: the first value is used, but ports accumulate.
fn read_sshd(path: &str, facts: &Facts, effective: &mut BTreeMap<String, Vec<String>>) {
    let text = facts
        .files
        .get(path)
        .and_then(FileFact::text)
        .unwrap_or_default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default().to_ascii_lowercase();
        let value = words.next().unwrap_or_default().to_owned();
        match name.as_str() {
            "match" => return,
            "include" => {
                let files: Vec<String> = facts
                    .files
                    .keys()
                    .filter(|path| path.starts_with(SSHD_D) && path.ends_with(".conf"))
                    .cloned()
                    .collect();
                for path in files {
                    read_sshd(&path, facts, effective);
                }
            }
            "port" => {
                let ports = effective.entry(name).or_default();
                if !ports.contains(&value) {
                    ports.push(value);
                }
            }
            "" | "#" => {}
            _ if name.starts_with('#') => {}
            _ => {
                effective.entry(name).or_insert_with(|| vec![value]);
            }
        }
    }
}
