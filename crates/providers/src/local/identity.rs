//! Renders the shell script that configures the identity of a node without cloud-init.
//!
//! The script may run twice. All values are quoted.

use std::fmt::Write as _;

use homestak_core::firstboot::{FirstBootConfig, SSHD_NO_PASSWORDS};

use super::instance::BRIDGE;
use crate::ssh::quote;

/// Returns the script. A node that `hosts` others has its address on a bridge. One that is `up`
/// already takes everything over at once.
pub(super) fn script(identity: &FirstBootConfig, hosts: bool, up: bool) -> String {
    let mut text = String::from(
        "set -eu\n\
         umask 022\n\
         put() { [ -d \"${2%/*}\" ] || mkdir -p \"${2%/*}\"; umask \"$1\"; printf '%s' \"$3\" >\"$2.new\"; umask 022; mv -f \"$2.new\" \"$2\"; }\n",
    );
    // Each with the umask that gives it its mode: none is open to others even for a moment.
    let mut put = |mask: &str, path: &str, content: &str| {
        let _ = writeln!(text, "put {mask} {path} {}", quote(content));
    };
    let name = &identity.hostname;
    put("022", "/etc/hostname", &format!("{name}\n"));
    put("022", "/etc/hosts", &hosts_file(name));
    for (path, content) in network(identity, hosts) {
        put("022", &path, &content);
    }
    if let Some(key) = &identity.host_key {
        put("077", "/etc/ssh/ssh_host_ed25519_key", &lined(&key.private));
        put(
            "022",
            "/etc/ssh/ssh_host_ed25519_key.pub",
            &lined(&key.public),
        );
    }
    let (path, content) = SSHD_NO_PASSWORDS;
    put("077", path, content);
    let user = &identity.user;
    put(
        "226",
        "/etc/sudoers.d/90-cloud-init-users",
        &format!("{user} ALL=(ALL) NOPASSWD:ALL\n"),
    );
    put("022", "/etc/cloud/cloud-init.disabled", "");
    let who = quote(user);
    let keys: String = identity.keys.iter().map(|key| lined(key)).collect();
    let _ = write!(
        text,
        "if id -u {who} >/dev/null 2>&1; then usermod --append --groups sudo {who}\n\
         else useradd --create-home --groups sudo --shell /bin/bash {who}; fi\n\
         home=$(getent passwd {who} | cut -d: -f6)\n\
         put 077 \"$home/.ssh/authorized_keys\" {}\n\
         chmod 0700 \"$home/.ssh\"\n\
         chown -R {who}: \"$home/.ssh\"\n",
        quote(&keys)
    );
    if up {
        let _ = write!(
            text,
            "hostname {}\n\
             networkctl reload\n\
             systemctl --no-block restart ssh\n",
            quote(name)
        );
    }
    text
}

fn hosts_file(name: &str) -> String {
    format!(
        "127.0.1.1 {name} {name}\n\
         127.0.0.1 localhost\n\
         ::1 localhost ip6-localhost ip6-loopback\n\
         ff02::1 ip6-allnodes\n\
         ff02::2 ip6-allrouters\n"
    )
}

/// The files of systemd-networkd.
fn network(identity: &FirstBootConfig, hosts: bool) -> Vec<(String, String)> {
    let mac = &identity.mac;
    let mut own = String::from("[Network]\n");
    match identity.address {
        Some((address, prefix)) => {
            let _ = writeln!(own, "Address={address}/{prefix}");
        }
        None => own.push_str("DHCP=ipv4\n"),
    }
    if let Some(gateway) = identity.gateway {
        let _ = writeln!(own, "Gateway={gateway}");
    }
    for server in &identity.dns {
        let _ = writeln!(own, "DNS={server}");
    }
    let at = |name: &str| format!("/etc/systemd/network/10-homestak-{name}");
    let mut files = Vec::new();
    if !hosts {
        files.push((
            at("lan.network"),
            format!("[Match]\nMACAddress={mac}\n\n{own}"),
        ));
        return files;
    }
    // As on a hypervisor: what runs on it is on the same network.
    files.push((
        at("bridge.netdev"),
        format!("[NetDev]\nName={BRIDGE}\nKind=bridge\nMACAddress={mac}\n\n[Bridge]\nSTP=no\nForwardDelaySec=0\n"),
    ));
    files.push((
        at("port.network"),
        format!("[Match]\nName=eth0\n\n[Network]\nBridge={BRIDGE}\n"),
    ));
    files.push((
        at("bridge.network"),
        format!("[Match]\nName={BRIDGE}\n\n{own}"),
    ));
    files
}

/// Ends a text with one line end.
fn lined(text: &str) -> String {
    format!("{}\n", text.trim_end())
}
