//! Tests of the preflight checks: facts with one fault, and the expected finding.

use std::collections::{BTreeMap, BTreeSet};

use homestak_engine::ports::{Bytes, ErrorClass, ObservedHost, ObservedStorage};
use serde_json::json;

use super::*;
use crate::pve::facts::{StorageState, bridges as parse_bridges, cpu_flags, parse_privileges};
use crate::pve::role::Abilities;

fn wanted() -> Requirements {
    Requirements {
        hosts: vec!["pve1".to_owned()],
        abilities: Abilities {
            vms: true,
            storages: vec!["local".to_owned()],
            images: vec!["local".to_owned()],
            ..Abilities::default()
        },
        storages: vec![StorageRequirement {
            host: "pve1".to_owned(),
            storage: "local".to_owned(),
            content: vec!["images".to_owned(), "import".to_owned()],
            size: Bytes(10),
            largest: Bytes(10),
        }],
        memory: vec![("pve1".to_owned(), Bytes(4 << 30))],
        images: vec![FileRequirement {
            host: "pve1".to_owned(),
            storage: "local".to_owned(),
            content: "import".to_owned(),
            file: "debian-12.qcow2".to_owned(),
            source: None,
        }],
        nested: vec!["pve1".to_owned()],
        bridges: vec![("pve1".to_owned(), "vmbr0".to_owned())],
        ssh: vec!["192.0.2.1:22".parse().expect("an address")],
        site: Some(SiteRequirements {
            fixed_addresses: true,
            gateway: "192.0.2.1".parse().ok(),
            dns: vec!["192.0.2.1".parse().expect("an address")],
            domain: Some("home.arpa".to_owned()),
            ssh_keys: 1,
        }),
    }
}

fn state(available: Option<u64>) -> StorageState {
    StorageState {
        enabled: true,
        active: available.is_some(),
        available: available.map(Bytes),
    }
}

fn facts() -> Facts {
    let all = json!({"/": {
        "VM.Allocate": 1, "VM.Audit": 1, "VM.Config.CPU": 1, "VM.Config.Disk": 1, "VM.Config.Memory": 1,
        "VM.Config.Network": 1, "VM.Config.Options": 1, "VM.Config.CDROM": 1, "VM.Config.HWType": 1,
        "VM.PowerMgmt": 1, "VM.GuestAgent.Audit": 1, "Datastore.Allocate": 1,
        "Datastore.AllocateSpace": 1, "Datastore.AllocateTemplate": 1, "Datastore.Audit": 1, "SDN.Use": 1}});
    let files = BTreeSet::from(["debian-12.qcow2".to_owned()]);
    let key = ("pve1".to_owned(), "local".to_owned(), "import".to_owned());
    let flags = cpu_flags(&json!({"cpuinfo": {"flags": "fpu vmx sse"}}));
    let known = parse_bridges(
        &json!([{"type": "bridge", "iface": "vmbr0"}, {"type": "eth", "iface": "eno1"}]),
    );
    Facts {
        user: "homestak@pve!driver".to_owned(),
        version: Fetched::Known((9, 1)),
        privileges: Fetched::Known(parse_privileges(&all)),
        hosts: Fetched::Known(vec![ObservedHost {
            name: "pve1".to_owned(),
            online: true,
            cores: None,
            memory: None,
        }]),
        storages: Fetched::Known(vec![ObservedStorage {
            name: "local".to_owned(),
            host: "pve1".to_owned(),
            active: true,
            content: vec!["images".to_owned(), "import".to_owned()],
            available: None,
            shared: false,
        }]),
        storage_states: BTreeMap::from([(
            ("pve1".to_owned(), "local".to_owned()),
            Fetched::Known(state(Some(100))),
        )]),
        quorum: Fetched::Known(true),
        files: BTreeMap::from([(key, Fetched::Known(files))]),
        cpu_flags: BTreeMap::from([("pve1".to_owned(), Fetched::Known(flags))]),
        bridges: BTreeMap::from([("pve1".to_owned(), Fetched::Known(known))]),
        ssh: BTreeMap::from([("192.0.2.1:22".parse().expect("an address"), true)]),
    }
}

