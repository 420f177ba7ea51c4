//! Converging on a machine that is data: it dies, fails or moves where a test wants it to.

use homestak_core::converge::{FileFact, PackageFact, SystemFact, UnitFact, UserFact};

use super::*;
use crate::packages::Fault;

const UNIT: &str = "web.service";

/// A machine that is data.
#[derive(Default)]
struct Model {
    facts: Facts,
    state: State,
    /// The files that the unit had read when it was last started.
    loaded: BTreeMap<String, FileFact>,
    /// What was done, in words.
    calls: Vec<String>,
    /// After so many calls it is dead.
    dies_after: Option<usize>,
    /// The call that fails.
    fails: &'static str,
    /// How packages fail: whether any was touched.
    packages_fail: Option<bool>,
    /// So often the unit is seen on its way after its start.
    n_starting: usize,
    /// A path of a user who writes it again at once.
    users: &'static str,
    skipped: BTreeMap<String, String>,
}

impl Model {
    fn new() -> Self {
        let system = SystemFact {
            id: "debian".to_owned(),
            version: "12".to_owned(),
            systemd: true,
        };
        Self {
            facts: Facts {
                system,
                ..Facts::default()
            },
            ..Self::default()
        }
    }

    fn call(&mut self, words: &str) -> Result<(), AgentError> {
        if self.dies_after == Some(self.calls.len()) {
            return Err(AgentError::Killed);
        }
        self.calls.push(words.to_owned());
        if self.fails == words {
            let (step, said) = (words.to_owned(), "no".to_owned());
            return Err(AgentError::Step { step, said });
        }
        Ok(())
    }

    fn converge(&mut self, wanted: &[Resource]) -> Result<Refused, AgentError> {
        let look = look(self, wanted)?;
        carry_out(self, wanted, look, &mut Quiet)
    }

    fn start(&mut self, unit: &str) {
        let active_state = match self.n_starting {
            0 => "active",
            _ => "activating",
        };
        self.facts.units.get_mut(unit).unwrap().active_state = active_state.to_owned();
        self.loaded.clone_from(&self.facts.files);
    }
}

impl System for Model {
    fn facts(&self, _: &FactScope) -> Result<Facts, AgentError> {
        Ok(self.facts.clone())
    }

    fn faults(&self, _: &[Step]) -> Result<Vec<String>, AgentError> {
        Ok(Vec::new())
    }

    fn is_users(&self, path: &str) -> bool {
        path == self.users
    }

    fn pause(&mut self) {
        self.calls.push("pause".to_owned());
        self.n_starting -= 1;
        self.start(UNIT);
    }

    fn recall(&self) -> Result<State, AgentError> {
        Ok(self.state.clone())
    }

    fn remember(&mut self, state: &State) -> Result<(), AgentError> {
        self.call("remember")?;
        self.state = state.clone();
        Ok(())
    }

    fn begin(&mut self) -> Result<(), AgentError> {
        self.call("begin")
    }

    fn prepare_packages(
        &mut self,
        _: &[String],
        _: &[String],
        cut_off: bool,
    ) -> Result<(), AgentError> {
        if cut_off {
            self.call("finish packages")?;
            self.facts.dpkg_errors.clear();
        }
        Ok(())
    }

    fn change_packages(&mut self, install: &[String], _: &[String]) -> Result<(), Fault> {
        if let Some(begun) = self.packages_fail.take() {
            self.facts.dpkg_errors = if begun { "web is half installed" } else { "" }.to_owned();
            let error = AgentError::Packages("no".to_owned());
            return Err(Fault { error, begun });
        }
        self.call("packages")?;
        for name in install {
            let fact = PackageFact::default();
            self.facts.packages.insert(name.clone(), fact);
            self.facts.units.insert(
                format!("{name}.service"),
                UnitFact {
                    file_state: "disabled".to_owned(),
                    active_state: "inactive".to_owned(),
                    triggered_by: Vec::new(),
                },
            );
        }
        Ok(())
    }

    fn keep(&mut self, _: &[Resource], _: &[Step], _: &Facts) {}

    fn stage(&mut self, steps: &[&Step]) -> Result<(), AgentError> {
        for step in steps {
            if let Step::Write { owner, .. } = step {
                let is_known = owner == "root" || self.facts.users.contains_key(owner);
                assert!(is_known, "there is no {owner} yet");
            }
        }
        self.call("stage")
    }

    fn skipped(&self) -> &BTreeMap<String, String> {
        &self.skipped
    }

