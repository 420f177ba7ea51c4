//! First boot with direct configuration and with cloud-init give the same node.

use crate::spent_token;

/// Prints everything that first-boot data decides.
pub const FACTS: &str = "hostname; hostname -f; getent passwd ops; id ops; sudo -n -l -U ops | tail -n 2; \
    sudo sha256sum /home/ops/.ssh/authorized_keys /etc/ssh/ssh_host_ed25519_key | cut -c1-64; \
    ls /etc/ssh | grep host_key; stat -c '%a %U %n' /home/ops/.ssh /home/ops/.ssh/authorized_keys; \
    ip -o -4 address show scope global | awk '{print $2, $4}'; ip route show default; \
    cat /sys/class/net/eth0/address; cat /etc/resolv.conf; \
    sudo sshd -T | grep -i '^passwordauthentication'; sudo passwd -S ops | cut -d' ' -f2; \
    grep -v '^#' /etc/hosts | grep 127.0.1.1; cat /etc/machine-id";

/// Returns the facts without the host key, which is new for each node, and without the network
/// prefix, which may be another one if it was taken in between.
pub fn without_key(text: &str) -> Vec<String> {
    let mut sums = 0;
    let gateway = text
        .lines()
        .find_map(|line| line.strip_prefix("default via "));
    let network: String = gateway
        .into_iter()
        .flat_map(|ip| ip.split_inclusive('.').take(2))
        .collect();
    text.replace(&network, "NET.")
        .lines()
        .filter(|line| {
            let sum = line.len() == 64 && line.chars().all(|c| c.is_ascii_hexdigit());
            sums += u32::from(sum);
            !(sum && sums == 2)
        })
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn direct_first_boot_and_cloud_init_give_the_same_node_and_no_token_is_left() {
    let Some(mut host) = crate::host() else {
        return;
    };
    host.peers("same", 1);
    host.apply("same");
    let direct = host.inside("peer-1", FACTS).good();
    host.destroy("same");
    host.set("HOMESTAK_FIRST_BOOT", "cloud-init");
    spent_token::write_spec(&host);
    let nodes = "  - {name: peer-1}\n  - {name: web, spec: web, execution: {mode: pull}}\n";
    host.manifest("same", nodes);
    let token = spent_token::apply(&host, "same");
    for node in ["peer-1", "web"] {
        host.inside(node, "cloud-init status --wait >/dev/null; true")
            .good();
    }
    let from_cloud_init = host.inside("peer-1", FACTS).good();
    assert_eq!(without_key(&direct), without_key(&from_cloud_init));
    // The seed is deleted, and the configuration survives a reboot.
    host.inside("peer-1", "sudo test ! -e /var/lib/cloud/seed/nocloud")
        .good();
    spent_token::assert_forgotten(&host, "web", &token);
    host.reboot("peer-1");
    assert_eq!(host.inside("peer-1", FACTS).good(), from_cloud_init);
    host.destroy("same");
    host.assert_unchanged();
}
