//! Ownership: only guests with the id of the site are changed, whatever manifests are called and
//! whatever state was lost.

use std::fs;

use homestak_core::doc::scalar::SiteId;
use homestak_core::observed::{GuestKind, GuestRef, GuestUuid};
use homestak_core::plan::{NodeLocation, NodeRecord, NodeStatus, OnError, Plan, Verb};
use homestak_engine::journal::{Entry, Journal as _, RunOutcome, StepEvent};
use homestak_sim::Kind;
use jiff::Timestamp;

use crate::support::{Run, set_mode};
use crate::test_pve::TestPve;

pub(crate) const APPLY: [&str; 6] = ["manifest", "apply", "-M", "single-node", "-H", "father"];
pub(crate) const DESTROY: [&str; 7] = [
    "manifest",
    "destroy",
    "-M",
    "single-node",
    "-H",
    "father",
    "--yes",
];

/// Removes the id from the site, as in sites from before ids existed.
pub(crate) fn without_id(host: &TestPve) -> String {
    let file = host.env.site().join("site.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("id:"));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let text = text.replace("schema_version: 2", "schema_version: 1");
    fs::write(&file, &text).unwrap();
    text
}

pub(crate) fn id_of(host: &TestPve) -> Option<String> {
    let shown = host.run(&["site", "show", "--json-output"]).json();
    shown["id"].as_str().map(str::to_owned)
}

/// Runs the program on a copy of the site, with a state directory of its own.
fn on_copy(host: &TestPve, copy: &str, arguments: &[&str]) -> Run {
    let mut command = host.env.command(arguments);
    command.env("HOMESTAK_SITE_CONFIG", copy);
    command.env(
        "HOMESTAK_STATE",
        host.env.work().join(format!("{copy}-state")),
    );
    Run::of(&mut command)
}

fn copy_site(host: &TestPve, to: &str) {
    let (from, to) = (host.env.site(), host.env.work().join(to));
    let done = std::process::Command::new("cp")
        .args(["-a".as_ref(), from.as_os_str(), to.as_os_str()])
        .status();
    assert!(done.unwrap().success());
}

fn lose_state(host: &TestPve) {
    fs::remove_dir_all(host.state()).unwrap();
}

#[test]
fn a_new_site_has_an_id_and_keeps_it() {
    let host = TestPve::quick();
    host.single();
    let id = id_of(&host).expect("`site init` writes one");
    let run = host.run(&APPLY);
    assert!(!run.err.contains("from now on"), "{}", run.err);
    run.good();
    assert_eq!(id_of(&host), Some(id.clone()));
    let tags = host.pve.guests()[0].config["tags"].clone();
    assert!(tags.contains(&format!("homestak-s-{id}")), "{tags}");
}

#[test]
fn a_site_without_an_id_gets_one_with_its_first_guest_and_only_then() {
    let host = TestPve::quick();
    host.single();
    let text = without_id(&host);
    host.run(&["manifest", "plan", "-M", "single-node", "-H", "father"])
        .good();
    host.run(&DESTROY).good();
    let file = host.env.site().join("site.yaml");
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        text,
        "planning writes nothing"
    );
    let run = host.run(&APPLY);
    assert!(run.err.contains("from now on"), "{}", run.err);
    run.good();
    let id = id_of(&host).expect("an id");
    let now = fs::read_to_string(&file).unwrap();
    for line in text
        .lines()
        .filter(|line| !line.starts_with("schema_version"))
    {
        assert!(now.contains(line), "{line}\n{now}");
    }
    assert!(
        now.contains("schema_version: 2\n"),
        "older releases refuse it: {now}"
    );
    let again = host.run(&APPLY);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    assert!(!again.err.contains("from now on"), "{}", again.err);
    assert_eq!(id_of(&host), Some(id));
}

#[test]
fn a_saved_plan_of_a_site_without_an_id_can_be_applied() {
    let host = TestPve::quick();
    host.single();
    without_id(&host);
    let plan = [
        "manifest",
        "plan",
        "-M",
        "single-node",
        "-H",
        "father",
        "--out",
        "plan.json",
    ];
    host.run(&plan).good();
    host.run(&["manifest", "apply", "plan.json"]).good();
    assert_eq!(host.guests(), ["test-vm"]);
}

