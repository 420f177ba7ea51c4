//! Whose guests are touched: those of the site's id, whatever manifests are called and whatever the
//! driver has forgotten.

use std::fs;

use homestak_core::doc::scalar::SiteId;
use homestak_core::observed::{GuestKind, GuestRef, GuestUuid};
use homestak_core::plan::{NodeLocation, NodeRecord, NodeStatus, OnError, Plan, Verb};
use homestak_engine::journal::{Entry, Journal as _, RunOutcome, StepEvent};
use homestak_sim::Kind;
use jiff::Timestamp;

use crate::father::Father;
use crate::support::{Run, set_mode};

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

/// Takes the id out of the site, as sites were before they had one.
pub(crate) fn without_id(father: &Father) -> String {
    let file = father.site.site().join("site.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("id:"));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let text = text.replace("schema_version: 2", "schema_version: 1");
    fs::write(&file, &text).unwrap();
    text
}

pub(crate) fn id_of(father: &Father) -> Option<String> {
    let shown = father.run(&["site", "show", "--json-output"]).json();
    shown["id"].as_str().map(str::to_owned)
}

/// Runs the program on a copy of the site, with a state directory of its own.
fn on_copy(father: &Father, copy: &str, arguments: &[&str]) -> Run {
    let mut command = father.site.command(arguments);
    command.env("HOMESTAK_SITE_CONFIG", copy);
    command.env(
        "HOMESTAK_STATE",
        father.site.work().join(format!("{copy}-state")),
    );
    command.output().map(Run::from).unwrap()
}

fn copy_site(father: &Father, to: &str) {
    let (from, to) = (father.site.site(), father.site.work().join(to));
    let done = std::process::Command::new("cp")
        .args(["-a".as_ref(), from.as_os_str(), to.as_os_str()])
        .status();
    assert!(done.unwrap().success());
}

fn lose_state(father: &Father) {
    fs::remove_dir_all(father.state()).unwrap();
}

#[test]
fn a_new_site_has_an_id_and_keeps_it() {
    let father = Father::quick();
    father.single();
    let id = id_of(&father).expect("`site init` writes one");
    let run = father.run(&APPLY);
    assert!(!run.err.contains("from now on"), "{}", run.err);
    run.good();
    assert_eq!(id_of(&father), Some(id.clone()));
    let tags = father.pve.guests()[0].config["tags"].clone();
    assert!(tags.contains(&format!("homestak-s-{id}")), "{tags}");
}

#[test]
fn a_site_without_an_id_gets_one_with_its_first_guest_and_only_then() {
    let father = Father::quick();
    father.single();
    let text = without_id(&father);
    father
        .run(&["manifest", "plan", "-M", "single-node", "-H", "father"])
        .good();
    father.run(&DESTROY).good();
    let file = father.site.site().join("site.yaml");
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        text,
        "looking writes nothing"
    );
    let run = father.run(&APPLY);
    assert!(run.err.contains("from now on"), "{}", run.err);
    run.good();
    let id = id_of(&father).expect("an id");
    let now = fs::read_to_string(&file).unwrap();
    for line in text
        .lines()
        .filter(|line| !line.starts_with("schema_version"))
    {
        assert!(now.contains(line), "{line}\n{now}");
    }
    assert!(
        now.contains("schema_version: 2\n"),
        "older programs refuse: {now}"
    );
    let again = father.run(&APPLY);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    assert!(!again.err.contains("from now on"), "{}", again.err);
    assert_eq!(id_of(&father), Some(id));
}

#[test]
fn a_written_plan_of_a_site_without_an_id_still_fits_when_it_is_applied() {
    let father = Father::quick();
    father.single();
    without_id(&father);
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
    father.run(&plan).good();
    father.run(&["manifest", "apply", "plan.json"]).good();
    assert_eq!(father.guests(), ["test-vm"]);
}

#[test]
fn a_site_that_cannot_be_written_is_told_which_lines_to_add_and_nothing_is_created() {
    let father = Father::quick();
    father.single();
    father
        .site
        .write("site.yaml", "{defaults: {timezone: UTC}}\n");
    let run = father.run(&APPLY);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("schema_version: 2"), "{}", run.err);
    assert!(run.err.contains("id: "), "{}", run.err);
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn an_id_that_is_not_valid_is_a_fault_and_never_replaced() {
    let father = Father::quick();
    father.single();
    let text = "schema_version: 2\nid: 17\n";
    father.site.write("site.yaml", text);
    let run = father.run(&APPLY);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("site.yaml:2:5"), "{}", run.err);
    assert_eq!(father.guests(), [""; 0]);
    let file = father.site.site().join("site.yaml");
    assert_eq!(fs::read_to_string(file).unwrap(), text);
}

