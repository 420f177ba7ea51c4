//! SSH keys are created once, also by concurrent drivers, and again after they were deleted.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use homestak_engine::ports::GuestUuid;
use homestak_providers::ssh::Keyring;

fn guest(nth: u32) -> GuestUuid {
    GuestUuid::new(&format!("5d1f2a3b-0000-4000-8000-{nth:012x}")).expect("a UUID")
}

fn keyring(directory: &Path) -> Keyring {
    Keyring::new(directory.join("state/ssh"))
}

fn files(directory: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(directory).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn known(keyring: &Keyring) -> String {
    fs_err::read_to_string(keyring.known_hosts()).expect("known_hosts")
}

/// Runs `ssh-keygen` of OpenSSH.
#[expect(clippy::disallowed_methods, reason = "the real program is asked")]
fn ssh_keygen(arguments: &[&str]) -> String {
    let output = Command::new("ssh-keygen").args(arguments).output();
    let output = output.expect("ssh-keygen; tests/prepare installs it");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_key_is_created_once_and_private() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    let own = keyring.driver_key().expect("created");
    assert!(own.starts_with("ssh-ed25519 "), "{own}");
    assert_eq!(keyring.driver_key().expect("again"), own);
    let one = keyring.host_key(&guest(1)).expect("created");
    let again = keyring.host_key(&guest(1)).expect("again");
    let other = keyring.host_key(&guest(2)).expect("created");
    assert!(one == again && one != other);
    let ring = directory.path().join("state/ssh");
    let private = ring.join("host-keys").join(guest(1).as_str());
    for file in [keyring.driver_key_file(), private.clone()] {
        let mode = fs_err::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    let mode = fs_err::metadata(&ring).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let public = ssh_keygen(&["-y", "-f", private.to_str().expect("text")]);
    assert_eq!(public.trim(), one.public, "both parts are of one pair");
}

#[test]
fn host_keys_are_pinned_by_uuid_until_deleted() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    keyring.forget(&guest(1)).expect("nothing is known of it");
    let one = keyring.host_key(&guest(1)).expect("created");
    keyring.host_key(&guest(2)).expect("created");
    keyring.host_key(&guest(1)).expect("again");
    assert_eq!(known(&keyring).lines().count(), 2);
    let file = keyring.known_hosts();
    let find = |nth| {
        ssh_keygen(&[
            "-F",
            guest(nth).as_str(),
            "-f",
            file.to_str().expect("text"),
        ])
    };
    let key = one.public.split(' ').nth(1).expect("a key");
    assert!(find(1).contains(key), "OpenSSH finds it");
    assert!(keyring.is_pinned(&guest(1)).expect("read"));
    keyring.forget(&guest(1)).expect("forgotten");
    keyring.forget(&guest(1)).expect("again");
    assert!(!keyring.is_pinned(&guest(1)).expect("read"));
    assert_eq!((find(1).as_str(), known(&keyring).lines().count()), ("", 1));
    let other = guest(2);
    let left = [other.to_string(), format!("{other}.pub")];
    assert_eq!(files(&directory.path().join("state/ssh/host-keys")), left);
    let new = keyring.host_key(&guest(1)).expect("recreated");
    assert!(new.private != one.private, "a new guest has a new key");
}

#[test]
fn concurrent_drivers_get_the_same_keys() {
    let directory = tempfile::tempdir().expect("a directory");
    let keys: Vec<(String, String)> = std::thread::scope(|scope| {
        let drivers: Vec<_> = (0..12)
            .map(|nth| {
                // Each has its own keyring, like a separate process.
                let keyring = keyring(directory.path());
                scope.spawn(move || {
                    let own = keyring.driver_key().expect("created");
                    let shared = keyring.host_key(&guest(0)).expect("created");
                    keyring.host_key(&guest(1 + nth)).expect("created");
                    (own, shared.public.clone())
                })
            })
            .collect();
        drivers
            .into_iter()
            .map(|driver| driver.join().expect("it ends"))
            .collect()
    });
    assert!(keys.iter().all(|one| *one == keys[0]), "{keys:?}");
    assert_eq!(known(&keyring(directory.path())).lines().count(), 13);
    let ring = directory.path().join("state/ssh");
    let names = [
        "host-keys",
        "id_ed25519",
        "id_ed25519.pub",
        "known_hosts",
        "lock",
    ];
    assert_eq!(files(&ring), names);
    assert_eq!(files(&ring.join("host-keys")).len(), 26, "no rest of a try");
}

#[test]
fn a_truncated_key_is_recreated() {
    let directory = tempfile::tempdir().expect("a directory");
    let keyring = keyring(directory.path());
    keyring.driver_key().expect("created");
    let whole = fs_err::read_to_string(keyring.driver_key_file()).expect("text");
    fs_err::write(keyring.driver_key_file(), &whole[..80]).expect("cut");
    let own = keyring.driver_key().expect("recreated");
    let file = keyring.driver_key_file();
    let public = ssh_keygen(&["-y", "-f", file.to_str().expect("text")]);
    assert_eq!(public.trim(), own);
}

#[test]
fn a_guest_with_a_new_identity_keeps_its_host_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let keys = keyring(directory.path());
    let before = keys.host_key(&guest(1)).expect("a key");
    keys.rename(&guest(1), &guest(2)).expect("renamed");
    keys.rename(&guest(1), &guest(2)).expect("renamed twice");
    let after = keys.host_key(&guest(2)).expect("a key");
    assert_eq!(before.public, after.public);
    assert_eq!(before.private, after.private);
    assert!(keys.is_pinned(&guest(2)).expect("known hosts"));
    // A guest without a key has nothing to keep.
    keys.rename(&guest(3), &guest(4)).expect("nothing to do");
    assert!(!keys.is_pinned(&guest(4)).expect("known hosts"));
}
