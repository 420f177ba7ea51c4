//! Fuzz targets for responses of Proxmox VE. A panic is a bug.
//!
//! `crates/providers/tests/corpus.rs` includes this file and replays every stored input on the
//! stable toolchain, so it does not depend on the fuzzer.

use std::collections::BTreeSet;
use std::net::IpAddr;

use homestak_api::trust::{Fingerprint, Trust};
use homestak_engine::ports::{ErrorClass, GuestKind, GuestUuid, Sent};
use homestak_providers::pve::error::{classify, classify_text, parse_forbidden};
use homestak_providers::pve::identity::{self, Ownership};
use homestak_providers::pve::property::Property;
use homestak_providers::pve::upid::Upid;
use homestak_providers::pve::{
    Endpoint, GuestConfig, TaskState, address_of, discover, facts, log_lines, observed,
    parse_response, quirks, running, task_state, vmid,
};
use serde_json::{Value, json};

/// All targets.
pub const TARGETS: &[&str] = &[
    "upid",
    "property",
    "config",
    "quirks",
    "resources",
    "task",
    "fault",
    "interfaces",
    "privileges",
    "endpoints",
    "vmids",
    "answer",
];

/// Runs a target on one input. Panics if a check fails.
pub fn run(target: &str, bytes: &[u8]) {
    match target {
        "upid" => with_text(bytes, upid),
        "property" => with_text(bytes, property),
        "fault" => fault(bytes),
        "answer" => answer(bytes),
        "quirks" => {
            with_text(bytes, texts);
            with_json(bytes, values);
        }
        "config" => with_json(bytes, config),
        "resources" => with_json(bytes, resources),
        "task" => with_json(bytes, task),
        "interfaces" => with_json(bytes, interfaces),
        "privileges" => with_json(bytes, privileges),
        "endpoints" => with_json(bytes, endpoints),
        "vmids" => with_json(bytes, vmids),
        other => panic!("there is no target `{other}`"),
    }
}

fn with_text(bytes: &[u8], body: fn(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        body(text);
    }
}

fn with_json(bytes: &[u8], body: fn(&Value)) {
    if let Ok(value) = serde_json::from_slice(bytes) {
        body(&value);
    }
}

/// A parsed task id is written so that it can be parsed again.
fn upid(text: &str) {
    let Some(upid) = Upid::parse(text) else {
        return;
    };
    let written = upid.to_string();
    assert_eq!(Upid::parse(&written).as_ref(), Some(&upid), "{written}");
    assert!(!upid.node.is_empty() && !upid.node.contains(['/', ':']));
    let _ = upid.vmid();
}

/// A property string is written so that it can be parsed again.
fn property(text: &str) {
    let property = Property::parse(text);
    let written = property.render();
    let again = Property::parse(&written);
    assert_eq!(again, property, "{written}");
    if let Some(mac) = property.mac() {
        assert_eq!(mac.len(), 17);
        assert_eq!(mac, mac.to_ascii_lowercase());
    }
    // A replaced value stays replaced.
    let changed = property.with("size", "7G");
    assert_eq!(changed.field("size"), Some("7G"));
    assert_eq!(Property::parse(&changed.render()).field("size"), Some("7G"));
}

/// A configuration identifies at most one guest.
fn config(value: &Value) {
    let config = GuestConfig::new(value.clone());
    let drives = config.cd_drives();
    assert!(drives.is_sorted());
    for kind in [GuestKind::Vm, GuestKind::Ct] {
        if let Some(disk) = config.first_disk(kind) {
            assert!(disk.volume.contains(':'));
            assert!(!drives.iter().any(|(slot, _)| *slot == disk.slot));
        }
        let _ = config.name(kind);
        let ours: Vec<GuestUuid> = candidates(&config)
            .into_iter()
            .filter(|uuid| identity::ownership(kind, 101, &config, uuid) == Ownership::Ours)
            .collect();
        assert!(ours.len() <= 1, "{ours:?}");
        if let Some(uuid) = ours.first() {
            assert!(config.tags().contains(&identity::id_tag(uuid)));
            let proof = match kind {
                GuestKind::Vm => config.smbios_uuid(),
                GuestKind::Ct => config.notes().and_then(identity::uuid_in_notes),
            };
            assert_eq!(proof.as_ref(), Some(uuid));
        }
    }
    let _ = (config.lock(), config.digest(), config.flag("protection"));
    let _ = (config.number("memory"), config.boot_order());
}

