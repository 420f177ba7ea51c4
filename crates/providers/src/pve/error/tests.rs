//! Tests of the error classification with recorded responses.

use proptest::prelude::*;

use super::*;

#[rustfmt::skip]
const SEEN: &[(&str, Reason, ErrorClass)] = &[
    ("can't lock file '/var/lock/qemu-server/lock-551.conf' - got timeout", Reason::Locked, ErrorClass::Busy),
    ("clone failed: can't lock file '/var/lock/qemu-server/lock-5.conf' - got timeout", Reason::Locked, ErrorClass::Busy),
    ("unable to create VM 571 - can't lock file '/var/lock/x' - got timeout", Reason::Locked, ErrorClass::Busy),
    ("cfs-lock 'storage-nfs' error: got lock request timeout", Reason::Locked, ErrorClass::Busy),
    ("'storage-nfs'-locked command timed out - aborting", Reason::Locked, ErrorClass::Busy),
    ("VM is locked (backup)", Reason::Locked, ErrorClass::Busy),
    ("CT is locked (snapshot)", Reason::Locked, ErrorClass::Busy),
    ("cfs-lock 'file-user_cfg' error: no quorum!", Reason::NoQuorum, ErrorClass::Busy),
    ("checksum mismatch (file change by other user?)", Reason::DigestMismatch, ErrorClass::Busy),
    ("checksum mismatch: got 'a' != expect 'b'", Reason::ChecksumMismatch, ErrorClass::Refused),
    ("unable to create VM 500 - VM 500 already exists on node 'pve1'", Reason::AlreadyExists, ErrorClass::Refused),
    ("CT 465 already exists on node 'pve1'", Reason::AlreadyExists, ErrorClass::Refused),
    ("unable to create VM 540: config file already exists", Reason::AlreadyExists, ErrorClass::Refused),
    ("refusing to override existing file '/var/lib/vz/import/x.qcow2'", Reason::FileExists, ErrorClass::Refused),
    ("VM 550 already running", Reason::AlreadyRunning, ErrorClass::Refused),
    ("CT 460 already running", Reason::AlreadyRunning, ErrorClass::Refused),
    ("CT 460 not running", Reason::NotRunning, ErrorClass::Refused),
    ("VM 360 is not running", Reason::NotRunning, ErrorClass::Refused),
    ("QEMU guest agent is not running", Reason::NoAgent, ErrorClass::Busy),
    ("VM 550 is running - destroy failed", Reason::StillRunning, ErrorClass::Busy),
    ("unable to destroy CT 460 - container is running", Reason::StillRunning, ErrorClass::Busy),
    ("can't remove VM 301 - protection mode enabled", Reason::Protected, ErrorClass::Refused),
    ("Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist", Reason::NoConfig, ErrorClass::Missing),
    ("unable to find configuration file for VM 360 on node 'pve1'", Reason::NoConfig, ErrorClass::Missing),
    ("unable to create VM 301 - volume 'local:iso/nosuch.iso' does not exist", Reason::NoVolume, ErrorClass::Missing),
    ("unable to create VM 301 - failed to stat '/var/lib/vz/import/x.raw'", Reason::NoVolume, ErrorClass::Missing),
    ("storage 'nosuch' does not exist", Reason::NoStorage, ErrorClass::Missing),
    ("hostname lookup 'nosuch' failed - failed to get address info", Reason::NoHost, ErrorClass::Missing),
    ("VM quit/powerdown failed - got timeout", Reason::ShutdownTimeout, ErrorClass::Busy),
    ("clone failed: copy failed: interrupted by signal", Reason::Interrupted, ErrorClass::Busy),
    ("only root can set 'args' config", Reason::OnlyRoot, ErrorClass::Refused),
    ("Only root can pass arbitrary filesystem paths.", Reason::OnlyRoot, ErrorClass::Refused),
    ("shrinking disks is not supported", Reason::Other, ErrorClass::Refused),
    ("bridge 'vmbr77' does not exist", Reason::Other, ErrorClass::Refused),
    ("something nobody has seen", Reason::Other, ErrorClass::Refused),
];

