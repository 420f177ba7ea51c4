//! Runs on a simulated machine, which is killed, fails or changes where a test wants it to.

use homestak_core::converge::{FileFact, PackageFact, SystemFact, UnitFact};

use super::*;
use crate::packages::PackageError;

const UNIT: &str = "web.service";

/// A simulated machine.
#[derive(Default)]
struct Model {
    facts: Facts,
    state: State,
    /// The files that the unit had read when it was last started.
    loaded: BTreeMap<String, FileFact>,
    /// The calls so far.
    calls: Vec<String>,
    /// The run is killed after this many calls.
    killed_after: Option<usize>,
    /// The call that fails.
    fails: &'static str,
    /// Packages fail: whether any was changed.
    packages_fail: Option<bool>,
    /// How often the unit is observed as activating after its start.
    n_starting: usize,
    /// A path that its user overwrites at once.
    contested: &'static str,
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

    fn call(&mut self, call: &str) -> Result<(), AgentError> {
        if self.killed_after == Some(self.calls.len()) {
            return Err(AgentError::Killed);
        }
        self.calls.push(call.to_owned());
        if self.fails == call {
            let (step, reason) = (call.to_owned(), "no".to_owned());
            return Err(AgentError::Step { step, reason });
        }
        Ok(())
    }

    fn converge(&mut self, wanted: &[Resource]) -> Result<Refused, AgentError> {
        let observation = observe(self, wanted)?;
        carry_out(self, wanted, observation, &mut NoObserver)
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

    fn config_errors(&self, _: &[ConvergeStep]) -> Result<Vec<String>, AgentError> {
        Ok(Vec::new())
    }

    fn is_users(&self, path: &str) -> bool {
        path == self.contested
    }

    fn wait(&mut self) {
        self.calls.push("wait".to_owned());
        self.n_starting -= 1;
        self.start(UNIT);
    }

    fn load_state(&self) -> Result<State, AgentError> {
        Ok(self.state.clone())
    }

    fn save_state(&mut self, state: &State) -> Result<(), AgentError> {
        self.call("save state")?;
        self.state = state.clone();
        Ok(())
    }

    fn remove_marker(&mut self) -> Result<(), AgentError> {
        self.call("remove marker")
    }

    fn prepare_packages(
        &mut self,
        _: &[String],
        _: &[String],
        interrupted: bool,
    ) -> Result<(), AgentError> {
        if interrupted {
            self.call("finish packages")?;
            self.facts.dpkg_errors.clear();
        }
        Ok(())
    }

    fn change_packages(&mut self, install: &[String], _: &[String]) -> Result<(), PackageError> {
        if let Some(begun) = self.packages_fail.take() {
            self.facts.dpkg_errors = if begun { "web is half installed" } else { "" }.to_owned();
            let error = AgentError::Packages("no".to_owned());
            return Err(PackageError { error, begun });
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

    fn back_up(&mut self, _: &[Resource], _: &[ConvergeStep], _: &Facts) {}

    fn stage(&mut self, steps: &[&ConvergeStep]) -> Result<(), AgentError> {
        for step in steps {
            if let ConvergeStep::Write { owner, .. } = step {
                let is_known = owner == "root" || self.facts.users.contains_key(owner);
                assert!(is_known, "user {owner} does not exist yet");
            }
        }
        self.call("stage")
    }

    fn skipped(&self) -> &BTreeMap<String, String> {
        &self.skipped
    }

    fn execute(&mut self, step: &ConvergeStep) -> Result<(), AgentError> {
        self.call(&step.description())?;
        match step.clone() {
            ConvergeStep::CreateUser { name, shell } => {
                let user = UserFact {
                    home: format!("/home/{name}"),
                    group: name.clone(),
                    shell,
                    ..UserFact::default()
                };
                self.facts.users.insert(name, user);
            }
            ConvergeStep::Write {
                path,
                content,
                mode,
                owner,
                group,
            } => {
                let content = match path == self.contested {
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
            ConvergeStep::Enable { unit, .. } => {
                let unit = self.facts.units.get_mut(&unit).unwrap();
                unit.file_state = "enabled".to_owned();
            }
            ConvergeStep::Start { unit } | ConvergeStep::Restart { unit } => self.start(&unit),
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    fn restore_rejected(
        &self,
        _: &[ConvergeStep],
        done: Result<(), AgentError>,
    ) -> Result<(), AgentError> {
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

/// A package with a service, and a user.
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
fn service_with_files() -> Vec<Resource> {
    let files = [file("/etc/web.conf", "root"), file("/srv/alice", "alice")];
    [service(), files.to_vec()].concat()
}

#[test]
fn a_run_killed_after_any_call_is_finished_by_the_next() {
    let mut whole = Model::new();
    whole.converge(&service()).unwrap();
    let before = whole.calls.len();
    whole.converge(&service_with_files()).unwrap();
    let n_calls = whole.calls.len();
    for killed_after in 0..n_calls {
        let mut model = Model::new();
        model.killed_after = Some(killed_after);
        if model.converge(&service()).is_ok() {
            assert!(killed_after >= before);
            model.converge(&service_with_files()).unwrap_err();
        }
        model.killed_after = None;
        model.converge(&service_with_files()).unwrap();
        let calls = model.calls.join(", ");
        assert_eq!(model.facts, whole.facts, "{calls}");
        assert_eq!(model.state, whole.state, "{calls}");
        assert_eq!(model.loaded, whole.loaded, "{calls}");
        let n_calls = model.calls.len();
        model.converge(&service_with_files()).unwrap();
        assert_eq!(model.calls.len(), n_calls, "the next run changes nothing");
    }
}

#[test]
fn unavailable_packages_leave_the_state_unchanged_and_end_the_run() {
    let mut model = Model::new();
    model.packages_fail = Some(false);
    let error = model.converge(&service_with_files()).unwrap_err();
    assert!(matches!(error, AgentError::Packages(_)), "{error:?}");
    assert_eq!(model.state, State::default());
    assert_eq!(model.calls, ["remove marker", "save state", "save state"]);
}

#[test]
fn interrupted_packages_are_finished_first() {
    let mut model = Model::new();
    model.packages_fail = Some(true);
    model.converge(&service_with_files()).unwrap_err();
    assert!(model.state.in_packages);
    model.calls.clear();
    model.converge(&service_with_files()).unwrap();
    assert_eq!(model.calls[0], "finish packages");
    assert!(!model.state.in_packages);
}

#[test]
fn a_failed_step_reports_completed_and_remaining_steps() {
    let mut model = Model::new();
    model.fails = "enable web.service";
    let error = model.converge(&service_with_files()).unwrap_err();
    let AgentError::Incomplete { first, done, left } = error else {
        panic!("{error:?}");
    };
    assert_eq!(first.to_string(), "enable web.service: no");
    let files = ["write /etc/web.conf", "write /srv/alice"];
    assert_eq!(done, [&["create user alice"], &files[..]].concat());
    assert_eq!(left, ["enable web.service", "start web.service"]);
}

#[test]
fn a_service_that_is_activating_is_waited_for() {
    let mut model = Model::new();
    model.n_starting = 3;
    model.converge(&service_with_files()).unwrap();
    let n_waits = model.calls.iter().filter(|call| *call == "wait").count();
    assert_eq!(n_waits, 3);
    let mut model = Model::new();
    model.n_starting = MAX_CHECKS;
    let error = model.converge(&service_with_files()).unwrap_err();
    assert!(matches!(error, AgentError::StillDiffers(_)), "{error:?}");
}

#[test]
fn a_file_changed_by_its_user_meanwhile_is_refused_and_everything_else_is_done() {
    let mut model = Model::new();
    model.contested = "/srv/alice";
    let refused = model.converge(&service_with_files()).unwrap();
    let why = "it was changed while it was written".to_owned();
    let id = "file:/srv/alice/content".to_owned();
    assert_eq!(refused, BTreeMap::from([(id, why)]));
    assert_eq!(model.facts.units[UNIT].active_state, "active");
}

#[test]
fn files_in_the_home_of_a_new_user_are_staged_after_the_user_is_created() {
    let created = BTreeSet::from(["alice"]);
    for (path, owner, expected) in [
        ("/home/alice/.config/app", "root", true),
        ("/srv/alice", "alice", true),
        ("/home/alice2/x", "root", false),
        ("/etc/alice", "root", false),
    ] {
        let write = ConvergeStep::Write {
            path: path.to_owned(),
            content: String::new(),
            mode: 0o644,
            owner: owner.to_owned(),
            group: owner.to_owned(),
        };
        assert_eq!(needs_user(&write, &created), expected, "{path}");
    }
}

#[test]
fn a_refused_file_has_its_own_reason_and_not_that_of_a_path_which_begins_like_it() {
    let mut model = Model::new();
    model.contested = "/srv/alice2";
    let why = "it is a symbolic link".to_owned();
    model.skipped.insert("/srv/alice".to_owned(), why.clone());
    let wanted = [service(), vec![file("/srv/alice2", "alice")]].concat();
    let refused = model.converge(&wanted).unwrap();
    let changed = "it was changed while it was written".to_owned();
    let id = "file:/srv/alice2/content".to_owned();
    assert_eq!(refused, BTreeMap::from([(id.clone(), changed)]));
    model.skipped.insert("/srv/alice2".to_owned(), why.clone());
    let refused = model.converge(&wanted).unwrap();
    assert_eq!(refused, BTreeMap::from([(id, why)]));
}