    fn act(&mut self, step: &Step) -> Result<(), AgentError> {
        self.call(&step.description())?;
        match step.clone() {
            Step::CreateUser { name, shell } => {
                let user = UserFact {
                    home: format!("/home/{name}"),
                    group: name.clone(),
                    shell,
                    ..UserFact::default()
                };
                self.facts.users.insert(name, user);
            }
            Step::Write {
                path,
                content,
                mode,
                owner,
                group,
            } => {
                let content = match path == self.users {
                    true => "of the user".to_owned(),
                    false => content,
                };
                let file = FileFact::Regular {
                    content: Some(content),
                    mode,
                    owner,
                    group,
                };
                self.facts.files.insert(path, file);
            }
            Step::Enable { unit, .. } => {
                let unit = self.facts.units.get_mut(&unit).unwrap();
                unit.file_state = "enabled".to_owned();
            }
            Step::Start { unit } | Step::Restart { unit } => self.start(&unit),
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    fn judge(&self, _: &[Step], done: Result<(), AgentError>) -> Result<(), AgentError> {
        done
    }
}

fn file(path: &str, owner: &str) -> Resource {
    Resource::File {
        path: path.to_owned(),
        content: "of the spec".to_owned(),
        mode: 0o644,
        owner: owner.to_owned(),
        group: owner.to_owned(),
        restart: vec![UNIT.to_owned()],
    }
}

/// A package that brings a service, and a user.
fn service() -> Vec<Resource> {
    vec![
        Resource::Package {
            name: "web".to_owned(),
            version: None,
        },
        Resource::User {
            name: "alice".to_owned(),
        },
        Resource::Service {
            unit: UNIT.to_owned(),
            enabled: true,
        },
    ]
}

/// The same with files that the service reads.
fn site() -> Vec<Resource> {
    let files = [file("/etc/web.conf", "root"), file("/srv/alice", "alice")];
    [service(), files.to_vec()].concat()
}

#[test]
fn a_run_that_died_after_any_call_is_finished_by_the_next() {
    let mut whole = Model::new();
    whole.converge(&service()).unwrap();
    let before = whole.calls.len();
    whole.converge(&site()).unwrap();
    let n_calls = whole.calls.len();
    for dies_after in 0..n_calls {
        let mut model = Model::new();
        model.dies_after = Some(dies_after);
        if model.converge(&service()).is_ok() {
            assert!(dies_after >= before);
            model.converge(&site()).unwrap_err();
        }
        model.dies_after = None;
        model.converge(&site()).unwrap();
        let calls = model.calls.join(", ");
        assert_eq!(model.facts, whole.facts, "{calls}");
        assert_eq!(model.state, whole.state, "{calls}");
        assert_eq!(model.loaded, whole.loaded, "{calls}");
        let n_calls = model.calls.len();
        model.converge(&site()).unwrap();
        assert_eq!(model.calls.len(), n_calls, "nothing is left to do");
    }
}

#[test]
fn packages_that_cannot_be_had_leave_what_is_remembered_and_nothing_else_is_done() {
    let mut model = Model::new();
    model.packages_fail = Some(false);
    let error = model.converge(&site()).unwrap_err();
    assert!(matches!(error, AgentError::Packages(_)), "{error:?}");
    assert_eq!(model.state, State::default());
    assert_eq!(model.calls, ["begin", "remember", "remember"]);
}

#[test]
fn packages_that_were_half_installed_are_finished_before_anything_else() {
    let mut model = Model::new();
    model.packages_fail = Some(true);
    model.converge(&site()).unwrap_err();
    assert!(model.state.in_packages);
    model.calls.clear();
    model.converge(&site()).unwrap();
    assert_eq!(model.calls[0], "finish packages");
    assert!(!model.state.in_packages);
}

#[test]
fn a_step_that_fails_names_what_was_done_and_what_is_left() {
    let mut model = Model::new();
    model.fails = "enable web.service";
    let error = model.converge(&site()).unwrap_err();
    let AgentError::Halfway { first, done, left } = error else {
        panic!("{error:?}");
    };
    assert_eq!(first.to_string(), "enable web.service: no");
    let files = ["write /etc/web.conf", "write /srv/alice"];
    assert_eq!(done, [&["create user alice"], &files[..]].concat());
    assert_eq!(left, ["enable web.service", "start web.service"]);
}

#[test]
fn a_service_that_is_on_its_way_is_waited_for() {
    let mut model = Model::new();
    model.n_starting = 3;
    model.converge(&site()).unwrap();
    let n_pauses = model.calls.iter().filter(|call| *call == "pause").count();
    assert_eq!(n_pauses, 3);
    let mut model = Model::new();
    model.n_starting = LOOKS;
    let error = model.converge(&site()).unwrap_err();
    assert!(matches!(error, AgentError::Unsettled(_)), "{error:?}");
}

#[test]
fn a_file_that_its_user_changes_meanwhile_is_refused_and_everything_else_is_done() {
    let mut model = Model::new();
    model.users = "/srv/alice";
    let refused = model.converge(&site()).unwrap();
    let why = "it was changed while it was written".to_owned();
    let id = "file:/srv/alice/content".to_owned();
    assert_eq!(refused, BTreeMap::from([(id, why)]));
    assert_eq!(model.facts.units[UNIT].active_state, "active");
}

#[test]
fn files_below_the_home_of_a_new_user_wait_for_it_whoever_owns_them() {
    let made = BTreeSet::from(["alice"]);
    for (path, owner, expected) in [
        ("/home/alice/.config/app", "root", true),
        ("/srv/alice", "alice", true),
        ("/home/alice2/x", "root", false),
        ("/etc/alice", "root", false),
    ] {
        let write = Step::Write {
            path: path.to_owned(),
            content: String::new(),
            mode: 0o644,
            owner: owner.to_owned(),
            group: owner.to_owned(),
        };
        assert_eq!(waits(&write, &made), expected, "{path}");
    }
}
