//! Renders the shell script that configures the identity of a node without cloud-init.
//!
//! The script may run twice. All values are quoted.

use std::fmt::Write as _;

use homestak_core::firstboot::{
    ENROLMENT_DIRECTORY, Enrolment, FirstBootConfig, PULL_UNIT, PULL_UNIT_LINK, SSHD_NO_PASSWORDS,
};

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
    // Each is created with the umask for its mode, so that it is never readable for others.
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
        put(
            "077",
            "/etc/ssh/ssh_host_ed25519_key",
            &with_line_end(&key.private),
        );
        put(
            "022",
            "/etc/ssh/ssh_host_ed25519_key.pub",
            &with_line_end(&key.public),
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
    let keys: String = identity.keys.iter().map(|key| with_line_end(key)).collect();
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
    if let Some(enrolment) = &identity.enrolment {
        text += &enrolment_files(enrolment);
    }
    if up {
        let _ = write!(
            text,
            "hostname {}\n\
             networkctl reload\n\
             systemctl --no-block restart ssh\n",
            quote(name)
        );
        if identity.enrolment.is_some() {
            let _ = write!(
                text,
                "systemctl daemon-reload\nsystemctl --no-block start {PULL_UNIT}\n"
            );
        }
    }
    text
}

/// The commands that write the files with which a node that pulls obtains its spec.
fn enrolment_files(enrolment: &Enrolment) -> String {
    // Before the file with the token, so that only root can ever enter it.
    let mut text = format!("install -d -m 0700 {ENROLMENT_DIRECTORY}\n");
    for file in enrolment.files() {
        let mask = 0o666 & !file.mode;
        let (path, content) = (file.path, quote(&file.content));
        let _ = writeln!(text, "put {mask:03o} {path} {content}");
        if file.mode & 0o111 != 0 {
            let _ = writeln!(text, "chmod {:o} {path}", file.mode);
        }
    }
    let (link, target) = PULL_UNIT_LINK;
    let _ = writeln!(
        text,
        "mkdir -p \"$(dirname {link})\"\nln -sfn {target} {link}"
    );
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
fn with_line_end(text: &str) -> String {
    format!("{}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use homestak_core::observed::GuestUuid;

    use super::*;

    #[test]
    fn the_files_of_a_node_that_pulls_have_their_modes_and_its_unit_is_enabled() {
        let enrolment = Enrolment {
            identity: "it's".to_owned(),
            uuid: GuestUuid::new("5d1f2a3b-0000-4000-8000-00000000000a").expect("a UUID"),
            servers: vec!["https://10.0.0.1:44443".to_owned()],
            authorities: Vec::new(),
            site: "s".to_owned(),
            site_keys: Vec::new(),
            token: "a.b".to_owned(),
            issued: 0,
            agent_generation: 0,
        };
        let root = tempfile::tempdir().expect("a directory");
        let at = root.path().display();
        let written = script(&config(Some(enrolment.clone())), false, false);
        // The function `put` is the first line; of the others only those of the enrolment are run.
        let head: String = written.lines().take(3).map(with_line_end).collect();
        let commands = format!("{head}{}", enrolment_files(&enrolment));
        let commands = commands
            .replace(" /etc/", &format!(" {at}/etc/"))
            .replace(" /usr/local/etc", &format!(" {at}/usr/local/etc"))
            .replace("put 022 /usr", &format!("put 022 {at}/usr"))
            .replace("755 /usr", &format!("755 {at}/usr"));
        // Twice: it may be interrupted.
        for _ in 0..2 {
            crate::process::run("sh", &["-c", &commands]).expect("written");
        }
        let mode = |path: &str| {
            use std::os::unix::fs::PermissionsExt as _;
            let found = fs_err::metadata(root.path().join(path)).expect(path);
            found.permissions().mode() & 0o7777
        };
        assert_eq!(mode("usr/local/etc/homestak/first-boot"), 0o700);
        for file in enrolment.files() {
            let path = file.path.trim_start_matches('/');
            assert_eq!(mode(path), file.mode, "{path}");
            let content = fs_err::read_to_string(root.path().join(path)).expect(path);
            assert!(content.len() == file.content.len(), "{path}");
        }
        let link = root.path().join(PULL_UNIT_LINK.0.trim_start_matches('/'));
        fs_err::symlink_metadata(link).expect("enabled");
    }

    #[test]
    fn a_node_that_is_up_starts_to_pull_at_once() {
        let enrolment = Enrolment {
            identity: "web".to_owned(),
            uuid: GuestUuid::new("5d1f2a3b-0000-4000-8000-00000000000a").expect("a UUID"),
            servers: Vec::new(),
            authorities: Vec::new(),
            site: String::new(),
            site_keys: Vec::new(),
            token: String::new(),
            issued: 0,
            agent_generation: 0,
        };
        let pulls = config(Some(enrolment));
        let start = format!("systemctl --no-block start {PULL_UNIT}\n");
        assert!(script(&pulls, false, true).ends_with(&start));
        assert!(!script(&pulls, false, false).contains(&start));
        assert!(!script(&config(None), false, true).contains(PULL_UNIT));
    }

    fn config(enrolment: Option<Enrolment>) -> FirstBootConfig {
        FirstBootConfig {
            uuid: GuestUuid::new("5d1f2a3b-0000-4000-8000-00000000000a").expect("a UUID"),
            hostname: "web".to_owned(),
            user: "ops".to_owned(),
            keys: Vec::new(),
            host_key: None,
            mac: "02:00:00:00:00:0a".to_owned(),
            address: None,
            gateway: None,
            dns: Vec::new(),
            packages: Vec::new(),
            enrolment,
        }
    }
}