#[test]
fn when_site_yaml_cannot_be_edited_the_lines_to_add_are_printed_and_nothing_is_created() {
    let host = TestPve::quick();
    host.single();
    host.env.write("site.yaml", "{defaults: {timezone: UTC}}\n");
    let run = host.run(&APPLY);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("schema_version: 2"), "{}", run.err);
    assert!(run.err.contains("id: "), "{}", run.err);
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn an_invalid_id_is_an_error_and_never_replaced() {
    let host = TestPve::quick();
    host.single();
    let text = "schema_version: 2\nid: 17\n";
    host.env.write("site.yaml", text);
    let run = host.run(&APPLY);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("site.yaml:2:5"), "{}", run.err);
    assert_eq!(host.guests(), [""; 0]);
    let file = host.env.site().join("site.yaml");
    assert_eq!(fs::read_to_string(file).unwrap(), text);
}

#[test]
fn another_site_with_the_same_manifest_does_not_touch_our_guests() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    let ours = host.pve.guests();
    copy_site(&host, "theirs");
    on_copy(&host, "theirs", &["site", "new-id", "--yes"]).good();
    let run = on_copy(&host, "theirs", &DESTROY);
    assert!(run.err.contains("Nothing to do."), "{}", run.err);
    assert_eq!(host.pve.guests(), ours);
    let mut prune = APPLY.to_vec();
    prune.extend(["--prune", "--yes"]);
    on_copy(&host, "theirs", &prune).good();
    assert_eq!(host.guests(), ["test-vm", "test-vm"]);
    on_copy(&host, "theirs", &DESTROY).good();
    assert_eq!(host.pve.guests(), ours);
}

#[test]
fn a_copied_site_is_the_same_site_until_it_gets_another_id() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    copy_site(&host, "copy");
    let again = on_copy(&host, "copy", &APPLY);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    let unconfirmed = on_copy(&host, "copy", &["site", "new-id"]);
    assert_eq!(unconfirmed.code, 3, "not confirmed: {}", unconfirmed.err);
    on_copy(&host, "copy", &["site", "new-id", "--yes"]).good();
    let plan = on_copy(
        &host,
        "copy",
        &["manifest", "plan", "-M", "single-node", "-H", "father"],
    );
    assert!(plan.good().contains("1 to create"));
    // With the id in the tags of the guests, they are found again.
    let id = id_of(&host).unwrap();
    on_copy(&host, "copy", &["site", "new-id", "--id", &id, "--yes"]).good();
    let again = on_copy(&host, "copy", &APPLY);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
}

#[test]
fn a_driver_that_lost_its_state_still_knows_its_guests_by_the_id_of_the_site() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    lose_state(&host);
    host.run(&DESTROY).good();
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn copies_and_restored_backups_are_reported_and_kept() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    let original = host.pve.guests().remove(0);
    let copy = original.vmid + 1;
    let config: Vec<(String, String)> = original.config.clone().into_iter().collect();
    host.pve.put_guest("pve1", Kind::Qemu, copy, config);
    let run = host.run(&DESTROY);
    let expected = format!("guest {copy} (test-vm) on pve1 carries the identity of `test-vm`");
    assert!(run.err.contains(&expected), "{}", run.err);
    run.good();
    let remaining: Vec<u32> = host.pve.guests().iter().map(|guest| guest.vmid).collect();
    assert_eq!(remaining, [copy]);
    // Without records it is still not destroyed.
    lose_state(&host);
    host.run(&DESTROY).good();
    assert_eq!(host.pve.guests().len(), 1);
}

#[test]
fn without_the_journal_two_guests_of_one_identity_are_refused_by_name() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    let original = host.pve.guests().remove(0);
    let forged = original.vmid + 1;
    let mut config = original.config.clone();
    let tags = config["tags"].replace(&original.vmid.to_string(), &forged.to_string());
    config.insert("tags".to_owned(), tags);
    host.pve
        .put_guest("pve1", Kind::Qemu, forged, config.into_iter().collect());
    lose_state(&host);
    for command in [&DESTROY[..], &APPLY[..]] {
        let run = host.run(command);
        assert_eq!(run.code, 3, "{}", run.err);
        for vmid in [original.vmid, forged] {
            assert!(run.err.contains(&format!("{vmid} on pve1")), "{}", run.err);
        }
    }
    assert_eq!(host.pve.guests().len(), 2);
}

