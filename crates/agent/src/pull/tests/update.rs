//! Programs that a site publishes, in place of the one that runs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use homestak_api::publication::{AgentStatement, STATEMENT_HEADER, sha256};
use homestak_api::signature::Purpose;
use homestak_test_support::server::{Response, Server};

use super::Puller;
use super::sample;
use super::site::TestSite;
use crate::pull::pass::{Apply, PassReport, pass};
use crate::pull::update::Programs;

/// A program that records its arguments.
fn program(note: &Path, code: u8) -> String {
    format!("#!/bin/sh\necho \"$*\" >>{}\nexit {code}\n", note.display())
}

/// The programs of a machine, below a directory.
struct Installed {
    root: tempfile::TempDir,
    programs: Programs,
}

impl Installed {
    /// A machine that runs a program, with its statement as the first boot leaves it.
    fn new(program: &str, generation: Option<u64>) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        for name in ["lib", "bin"] {
            fs_err::create_dir(root.path().join(name)).expect("created");
        }
        let digest = sha256(program.as_bytes());
        let running = root
            .path()
            .join("lib")
            .join(format!("agent-{}", &digest[..16]));
        fs_err::write(&running, program).expect("written");
        let mode = std::fs::Permissions::from_mode(0o755);
        fs_err::set_permissions(&running, mode).expect("set");
        let (link, alias) = (
            root.path().join("bin/homestak-agent"),
            root.path().join("bin/homestak"),
        );
        for link in [&link, &alias] {
            fs_err::os::unix::fs::symlink(&running, link).expect("linked");
        }
        if let Some(generation) = generation {
            let statement = serde_json::json!({
                "architecture": std::env::consts::ARCH, "version": "0.1.0", "sha256": digest,
                "size": program.len(), "generation": generation,
            });
            let path = running.with_extension("json");
            fs_err::write(path, statement.to_string()).expect("written");
        }
        let programs = Programs::new(root.path().join("lib"), link, alias, running);
        Self { root, programs }
    }

    fn pass(&mut self, web: &mut Puller) -> PassReport {
        let programs = Some(&mut self.programs);
        let done = pass(&web.store, &mut web.node, Apply::WhenPending, programs);
        done.expect("a pass")
    }

    /// Returns the program that the link starts.
    fn installed_program(&self) -> String {
        let target = |name| fs_err::read_link(self.root.path().join("bin").join(name));
        let target: PathBuf = target("homestak-agent").expect("a link");
        fs_err::read_to_string(target).expect("a program")
    }

    fn files(&self) -> usize {
        let entries = fs_err::read_dir(self.root.path().join("lib"));
        entries.expect("a directory").count()
    }

    fn note(&self) -> PathBuf {
        self.root.path().join("note")
    }

    fn notes(&self) -> Vec<String> {
        let text = fs_err::read_to_string(self.note()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn a_program_that_is_published_later_is_checked_and_replaces_this_one_before_the_spec_is_applied() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    let mut machine = Installed::new("one", Some(1));
    let stale = machine.root.path().join("lib/agent-0000000000000000");
    fs_err::write(&stale, "old").expect("written");
    let two = program(&machine.note(), 0);
    site.publish_changed_agent(two.as_bytes(), &site.key, |statement| {
        statement.generation = 2;
        statement.version = "0.0.1".to_owned();
    });
    let done = machine.pass(&mut web);
    assert!(done.replaced && !done.reported);
    assert!(web.node.tried.is_empty(), "left to the new program");
    assert_eq!(machine.installed_program(), two);
    assert_eq!(machine.notes(), ["pull --check"]);
    // The program that runs is kept; others are not.
    assert!(machine.programs.running.exists() && !stale.exists());
    assert_eq!(machine.files(), 4);
    let alias = fs_err::read_to_string(machine.root.path().join("bin/homestak"));
    assert_eq!(alias.expect("a program"), two);

    // The new program applies the spec: it is the published one.
    let mut next = Installed::new(&two, Some(2));
    let done = next.pass(&mut web);
    assert!(!done.replaced && done.changed);
}

#[test]
fn an_earlier_foreign_or_altered_program_is_refused_and_the_spec_is_applied() {
    for case in ["earlier", "foreign", "altered", "other processor"] {
        let site = TestSite::start();
        let mut web = Puller::new(&site);
        let mut machine = Installed::new("one", Some(5));
        let evil = program(&machine.note(), 0);
        let foreign = sample::enrolment().1;
        let key = if case == "foreign" {
            &foreign
        } else {
            &site.key
        };
        site.publish_changed_agent(evil.as_bytes(), key, |statement| match case {
            "earlier" => statement.generation = 4,
            _ => {
                statement.generation = 6;
                statement.version = "99.0.0".to_owned();
                // The server compares the checksum, but not the size.
                statement.size += u64::from(case == "altered");
            }
        });
        if case == "other processor" {
            site.publish_changed_agent(evil.as_bytes(), key, |statement| {
                statement.generation = 6;
                statement.architecture = "vax".to_owned();
            });
        }
        let done = machine.pass(&mut web);
        assert!(!done.replaced && done.changed && done.reported, "{case}");
        assert_eq!(
            (machine.installed_program(), machine.files()),
            ("one".to_owned(), 2),
            "{case}"
        );
        assert_eq!(machine.notes(), [""; 0], "{case}");
    }
}

#[test]
fn a_program_that_does_not_work_here_is_not_installed_nor_downloaded_again_at_once() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    let mut machine = Installed::new("one", None);
    let broken = program(&machine.note(), 1);
    site.publish_changed_agent(broken.as_bytes(), &site.key, |statement| {
        statement.generation = 2;
    });
    for _ in 0..3 {
        let done = machine.pass(&mut web);
        assert!(!done.replaced && done.reported);
        assert_eq!(
            (machine.installed_program(), machine.files()),
            ("one".to_owned(), 1)
        );
    }
    assert_eq!(machine.notes(), ["pull --check"]);
    // Another one is tried at once; a file that cannot be executed fails in the same way.
    site.publish_changed_agent(b"\x7fELF", &site.key, |statement| statement.generation = 3);
    assert!(!machine.pass(&mut web).replaced);
    let works = program(&machine.note(), 0);
    site.publish_changed_agent(works.as_bytes(), &site.key, |statement| {
        statement.generation = 4;
    });
    assert!(machine.pass(&mut web).replaced);
    assert_eq!(machine.installed_program(), works);
}