#[test]
fn every_text_has_its_class() {
    for (text, reason, class) in SEEN {
        let error = classify_text(text);
        assert_eq!((error.reason, error.class), (*reason, *class), "{text}");
        let body = serde_json::json!({"message": format!("{text}\n"), "data": null}).to_string();
        let error = classify(500, "Internal Server Error", body.as_bytes());
        assert_eq!((error.reason, error.detail.as_str()), (*reason, *text));
        // Older servers have the message in the reason phrase only.
        assert_eq!(classify(500, text, b"").reason, *reason);
    }
}

#[test]
fn a_refusal_names_every_parameter() {
    let body = br#"{"data":null,"message":"Parameter verification failed.\n","errors":
        {"vmid":"invalid format - value\n","net0":"invalid format - format error\nnet0.ip: bad\n\n"}}"#;
    let error = classify(400, "Parameter verification failed.", body);
    assert_eq!(error.class, ErrorClass::Refused);
    assert_eq!(
        error.detail,
        "net0: invalid format - format error net0.ip: bad; vmid: invalid format - value"
    );
    assert_eq!(
        classify(400, "Bad Request", b"").reason,
        Reason::BadParameter
    );
}

#[test]
fn a_missing_privilege_is_named_with_the_command() {
    let error = classify(
        403,
        "Permission check failed (/vms/350, VM.Config.Options)",
        b"",
    );
    assert_eq!(
        (error.class, error.reason),
        (ErrorClass::Refused, Reason::Permission)
    );
    assert!(
        error.hint.contains("VM.Config.Options on /vms/350"),
        "{}",
        error.hint
    );
    assert_eq!(
        parse_forbidden("Permission check failed (/storage/x, Datastore.Audit|Datastore.Allocate)"),
        Some(MissingPrivilege {
            path: "/storage/x".to_owned(),
            any_of: vec![
                "Datastore.Audit".to_owned(),
                "Datastore.Allocate".to_owned()
            ],
        })
    );
    let root = "Permission check failed (changing feature flags (except nesting) is only allowed for root@pam)";
    assert_eq!(classify(403, root, b"").reason, Reason::OnlyRoot);
    assert!(
        !classify(403, "Permission check failed", b"")
            .hint
            .is_empty()
    );
}

#[test]
fn the_proxy_between_hosts_leaves_it_open() {
    for status in [595, 596, 599, 502, 504] {
        let error = classify(status, "Broken pipe", b"");
        assert!(error.may_have_acted() && error.is_transient(), "{status}");
    }
    assert_eq!(classify(503, "", b"").class, ErrorClass::Busy);
}

#[test]
fn a_message_that_a_terminal_would_obey_is_escaped_and_a_long_one_is_cut() {
    let message = "no such\n storage \u{1b}]52;c;eA==\u{7}";
    let log = vec![message.to_owned()];
    let error = classify(500, message, b"")
        .with_log(log)
        .into_port_error("create");
    let escaped = r"no such\n storage \x1b]52;c;eA==\x07";
    assert_eq!(error.detail, escaped);
    assert_eq!(error.log[0], escaped);
    let body = serde_json::json!({ "message": "x".repeat(1 << 20) });
    let error = classify(500, "", body.to_string().as_bytes()).into_port_error("create");
    assert!(
        error.detail.len() < 20_000 && error.detail.contains("(cut, "),
        "{}",
        error.detail.len()
    );
}

#[test]
fn what_is_not_proxmox_is_broken() {
    assert_eq!(classify(302, "Found", b"<html>").class, ErrorClass::Broken);
    assert_eq!(classify(500, "", b"<html>").class, ErrorClass::Broken);
    assert_eq!(classify(401, "No ticket", b"").class, ErrorClass::Refused);
    assert_eq!(
        classify(501, "Method 'GET /nope' not implemented", b"").class,
        ErrorClass::Refused
    );
}

proptest! {
    #[test]
    fn anything_can_be_judged(status in 100_u16..1000, phrase in ".{0,60}", body in proptest::collection::vec(any::<u8>(), 0..80)) {
        let error = classify(status, &phrase, &body);
        prop_assert!(error.class != ErrorClass::Bug);
        let _ = parse_forbidden(&phrase);
    }
}