fn bad(facts: &Facts, wanted: &Requirements) -> Vec<Finding> {
    let mut findings = check(facts, wanted);
    findings.retain(|finding| finding.severity > FindingSeverity::Unknown);
    findings
}

#[test]
fn a_correct_host_passes_and_nested_stays_unknown() {
    let findings = check(&facts(), &wanted());
    assert_eq!(bad(&facts(), &wanted()), []);
    assert_eq!(worst(&findings), FindingSeverity::Unknown);
    let nested = findings
        .iter()
        .find(|finding| finding.check == "nested")
        .expect("a finding");
    assert!(nested.fix.contains("kvm_intel"), "{nested:?}");
}

#[test]
fn a_missing_privilege_comes_with_its_command() {
    let mut facts = facts();
    facts.privileges = Fetched::Known(parse_privileges(
        &json!({"/vms": {"VM.Audit": 1}, "/storage/local": {"Datastore.Audit": 1}}),
    ));
    let findings = bad(&facts, &wanted());
    assert_eq!(findings.len(), 4);
    assert!(findings[0].detail.contains("VM.Allocate"), "{findings:?}");
    assert!(!findings[0].detail.contains("VM.Audit"), "{findings:?}");
    assert!(
        findings[1].fix.ends_with(
            "pveum acl modify /storage/local --roles HomestakStorage --users homestak@pve --tokens 'homestak@pve!driver'"
        ),
        "{findings:?}"
    );
}

#[test]
fn a_grant_that_does_not_reach_below_does_not_count_below() {
    let held = parse_privileges(
        &json!({"/storage": {"Datastore.AllocateSpace": 0}, "/vms": {"VM.Audit": 1}}),
    );
    assert!(!holds(&held, "/storage/local", "Datastore.AllocateSpace"));
    assert!(holds(&held, "/storage", "Datastore.AllocateSpace"));
    assert!(holds(&held, "/vms/100", "VM.Audit"));
    assert!(!holds(&held, "/sdn/zones/localnetwork", "SDN.Use"));
}

#[test]
fn each_fault_of_a_host_is_one_failure() {
    let change = |edit: fn(&mut Facts, &mut Requirements)| {
        let (mut facts, mut wanted) = (facts(), wanted());
        edit(&mut facts, &mut wanted);
        let findings = bad(&facts, &wanted);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            !findings[0].fix.is_empty() || findings[0].severity == FindingSeverity::Warning,
            "{findings:?}"
        );
        findings[0].clone()
    };
    assert_eq!(
        change(|facts, _| facts.quorum = Fetched::Known(false)).check,
        "quorum"
    );
    assert_eq!(
        change(|_, wanted| wanted.hosts[0] = "pve9".to_owned()).check,
        "host"
    );
    assert!(
        change(|_, wanted| wanted.storages[0].content.push("iso".to_owned()))
            .fix
            .contains("--content images,import,iso")
    );
    assert_eq!(
        change(|_, wanted| wanted.storages[0].size = Bytes(1000)).severity,
        FindingSeverity::Warning
    );
    assert_eq!(
        change(|_, wanted| wanted.images[0].file = "x.qcow2".to_owned()).check,
        "image"
    );
    assert_eq!(
        change(|_, wanted| wanted.bridges[0].1 = "vmbr7".to_owned()).check,
        "bridge"
    );
    assert_eq!(
        change(|facts, _| {
            facts
                .cpu_flags
                .insert("pve1".to_owned(), Fetched::Known(BTreeSet::new()));
        })
        .check,
        "nested"
    );
    assert_eq!(
        change(|facts, _| facts.ssh.values_mut().for_each(|answers| *answers = false)).check,
        "ssh"
    );
    let site = |wanted: &mut Requirements| wanted.site.take().expect("guests are created");
    for remove in [
        |site: &mut SiteRequirements| site.gateway = None,
        |site: &mut SiteRequirements| site.ssh_keys = 0,
    ] {
        let mut wanted = wanted();
        let mut lacking = site(&mut wanted);
        remove(&mut lacking);
        wanted.site = Some(lacking);
        let findings = bad(&facts(), &wanted);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].check, "site");
    }
}