pub(crate) fn empty_plan(form: u32, site: Option<SiteId>) -> Plan {
    Plan {
        format: form,
        verb: Verb::Apply,
        site,
        manifest: "single-node".to_owned(),
        hosts: vec!["father".to_owned()],
        on_error: OnError::Stop,
        parallelism: 1,
        verify_ssh: false,
        timeout_buffer: homestak_core::units::Seconds(0),
        timeouts: homestak_core::doc::timeouts::Timeouts::default(),
        nodes: Vec::new(),
        images: Vec::new(),
        steps: homestak_core::plan::Steps::default(),
        foreign: Vec::new(),
        refusals: Vec::new(),
        estimate: None,
        measured: false,
    }
}

/// Creates a guest and a journal like those from before sites had an id.
pub(crate) fn old_guest(host: &TestPve) -> GuestUuid {
    let uuid = GuestUuid::new("11111111-2222-8333-8444-555555555555").unwrap();
    let config = [
        ("name", "test-vm".to_owned()),
        (
            "tags",
            format!("homestak;homestak-id-{uuid};homestak-m-single-node;mine"),
        ),
        (
            "description",
            format!("homestak-id: {uuid}\nhomestak-manifest: single-node\nKeep me.\n"),
        ),
        ("smbios1", format!("uuid={uuid}")),
        ("cores", "2".to_owned()),
        ("memory", "2048".to_owned()),
        ("net0", "virtio=BC:24:11:00:00:07,bridge=vmbr0".to_owned()),
        (
            "scsi0",
            "local:4321/vm-4321-disk-0.qcow2,size=10G".to_owned(),
        ),
        ("boot", "order=scsi0".to_owned()),
    ];
    let config = config.map(|(key, value)| (key.to_owned(), value)).to_vec();
    host.pve.put_guest("pve1", Kind::Qemu, 4321, config);
    let record = NodeRecord {
        name: "test-vm".to_owned(),
        host: "father".to_owned(),
        location: NodeLocation::Host("father".to_owned()),
        site: None,
        guest: GuestRef {
            uuid: uuid.clone(),
            kind: GuestKind::Vm,
            vmid: Some(4321.into()),
            host: "pve1".to_owned(),
        },
        status: NodeStatus::Ready,
        source: None,
        address: Some([192, 0, 2, 7].into()),
        user: None,
        configured: None,
        hosts_guests: None,
    };
    let plan = empty_plan(1, None);
    let at = Timestamp::UNIX_EPOCH;
    let entry = Entry {
        step: None,
        happened: StepEvent::Done { changed: true },
        at,
        record: Some(record),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let journal = homestak_store::Sqlite::open(&host.state()).unwrap();
        let run = journal.begin("apply", &plan, "", at).await.unwrap();
        journal.append(run, &entry).await.unwrap();
        journal.end(run, RunOutcome::Failed, at).await.unwrap();
    });
    uuid
}