/// All identities that a configuration may have.
fn candidates(config: &GuestConfig) -> BTreeSet<GuestUuid> {
    let tags = config.tags();
    let tagged = tags
        .iter()
        .filter_map(|tag| GuestUuid::new(tag.strip_prefix("homestak-id-")?));
    let notes = config.notes().unwrap_or_default();
    tagged
        .chain(config.smbios_uuid())
        .chain(identity::uuid_in_notes(notes))
        .collect()
}

/// Texts for sizes, booleans and tags.
fn texts(text: &str) {
    if let Some(bytes) = quirks::parse_size(text) {
        assert_eq!(quirks::parse_size(&bytes.to_string()), Some(bytes));
    }
    let tags = quirks::parse_tags(text);
    assert_eq!(quirks::parse_tags(&quirks::render_tags(&tags)), tags);
    if quirks::is_tag(text) {
        assert_eq!(quirks::parse_tags(text), [text.to_ascii_lowercase()].into());
    }
    let truth = quirks::parse_bool_text(text);
    assert_eq!(quirks::parse_bool(&json!(text)), truth);
    let tag = identity::manifest_tag(text);
    assert!(quirks::is_tag(&tag), "{tag}");
    let read = identity::manifest_in_tags(&quirks::parse_tags(&tag));
    assert_eq!(read.as_deref(), Some(text));
    let _ = identity::manifest_in_tags(&tags);
    if let Some(uuid) = identity::uuid_in_tags(&tags) {
        assert!(tags.contains(&identity::id_tag(&uuid)));
    }
}

/// Values for numbers, texts and booleans.
fn values(value: &Value) {
    if let Some(number) = quirks::parse_u64(value) {
        assert_eq!(quirks::parse_u64(&json!(number)), Some(number));
        assert_eq!(quirks::parse_u64(&json!(number.to_string())), Some(number));
        let small = quirks::parse_u32(value).map(u64::from);
        assert_eq!(small, Some(number).filter(|n| *n <= u64::from(u32::MAX)));
        if value.is_number() {
            assert_eq!(quirks::parse_bool(value), Some(number != 0));
        }
    }
    if let Some(truth) = quirks::parse_bool(value) {
        assert_eq!(quirks::parse_bool(&json!(truth)), Some(truth));
    }
    if let Some(text) = quirks::parse_text(value) {
        assert_eq!(quirks::parse_text(&json!(text)), Some(text));
    }
}

/// Observations are sorted, have no duplicates, and do not depend on the order of the list.
fn resources(value: &Value) {
    let Ok(seen) = observed(value) else {
        assert!(!value.is_array(), "a list was refused");
        return;
    };
    let ids: Vec<_> = seen.guests.iter().map(|guest| guest.vmid).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
    let hosts: Vec<&str> = seen.hosts.iter().map(|host| host.name.as_str()).collect();
    assert!(hosts.windows(2).all(|pair| pair[0] < pair[1]), "{hosts:?}");
    let storages: Vec<_> = seen
        .storages
        .iter()
        .map(|storage| (&storage.host, &storage.name))
        .collect();
    assert!(storages.windows(2).all(|pair| pair[0] < pair[1]));
    for guest in &seen.guests {
        assert!(guest.tags.is_sorted());
        if let Some(uuid) = &guest.uuid {
            assert!(guest.tags.contains(&identity::id_tag(uuid)));
        }
    }
    let mut rows = value.as_array().cloned().unwrap_or_default();
    rows.reverse();
    let again = observed(&Value::Array(rows)).expect("the same list");
    assert_eq!(again, seen, "the result depends on the order of the list");
}

/// Parses the status and the log of a task.
fn task(value: &Value) {
    if let Some(TaskState::Failed(words)) = task_state(value) {
        assert!(!words.is_empty());
        check_class(&classify_text(&words).class);
    }
    for task in running(value) {
        assert!(!task.upid.node.is_empty());
    }
    let rows = value.as_array().map_or(0, Vec::len);
    assert!(log_lines(value).len() <= rows);
}

/// Checks the class of an error for which a response was received.
fn check_class(class: &ErrorClass) {
    assert_ne!(*class, ErrorClass::Unreachable { sent: Sent::No });
    assert_ne!(*class, ErrorClass::Bug);
}