#[test]
fn another_site_with_the_same_manifest_neither_sees_nor_removes_our_guests_as_its_own() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    let ours = father.pve.guests();
    copy_site(&father, "theirs");
    on_copy(&father, "theirs", &["site", "new-id", "--yes"]).good();
    let run = on_copy(&father, "theirs", &DESTROY);
    assert!(run.err.contains("Nothing to do."), "{}", run.err);
    assert_eq!(father.pve.guests(), ours);
    let mut prune = APPLY.to_vec();
    prune.extend(["--prune", "--yes"]);
    on_copy(&father, "theirs", &prune).good();
    assert_eq!(father.guests(), ["test-vm", "test-vm"]);
    on_copy(&father, "theirs", &DESTROY).good();
    assert_eq!(father.pve.guests(), ours);
}

#[test]
fn a_copied_site_is_the_same_site_until_it_gets_another_id() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    copy_site(&father, "copy");
    let again = on_copy(&father, "copy", &APPLY);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    let asked = on_copy(&father, "copy", &["site", "new-id"]);
    assert_eq!(asked.code, 3, "nobody agreed: {}", asked.err);
    on_copy(&father, "copy", &["site", "new-id", "--yes"]).good();
    let plan = on_copy(
        &father,
        "copy",
        &["manifest", "plan", "-M", "single-node", "-H", "father"],
    );
    assert!(plan.good().contains("1 to create"));
    // The id that guests carry leads back to them.
    let id = id_of(&father).unwrap();
    on_copy(&father, "copy", &["site", "new-id", "--id", &id, "--yes"]).good();
    let again = on_copy(&father, "copy", &APPLY);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
}

#[test]
fn a_driver_that_lost_its_state_still_knows_its_guests_by_the_id_of_the_site() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    lose_state(&father);
    father.run(&DESTROY).good();
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn copies_and_restored_backups_are_reported_and_stay() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    let original = father.pve.guests().remove(0);
    let copy = original.vmid + 1;
    let config: Vec<(String, String)> = original.config.clone().into_iter().collect();
    father.pve.put_guest("pve1", Kind::Qemu, copy, config);
    let run = father.run(&DESTROY);
    let said = format!("guest {copy} (test-vm) on pve1 carries the identity of `test-vm`");
    assert!(run.err.contains(&said), "{}", run.err);
    run.good();
    let left: Vec<u32> = father.pve.guests().iter().map(|guest| guest.vmid).collect();
    assert_eq!(left, [copy]);
    // With nothing recorded, it is still nobody's to remove.
    lose_state(&father);
    father.run(&DESTROY).good();
    assert_eq!(father.pve.guests().len(), 1);
}

#[test]
fn without_the_journal_two_guests_of_one_identity_are_refused_by_name() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    let original = father.pve.guests().remove(0);
    let forged = original.vmid + 1;
    let mut config = original.config.clone();
    let tags = config["tags"].replace(&original.vmid.to_string(), &forged.to_string());
    config.insert("tags".to_owned(), tags);
    father
        .pve
        .put_guest("pve1", Kind::Qemu, forged, config.into_iter().collect());
    lose_state(&father);
    for command in [&DESTROY[..], &APPLY[..]] {
        let run = father.run(command);
        assert_eq!(run.code, 3, "{}", run.err);
        for vmid in [original.vmid, forged] {
            assert!(run.err.contains(&format!("{vmid} on pve1")), "{}", run.err);
        }
    }
    assert_eq!(father.pve.guests().len(), 2);
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

/// A guest and a journal as programs left them before sites had an id.
pub(crate) fn old_guest(father: &Father) -> GuestUuid {
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
    father.pve.put_guest("pve1", Kind::Qemu, 4321, config);
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
        let journal = homestak_store::Sqlite::open(&father.state()).unwrap();
        let run = journal.begin("apply", &plan, "", at).await.unwrap();
        journal.append(run, &entry).await.unwrap();
        journal.end(run, RunOutcome::Failed, at).await.unwrap();
    });
    uuid
}