#[test]
fn a_program_of_a_package_is_not_replaced() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    let mut machine = Installed::new("one", None);
    let other = machine.root.path().join("bin/packaged");
    fs_err::write(&other, "packaged").expect("written");
    machine.programs.running = other;
    site.publish_changed_agent(b"#!/bin/sh\n", &site.key, |statement| {
        statement.generation = 2;
        statement.version = "99.0.0".to_owned();
    });
    assert!(!machine.pass(&mut web).replaced);
    assert_eq!(machine.installed_program(), "one");
}

#[test]
fn a_machine_can_check_that_it_obtains_its_spec_without_changing_anything() {
    let mut site = TestSite::start();
    let mut web = Puller::new(&site);
    let check = |web: &Puller| crate::pull::session::check(&web.store);
    assert!(check(&web).is_err(), "not enrolled");
    web.pass().expect("applied");
    let before = (web.registration(), site.reports().len());
    check(&web).expect("it can");
    assert_eq!((web.registration(), site.reports().len()), before);
    site.publish("{}", |statement| statement.generation = 3);
    assert!(check(&web).is_err(), "an older spec");
    site.stop();
    assert!(check(&web).is_err(), "no server");
}

#[test]
fn a_program_that_knows_a_later_form_of_statements_replaces_this_one() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let stranger = sample::enrolment().1;
    let later = serde_json::json!({"format": 2});
    for (is_of_site, works) in [(true, true), (true, false), (false, true)] {
        let mut machine = Installed::new("one", Some(1));
        let two = program(&machine.note(), u8::from(!works));
        let published = AgentStatement {
            architecture: std::env::consts::ARCH.to_owned(),
            version: "0.2.0".to_owned(),
            sha256: sha256(two.as_bytes()),
            size: two.len() as u64,
            generation: 2,
        };
        let key = if is_of_site { &site.key } else { &stranger };
        let spec = key.sign(Purpose::Spec, &later).expect("signed");
        let agent = site.key.sign(Purpose::Agent, &published).expect("signed");
        let body = two.clone();
        let server = Server::answering(0, move |head| {
            let header = |text: &str| vec![(STATEMENT_HEADER.to_owned(), text.to_owned())];
            if head.starts_with("GET /spec/") {
                Response::Full(200, header(&spec), "{}".to_owned())
            } else if head.starts_with("HEAD /v1/agents/") {
                Response::Full(200, header(&agent), String::new())
            } else if head.starts_with("GET /v1/agents/") {
                Response::Full(200, header(&agent), body.clone())
            } else {
                Response::Reply(201, "{\"id\":1}".to_owned())
            }
        });
        web.change(|registration| {
            registration.contact.servers = vec![server.url()];
            registration.contact.fingerprints = vec![server.fingerprint.clone()];
        });
        let programs = Some(&mut machine.programs);
        let done = pass(&web.store, &mut web.node, Apply::WhenPending, programs);
        let is_replaced = done.as_ref().is_ok_and(|done| done.replaced);
        assert_eq!(is_replaced, is_of_site && works, "{is_of_site} {works}");
        assert_eq!(done.is_err(), !is_replaced);
        assert_eq!(machine.installed_program() == two, is_replaced);
        // The reason is reported unless the new program continues.
        let is_reported = server
            .requests()
            .iter()
            .any(|head| head.starts_with("POST "));
        assert_eq!(is_reported, !is_replaced, "{:?}", server.requests());
    }
}