/// Input: two bytes of status, a line of reason, and a body. A response was received, so the error
/// must not claim that the request was not sent.
fn fault(bytes: &[u8]) {
    let Some((status, rest)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let status = 300 + u16::from_be_bytes(*status) % 300;
    let mut parts = rest.splitn(2, |byte| *byte == b'\n');
    let phrase = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let body = parts.next().unwrap_or_default();
    let error = classify(status, &phrase, body);
    check_class(&error.class);
    assert!(!error.detail.is_empty(), "{status}: no detail");
    match status {
        595..=599 | 502 | 504 | 408 => {
            assert_eq!(error.class, ErrorClass::Unreachable { sent: Sent::Maybe });
        }
        401 | 403 | 501 => assert_eq!(error.class, ErrorClass::Refused),
        404 => assert_eq!(error.class, ErrorClass::Missing),
        _ => {}
    }
    if error.may_have_acted() {
        assert_ne!(error.class, ErrorClass::Refused);
    }
    if let Some(missing) = parse_forbidden(&phrase) {
        assert!(missing.path.starts_with('/') && !missing.any_of.is_empty());
    }
}

/// An address belongs to the requested card and is reachable.
fn interfaces(value: &Value) {
    let card = "bc:24:11:00:00:01";
    let text = value.to_string().to_ascii_lowercase();
    for kind in [GuestKind::Vm, GuestKind::Ct] {
        let found = address_of(kind, value, card);
        assert_eq!(found, address_of(kind, value, &card.to_ascii_uppercase()));
        assert_eq!(address_of(kind, value, ""), None, "no card has no address");
        let Some(address) = found else { continue };
        assert!(text.contains(card));
        assert!(!address.is_loopback() && !address.is_unspecified());
        match address {
            IpAddr::V4(address) => assert!(!address.is_link_local()),
            IpAddr::V6(address) => assert!(!address.is_unicast_link_local()),
        }
    }
}

/// Privileges and facts of a host.
fn privileges(value: &Value) {
    let held = facts::parse_privileges(value);
    let paths = value.as_object().map_or(0, serde_json::Map::len);
    assert_eq!(held.len(), paths);
    let flags = facts::cpu_flags(value);
    assert!(flags.iter().all(|flag| !flag.contains(char::is_whitespace)));
    let rows = value.as_array().map_or(0, Vec::len);
    assert!(facts::bridges(value).len() <= rows);
}

/// A host is trusted only if the entry host lists it. Input: `[status, nodes]`.
fn endpoints(value: &Value) {
    let (status, nodes) = (&value[0], &value[1]);
    let entry = |trust| Endpoint {
        url: "https://pve1:8006".to_owned(),
        trust,
    };
    let pinned = entry(Trust::Pinned(Fingerprint([1; 32])));
    for (name, endpoint) in discover::endpoints(&pinned, status, nodes) {
        let rows = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
        let Trust::Pinned(fingerprint) = endpoint.trust else {
            panic!("{name} is trusted otherwise");
        };
        let vouched = rows.iter().any(|row| {
            let text = quirks::text_of(row, "ssl_fingerprint");
            quirks::text_of(row, "node") == name && Fingerprint::parse(&text) == Some(fingerprint)
        });
        assert!(vouched, "nobody vouches for {name}");
    }
    let authority = entry(Trust::Authority("pem".to_owned()));
    for (name, endpoint) in discover::endpoints(&authority, status, nodes) {
        assert!(!name.is_empty(), "a host without a name");
        assert!(endpoint.url.starts_with("https://") && endpoint.url.ends_with(":8006"));
        assert_eq!(endpoint.trust, authority.trust);
    }
    assert!(discover::endpoints(&entry(Trust::WebPki), status, nodes).is_empty());
}

/// There are always ids to choose from, and only ones the API accepts.
fn vmids(value: &Value) {
    let cluster = vmid::cluster_range(value);
    let ours = 10_000..=89_999;
    let range = vmid::usable(&ours, cluster);
    assert!(!range.is_empty(), "{range:?}");
    assert!(*range.start() >= 100 && *range.end() <= 999_999_999);
    let uuid = GuestUuid::new("5d1f2a3b-0000-4000-8000-00000000000a").expect("a UUID");
    let first = vmid::choose(&uuid, &range, &BTreeSet::new());
    assert!(first.is_some_and(|vmid| range.contains(&vmid)));
}

/// Any body is a response or an error; none claims that the request was not sent.
fn answer(bytes: &[u8]) {
    match parse_response(bytes) {
        Ok(answer) => {
            let body: Value = serde_json::from_slice(bytes).expect("it was read");
            assert_eq!(body.get("data"), Some(&answer.data));
        }
        Err(error) => {
            check_class(&error.class);
            assert!(error.may_have_acted());
            assert!(error.detail.len() < 200, "a whole body was repeated");
        }
    }
}
