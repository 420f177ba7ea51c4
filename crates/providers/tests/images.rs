//! Real Debian trees, built with mmdebstrap from the archive.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests start programs and read the environment"
)]

use std::path::Path;
use std::process::{Command, Output};

use homestak_providers::image::{ImageError, Images};
use homestak_test_support::images;

/// Runs a shell script in its own namespaces, with mounts that disappear with it.
fn run_isolated(script: &str, arguments: &[&Path]) -> Output {
    Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-euc", script, "sh"])
        .args(arguments)
        .output()
        .unwrap()
}

fn text(root: &Path, path: &str) -> String {
    fs_err::read_to_string(root.join(path)).unwrap()
}

#[test]
fn a_tree_is_a_complete_debian_that_has_never_booted() {
    if !images::possible() {
        return;
    }
    let tree = images::tree("debian-12");
    let root = &tree.path;
    assert!(text(root, "etc/os-release").contains("VERSION_CODENAME=bookworm"));
    assert_eq!(text(root, "etc/machine-id"), "");
    assert_eq!(text(root, "etc/resolv.conf"), "");
    for program in [
        "usr/bin/systemd-nspawn",
        "usr/bin/cloud-init",
        "usr/sbin/sshd",
        "usr/sbin/nft",
        "usr/bin/curl",
    ] {
        assert!(root.join(program).exists(), "{program}");
    }
    let keys = fs_err::read_dir(root.join("etc/ssh")).unwrap();
    let keys = keys.filter(|key| {
        let name = key.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with("ssh_host_")
    });
    assert_eq!(keys.count(), 0);
    let units = root.join("etc/systemd/system");
    for unit in [
        "systemd-networkd-wait-online.service",
        "console-getty.service",
        "apt-daily.timer",
    ] {
        let to = fs_err::read_link(units.join(unit)).unwrap();
        assert_eq!(to, Path::new("/dev/null"), "{unit}");
    }
    for unit in ["systemd-networkd.service", "ssh.service"] {
        let wanted = units.join("multi-user.target.wants").join(unit);
        assert!(fs_err::symlink_metadata(wanted).is_ok(), "{unit}");
    }
    assert!(!root.join("usr/share/man/man1").exists());
    let configuration = text(root, "etc/cloud/cloud.cfg.d/90-homestak.cfg");
    assert!(configuration.contains("datasource_list: [ NoCloud, None ]"));
    let images = Images::new(images::directory());
    assert_eq!(images.current_tree("pve-8").unwrap(), tree);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let id = format!("debian-12-{}", tree.key);
    let verifications = runtime.block_on(images.verify(&id)).unwrap();
    assert!(verifications[0].is_intact());
}

#[test]
fn packages_can_be_installed_in_a_tree() {
    if !images::possible() {
        return;
    }
    let tree = images::tree("debian-12");
    let dir = tempfile::tempdir().unwrap();
    // Writes go to memory; the tree is not changed.
    let script = "mount -t tmpfs tmpfs $2; mkdir $2/upper $2/work $2/root
        mount -t overlay -o lowerdir=$1,upperdir=$2/upper,workdir=$2/work overlay $2/root
        mount -t proc proc $2/root/proc; mount --rbind /dev $2/root/dev
        cat /etc/resolv.conf > $2/root/etc/resolv.conf
        chroot $2/root apt-get -q update && chroot $2/root apt-get -q -y install tree
        chroot $2/root tree --version";
    let output = run_isolated(script, &[&tree.path, dir.path()]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{output:?}");
    assert!(printed.contains("tree v2"), "{printed}");
}

#[tokio::test]
async fn an_unreachable_archive_is_reported_with_the_output_of_apt() {
    if !images::possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Bound and closed again, so connections are refused.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mirror = format!("http://{}/debian", port.local_addr().unwrap());
    drop(port);
    let images = Images::new(dir.path().join("images")).with_mirror(Some(mirror.clone()));
    let error = images.ensure_tree("debian-13", &|_| ()).await.unwrap_err();
    assert!(error.to_string().contains(&mirror), "{error}");
    assert!(matches!(error, ImageError::Unreachable { .. }), "{error:?}");
    assert!(
        error
            .log()
            .iter()
            .any(|line| line.contains("Could not connect")),
        "{:?}",
        error.log()
    );
    assert!(error.hint().contains("HOMESTAK_DEBIAN_MIRROR"));
    let left: Vec<_> = fs_err::read_dir(dir.path().join("images"))
        .unwrap()
        .collect();
    assert_eq!(left.len(), 1, "only the lock: {left:?}");
}

/// A small file system that is unmounted after the test.
struct MountedTmpfs(tempfile::TempDir);

impl Drop for MountedTmpfs {
    fn drop(&mut self) {
        _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_disk_that_fills_up_during_a_build_is_reported() {
    if !images::possible() {
        return;
    }
    let mounted = MountedTmpfs(tempfile::tempdir().unwrap());
    let at = mounted.0.path();
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", "size=600m", "tmpfs"])
        .arg(at);
    assert!(mount.status().unwrap().success());
    let images = Images::new(at.join("images"));
    let filler = at.join("filler");
    // There is enough space at the start; then another process fills it.
    let report = |_: &str| {
        if !filler.exists() {
            fs_err::write(&filler, vec![1; 480 << 20]).unwrap();
        }
    };
    let error = images.ensure_tree("debian-12", &report).await.unwrap_err();
    assert!(
        matches!(error, ImageError::Full { free, .. } if free < 100 << 20),
        "{error:?}"
    );
    let left: Vec<_> = fs_err::read_dir(at.join("images")).unwrap().collect();
    assert_eq!(left.len(), 1, "only the lock: {left:?}");
}

#[tokio::test]
async fn concurrent_real_builders_build_one_tree() {
    if !images::possible() || std::env::var_os("HOMESTAK_TEST_FULL").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = [(); 2].map(|()| Images::new(dir.path().to_owned()));
    let (one, other) = tokio::join!(
        images[0].ensure_tree("debian-13", &|_| ()),
        images[1].ensure_tree("pve-9", &|_| ())
    );
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!(images[0].list().len(), 1);
    assert!(images[0].verify("debian-13").await.unwrap()[0].is_intact());
}