#[test]
fn a_guest_that_cannot_fit_is_refused_with_figures() {
    let mut facts = facts();
    let mut large = wanted();
    large.storages[0].size = Bytes(40 << 30);
    large.storages[0].largest = Bytes(20 << 30);
    facts.storage_states.values_mut().for_each(|free| {
        *free = Fetched::Known(state(Some(8 << 30)));
    });
    if let Fetched::Known(hosts) = &mut facts.hosts {
        hosts[0].memory = Some(Bytes(2 << 30));
    }
    let findings = bad(&facts, &large);
    let failed = |finding: &Finding| finding.severity == FindingSeverity::Failure;
    assert!(findings.iter().all(failed), "{findings:?}");
    let details: Vec<&str> = findings.iter().map(|one| &*one.detail).collect();
    assert_eq!(
        details,
        [
            "pve1 has 2.0 GiB of memory, but the guest needs 4.0 GiB",
            "local on pve1 has 8.0 GiB free, but the guest's disk needs 20.0 GiB",
        ]
    );
}

#[test]
fn the_site_is_not_checked_when_no_guest_is_created() {
    let mut wanted = wanted();
    wanted.site = None;
    let findings = check(&facts(), &wanted);
    assert!(
        findings.iter().all(|one| one.check != "site"),
        "{findings:?}"
    );
}

#[test]
fn a_hidden_or_inactive_storage_is_distinguished_from_a_missing_one() {
    let key = ("pve1".to_owned(), "local".to_owned());
    let storage_finding = |listed: bool, room: Fetched<StorageState>| {
        let mut facts = facts();
        if !listed {
            facts.storages = Fetched::Known(Vec::new());
        }
        facts.storage_states = BTreeMap::from([(key.clone(), room)]);
        let findings = check(&facts, &wanted());
        let found = findings.iter().find(|finding| finding.check == "storage");
        found.expect("a finding").clone()
    };
    let hidden = storage_finding(false, Fetched::Known(state(Some(100))));
    assert!(
        hidden.detail.contains("lacks Datastore.Audit"),
        "{hidden:?}"
    );
    let disabled = StorageState {
        enabled: false,
        ..state(None)
    };
    let off = storage_finding(false, Fetched::Known(disabled));
    assert!(off.fix.contains("--disable 0"), "{off:?}");
    let inactive = storage_finding(true, Fetched::Known(state(None)));
    assert!(inactive.detail.contains("not active"), "{inactive:?}");
    let missing = storage_finding(false, Fetched::NotAsked);
    assert!(missing.fix.contains("Datastore.Audit"), "{missing:?}");
    let unknown = storage_finding(true, Fetched::NotAsked);
    assert_eq!(unknown.severity, FindingSeverity::Unknown, "{unknown:?}");
}

#[test]
fn an_image_that_is_fetched_is_no_failure_and_needs_the_network_of_its_host() {
    let (mut facts, mut wanted) = (facts(), wanted());
    wanted.images[0].file = "new.qcow2".to_owned();
    wanted.images[0].source = Some("https://example.org/new.qcow2".to_owned());
    let findings = bad(&facts, &wanted);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(
        findings[0].detail.contains("Sys.AccessNetwork"),
        "{findings:?}"
    );
    facts.privileges = Fetched::Known(parse_privileges(&json!({"/": {}})));
    wanted.images[0].file = "debian-12.qcow2".to_owned();
    let findings = bad(&facts, &wanted);
    let network = |finding: &Finding| finding.detail.contains("Sys.AccessNetwork");
    assert!(!findings.iter().any(network), "it is there: {findings:?}");
}

#[test]
fn an_old_version_fails_and_asks_for_its_own_privileges() {
    let mut facts = facts();
    facts.version = Fetched::Known((7, 4));
    let findings = bad(&facts, &wanted());
    assert_eq!(findings[0].check, "version");
    assert!(findings[1].detail.ends_with("VM.Monitor"), "{findings:?}");
}

#[test]
fn without_the_api_only_that_is_said() {
    let mut facts = facts();
    let error = PveError::new(
        ErrorClass::Refused,
        Reason::Unauthenticated,
        "invalid token value!",
    );
    facts.version = Fetched::Failed(error);
    let findings = bad(&facts, &wanted());
    assert_eq!(findings.len(), 1);
    assert!(
        findings[0]
            .fix
            .contains("pveum user token add homestak@pve driver"),
        "{findings:?}"
    );
}
