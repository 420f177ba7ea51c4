//! Telling a node directly who it is, and telling it through cloud-init, come to the same.

/// Everything that first-boot data decides, as a node shows it.
pub const FACTS: &str = "hostname; hostname -f; getent passwd ops; id ops; sudo -n -l -U ops | tail -n 2; \
    sudo sha256sum /home/ops/.ssh/authorized_keys /etc/ssh/ssh_host_ed25519_key | cut -c1-64; \
    ls /etc/ssh | grep host_key; stat -c '%a %U %n' /home/ops/.ssh /home/ops/.ssh/authorized_keys; \
    ip -o -4 address show scope global | awk '{print $2, $4}'; ip route show default; \
    cat /sys/class/net/eth0/address; cat /etc/resolv.conf; \
    sudo sshd -T | grep -i '^passwordauthentication'; sudo passwd -S ops | cut -d' ' -f2; \
    grep -v '^#' /etc/hosts | grep 127.0.1.1; cat /etc/machine-id";

/// Returns the facts without the host key, which is another one when the node before is gone, and
/// without the network, which is another one when someone else took it meanwhile.
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
fn direct_first_boot_and_cloud_init_end_in_the_same() {
    let Some(mut bed) = crate::new_bed() else {
        return;
    };
    bed.peers("same", 1);
    bed.apply("same");
    let direct = bed.inside("peer-1", FACTS).good();
    bed.destroy("same");
    bed.set("HOMESTAK_FIRST_BOOT", "cloud-init");
    bed.apply("same");
    bed.inside("peer-1", "cloud-init status --wait >/dev/null; true")
        .good();
    let told = bed.inside("peer-1", FACTS).good();
    assert_eq!(without_key(&direct), without_key(&told));
    // What it was told is gone from the seed, and it still knows after a reboot.
    bed.inside("peer-1", "sudo test ! -e /var/lib/cloud/seed/nocloud")
        .good();
    bed.reboot("peer-1");
    assert_eq!(bed.inside("peer-1", FACTS).good(), told);
    bed.destroy("same");
    bed.is_as_before();
}