#[test]
fn guests_of_older_programs_get_an_identity_of_the_site_and_keep_everything_else() {
    let father = Father::quick();
    father.single();
    old_guest(&father);
    let before = father.pve.guests().remove(0);
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
    father.run(&dry).good();
    assert_eq!(father.pve.guests().remove(0), before);
    father.run(&reidentify).good();
    let after = father.pve.guests().remove(0);
    let id = id_of(&father).unwrap();
    assert!(
        after.config["tags"].contains(&format!("homestak-s-{id}")),
        "{after:?}"
    );
    assert!(
        after.config["tags"].contains("mine"),
        "tags of people stay: {after:?}"
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
    let again = father.run(&reidentify);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    // Known without the journal now.
    lose_state(&father);
    father.run(&DESTROY).good();
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn a_run_that_only_changes_guests_of_older_programs_is_found_again() {
    let father = Father::quick();
    father.manifest(
        "single-node",
        "",
        "  - {name: test-vm, cores: 4, memory: 2048, disk: 10, image: debian-12}\n",
    );
    without_id(&father);
    old_guest(&father);
    // Its disk is made up, so that it cannot start.
    assert_eq!(father.run(&APPLY).code, 1);
    let history = father.run(&["manifest", "history", "--json-output"]).json();
    assert_eq!(history["runs"].as_array().unwrap().len(), 2, "{history}");
    father
        .run(&[
            "manifest",
            "reidentify",
            "-M",
            "single-node",
            "-H",
            "father",
        ])
        .good();
    let id = id_of(&father).expect("the run is written down under it");
    let guests = father.pve.guests();
    assert_eq!(guests.len(), 1);
    let tags = &guests[0].config["tags"];
    assert!(tags.contains(&format!("homestak-s-{id}")), "{tags}");
}

#[test]
fn a_guest_whose_identity_was_edited_is_never_called_destroyed() {
    let father = Father::quick();
    father.single();
    father.run(&APPLY).good();
    let guest = father.pve.guests().remove(0);
    let mut config = guest.config.clone();
    let other = "uuid=11111111-0000-4000-8000-000000000000";
    config.insert("smbios1".to_owned(), other.to_owned());
    father
        .pve
        .put_guest("pve1", Kind::Qemu, guest.vmid, config.into_iter().collect());
    // Refused before anything is stopped, with what to restore.
    let run = father.run(&DESTROY);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains("set its SMBIOS uuid to"), "{}", run.err);
    assert_eq!(father.pve.guests().len(), 1);
}

#[test]
fn a_guest_of_older_programs_is_foreign_to_whoever_has_no_record_of_it() {
    let father = Father::quick();
    father.single();
    old_guest(&father);
    copy_site(&father, "theirs");
    let run = on_copy(&father, "theirs", &DESTROY);
    assert!(run.err.contains("Nothing to do."), "{}", run.err);
    assert_eq!(father.guests(), ["test-vm (off)"]);
    father.run(&DESTROY).good();
    assert_eq!(father.guests(), [""; 0]);
}

#[test]
fn a_run_of_an_older_program_is_neither_resumed_nor_undone() {
    let father = Father::quick();
    father.single();
    old_guest(&father);
    let run = father.run(&["manifest", "resume", "-M", "single-node", "-H", "father"]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains("manifest reidentify"), "{}", run.err);
    let run = father.run(&[
        "manifest",
        "rollback",
        "-M",
        "single-node",
        "-H",
        "father",
        "-y",
    ]);
    assert_eq!(run.code, 3, "{}", run.err);
    assert_eq!(father.guests(), ["test-vm (off)"]);
}

#[test]
fn the_built_in_site_has_its_id_in_the_state_directory() {
    let world = crate::support::World::bare();
    let apply = [
        "manifest", "apply", "-M", "n1-push", "-H", "sim", "--mode", "push",
    ];
    let run = world.run(&apply);
    assert!(run.err.contains("from now on"), "{}", run.err);
    let file = world.home().join(".local/state/homestak/site-id");
    assert!(run.err.contains("/homestak/site-id\n"), "{}", run.err);
    let id = fs::read_to_string(&file).unwrap();
    assert_eq!(crate::support::mode(&file), 0o600);
    let shown = world.run(&["site", "show", "--json-output"]).json();
    assert_eq!(shown["id"].as_str(), Some(id.trim()));
    world
        .run(&["manifest", "destroy", "-M", "n1-push", "-H", "sim", "--yes"])
        .good();
    world.run(&["sim", "stop"]).good();
    // An id that cannot be read is not a missing one.
    fs::write(&file, "what?\n").unwrap();
    set_mode(&file, 0o600);
    let run = world.run(&["manifest", "plan", "-M", "n1-push", "-H", "sim"]);
    assert_eq!(run.code, 1, "{}", run.err);
}
