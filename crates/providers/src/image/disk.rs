//! Builds the disk of a virtual machine (`disk.qcow2`, `vmlinuz`, `initrd.img`) from a copy of a tree.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::builder::Builder;
use super::error::ImageError;
use super::recipe::DISK_MODULES;
use super::run_blocking;
use super::store::file;
use super::tree::write;

/// Names of what comes out.
pub(super) const DISK: &str = "disk.qcow2";
pub(super) const KERNEL: &str = "vmlinuz";
pub(super) const INITRD: &str = "initrd.img";

/// Size of the file system. It grows when a machine starts with a larger disk.
const SIZE: &str = "2G";

/// Files that a machine has on top of the tree.
const FILES: &[(&str, &str)] = &[
    (
        "etc/fstab",
        "LABEL=root / ext4 defaults,x-systemd.growfs 0 0\n",
    ),
    ("etc/initramfs-tools/conf.d/homestak", "MODULES=list\n"),
    (
        // Only root on the machine that runs this one can reach the serial port.
        "etc/systemd/system/serial-getty@.service.d/autologin.conf",
        "[Service]\nExecStart=\nExecStart=-/sbin/agetty --autologin root --noclear --keep-baud 115200,57600,38400,9600 %I vt220\n",
    ),
];

/// Copies the tree and installs packages in the copy, as inside a machine: `$1` is the tree, `$2`
/// the copy, the rest packages. Mounts are the process's own and vanish with it.
const INSTALL: &str = r#"
tree=$1; root=$2; shift 2
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
cat /etc/resolv.conf > "$root/etc/resolv.conf"
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
echo "I: running apt-get update..."
chroot "$root" apt-get -q update
echo "I: installing remaining packages..."
chroot "$root" apt-get -q -y install "$@"
echo "I: cleaning package lists..."
chroot "$root" apt-get clean
rm -rf "$root"/var/lib/apt/lists/* "$root/usr/sbin/policy-rc.d" "$root"/var/log/apt "$root"/var/log/dpkg.log
"#;

/// Builds into `directory`.
pub(super) async fn build(
    builder: &mut Builder<'_>,
    tree: &Path,
    directory: &Path,
) -> Result<(), ImageError> {
    let root = directory.join("root");
    builder.progress.phase("copying the root file system");
    let copy: [OsString; 5] = [
        "cp".into(),
        "-a".into(),
        "--reflink=auto".into(),
        tree.into(),
        root.clone().into(),
    ];
    builder.run("cp", copy.into()).await?;
    for (path, text) in FILES {
        write(&root.join(path), text)?;
    }
    let modules = root.join("usr/share/initramfs-tools/modules.d/homestak");
    write(&modules, &format!("{}\n", DISK_MODULES.join("\n")))?;
    let mut install: Vec<OsString> = ["sh", "-euc", INSTALL, "sh"].map(Into::into).into();
    install.push(tree.into());
    install.push(root.clone().into());
    install.extend(builder.recipe.packages().into_iter().map(Into::into));
    builder.run("apt-get", install).await?;
    let (from, to) = (root.clone(), directory.to_owned());
    run_blocking(move || {
        take(&from, "vmlinuz-", &to.join(KERNEL))?;
        take(&from, "initrd.img-", &to.join(INITRD))
    })
    .await?;
    builder.progress.phase("writing the disk");
    let raw = directory.join("disk.raw");
    let mut format: Vec<OsString> = ["mke2fs", "-q", "-t", "ext4", "-L", "root", "-d"]
        .map(Into::into)
        .into();
    format.extend([root.clone().into(), raw.clone().into(), SIZE.into()]);
    builder.run("mke2fs", format).await?;
    let mut convert: Vec<OsString> = ["qemu-img", "convert", "-f", "raw", "-O", "qcow2"]
        .map(Into::into)
        .into();
    convert.extend([raw.clone().into(), directory.join(DISK).into()]);
    builder.run("qemu-img", convert).await?;
    run_blocking(move || {
        fs_err::remove_file(&raw).map_err(|source| file("remove", &raw, source))?;
        fs_err::remove_dir_all(&root).map_err(|source| file("remove", &root, source))
    })
    .await
}

/// Copies the one file in `/boot` whose name starts so.
fn take(root: &Path, start: &str, to: &Path) -> Result<(), ImageError> {
    let boot = root.join("boot");
    let entries = fs_err::read_dir(&boot).map_err(|source| file("read", &boot, source))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    let path = found.pop().unwrap_or_else(|| boot.join(start));
    fs_err::copy(&path, to).map_err(|source| file("copy", &path, source))?;
    Ok(())
}