#[test]
fn guests_of_older_releases_get_a_site_identity_and_keep_everything_else() {
    let host = TestPve::quick();
    host.single();
    old_guest(&host);
    let before = host.pve.guests().remove(0);
    let reidentify = [
        "manifest",
        "reidentify",
        "-M",
        "single-node",
        "-H",
        "father",
    ];
    let mut dry = reidentify.to_vec();
    dry.push("--dry-run");
    host.run(&dry).good();
    assert_eq!(host.pve.guests().remove(0), before);
    host.run(&reidentify).good();
    let after = host.pve.guests().remove(0);
    let id = id_of(&host).unwrap();
    assert!(
        after.config["tags"].contains(&format!("homestak-s-{id}")),
        "{after:?}"
    );
    assert!(
        after.config["tags"].contains("mine"),
        "other tags are kept: {after:?}"
    );
    assert!(
        after.config["description"].contains("Keep me."),
        "{after:?}"
    );
    assert!(!after.config["smbios1"].contains("11111111"), "{after:?}");
    assert_eq!((after.vmid, after.running), (before.vmid, before.running));
    for key in ["net0", "scsi0", "cores", "memory", "boot", "name"] {
        assert_eq!(after.config.get(key), before.config.get(key), "{key}");
    }
    let again = host.run(&reidentify);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    // Now it is identified without the journal.
    lose_state(&host);
    host.run(&DESTROY).good();
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn a_run_that_only_changes_guests_of_older_releases_is_recorded_under_the_site_id() {
    let host = TestPve::quick();
    host.manifest(
        "single-node",
        "",
        "  - {name: test-vm, cores: 4, memory: 2048, disk: 10, image: debian-12}\n",
    );
    without_id(&host);
    old_guest(&host);
    // Its disk does not exist, so it cannot start.
    assert_eq!(host.run(&APPLY).code, 1);
    let history = host.run(&["manifest", "history", "--json-output"]).json();
    assert_eq!(history["runs"].as_array().unwrap().len(), 2, "{history}");
    host.run(&[
        "manifest",
        "reidentify",
        "-M",
        "single-node",
        "-H",
        "father",
    ])
    .good();
    let id = id_of(&host).expect("the run is recorded under it");
    let guests = host.pve.guests();
    assert_eq!(guests.len(), 1);
    let tags = &guests[0].config["tags"];
    assert!(tags.contains(&format!("homestak-s-{id}")), "{tags}");
}

#[test]
fn a_guest_whose_identity_was_edited_is_not_reported_destroyed() {
    let host = TestPve::quick();
    host.single();
    host.run(&APPLY).good();
    let guest = host.pve.guests().remove(0);
    let mut config = guest.config.clone();
    let other = "uuid=11111111-0000-4000-8000-000000000000";
    config.insert("smbios1".to_owned(), other.to_owned());
    host.pve
        .put_guest("pve1", Kind::Qemu, guest.vmid, config.into_iter().collect());
    // Refused before anything is stopped, with the value to restore.
    let run = host.run(&DESTROY);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains("set its SMBIOS uuid to"), "{}", run.err);
    assert_eq!(host.pve.guests().len(), 1);
}

#[test]
fn a_guest_of_an_older_release_is_foreign_without_a_record_of_it() {
    let host = TestPve::quick();
    host.single();
    old_guest(&host);
    copy_site(&host, "theirs");
    let run = on_copy(&host, "theirs", &DESTROY);
    assert!(run.err.contains("Nothing to do."), "{}", run.err);
    assert_eq!(host.guests(), ["test-vm (off)"]);
    host.run(&DESTROY).good();
    assert_eq!(host.guests(), [""; 0]);
}

#[test]
fn a_run_of_an_older_release_is_neither_resumed_nor_rolled_back() {
    let host = TestPve::quick();
    host.single();
    old_guest(&host);
    let run = host.run(&["manifest", "resume", "-M", "single-node", "-H", "father"]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains("manifest reidentify"), "{}", run.err);
    let run = host.run(&[
        "manifest",
        "rollback",
        "-M",
        "single-node",
        "-H",
        "father",
        "-y",
    ]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert_eq!(host.guests(), ["test-vm (off)"]);
}

#[test]
fn the_built_in_site_has_its_id_in_the_state_directory() {
    let env = crate::support::TestEnv::without_site();
    let apply = [
        "manifest", "apply", "-M", "n1-push", "-H", "sim", "--mode", "push",
    ];
    let run = env.run(&apply);
    assert!(run.err.contains("from now on"), "{}", run.err);
    let file = env.home().join(".local/state/homestak/site-id");
    assert!(run.err.contains("/homestak/site-id\n"), "{}", run.err);
    assert!(run.err.contains("back that up"), "{}", run.err);
    assert!(!run.err.contains("with the site"), "{}", run.err);
    let id = fs::read_to_string(&file).unwrap();
    assert_eq!(crate::support::mode(&file), 0o600);
    let shown = env.run(&["site", "show", "--json-output"]).json();
    assert_eq!(shown["id"].as_str(), Some(id.trim()));
    env.run(&["manifest", "destroy", "-M", "n1-push", "-H", "sim", "--yes"])
        .good();
    env.run(&["sim", "stop"]).good();
    // An invalid id is not treated as a missing one.
    fs::write(&file, "what?\n").unwrap();
    set_mode(&file, 0o600);
    let run = env.run(&["manifest", "plan", "-M", "n1-push", "-H", "sim"]);
    assert_eq!(run.code, 1, "{}", run.err);
}
