//! Creating, changing and destroying nodes.

use crate::test_host::text;

#[test]
fn st_6_peers_are_created_on_this_machine_and_leave_nothing_behind() {
    let Some(host) = crate::host() else { return };
    host.manifest(
        "workers",
        "  - {name: worker-1}\n  - {name: worker-2}\n  - {name: worker-3, type: ct, template: debian-12-standard}\n",
    );
    let applied = host
        .manifest_run("apply", "workers", &["--yes", "--json-output"])
        .json();
    assert_eq!(applied["success"], true, "{applied}");
    assert_eq!(host.names(), ["worker-1", "worker-2", "worker-3"]);
    for node in host.names() {
        let output = host
            .inside(
                &node,
                "hostname && sudo -n id -u && cat /etc/debian_version",
            )
            .good();
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines[..2], [node.as_str(), "0"], "{output}");
        assert!(lines[2].starts_with("12."), "{output}");
    }
    let plan = host
        .manifest_run("plan", "workers", &["--json-output"])
        .json();
    assert_eq!(
        plan["plan"]["steps"].as_array().map_or(0, Vec::len),
        0,
        "{plan}"
    );
    host.destroy("workers");
    host.assert_unchanged();
}

#[test]
fn st_8_applying_and_destroying_twice_is_the_same_as_once() {
    let Some(host) = crate::host() else { return };
    host.peers("single", 1);
    host.apply("single");
    let first = host.nodes();
    host.apply("single");
    assert_eq!(host.nodes(), first);
    host.destroy("single");
    host.destroy("single");
    host.assert_unchanged();
}

#[test]
fn ten_peers_created_at_once_have_addresses_and_reach_the_package_archive() {
    let Some(host) = crate::host() else { return };
    host.peers("ten", 10);
    host.apply("ten");
    let nodes = host.nodes();
    let addresses: std::collections::BTreeSet<String> =
        nodes.iter().map(|node| text(&node["address"])).collect();
    assert_eq!(addresses.len(), 10, "{nodes:#?}");
    // One peer reaches another by its address on the bridge.
    let other = text(&nodes[1]["address"]);
    host.inside("peer-1", &format!("ping -c 1 -W 5 {other}"))
        .good();
    // It reaches the package archive by name.
    host.inside("peer-1", "sudo apt-get update -q").good();
    host.destroy("ten");
    host.assert_unchanged();
}

#[test]
fn a_node_sees_only_its_own_network_interfaces() {
    let Some(host) = crate::host() else { return };
    host.peers("own", 1);
    host.apply("own");
    assert_eq!(
        host.inside("peer-1", "ls /sys/class/net").good(),
        "eth0\nlo\n"
    );
    let planned = host
        .inside("peer-1", "cat /sys/class/net/eth0/address")
        .good();
    assert!(planned.starts_with("02:"), "{planned}");
    host.destroy("own");
    host.assert_unchanged();
}

#[test]
fn a_rebooted_node_keeps_its_files() {
    let Some(host) = crate::host() else { return };
    host.peers("one", 1);
    host.apply("one");
    host.inside("peer-1", "echo kept | sudo tee /root/note && sync")
        .good();
    host.reboot("peer-1");
    assert_eq!(
        host.inside("peer-1", "sudo cat /root/note").good(),
        "kept\n"
    );
    host.destroy("one");
    host.assert_unchanged();
}

#[test]
fn nodes_are_found_again_when_the_drivers_state_is_lost() {
    let Some(host) = crate::host() else { return };
    host.peers("lost", 2);
    host.apply("lost");
    std::fs::remove_dir_all(host.state()).unwrap();
    let plan = host.manifest_run("plan", "lost", &[]);
    assert!(
        plan.out.contains("Nothing to do") || plan.err.contains("Nothing to do"),
        "{}{}",
        plan.out,
        plan.err
    );
    host.destroy("lost");
    host.assert_unchanged();
}

#[test]
fn two_drivers_at_once_do_not_collide() {
    let Some(host) = crate::host() else { return };
    host.peers("left", 2);
    host.manifest("right", "  - {name: other-1}\n  - {name: other-2}\n");
    std::thread::scope(|scope| {
        for name in ["left", "right"] {
            let host = &host;
            scope.spawn(move || host.apply(name));
        }
    });
    let nodes = host.nodes();
    let ids: std::collections::BTreeSet<u64> = nodes
        .iter()
        .filter_map(|node| node["id"].as_u64())
        .collect();
    assert_eq!((nodes.len(), ids.len()), (4, 4), "{nodes:#?}");
    std::thread::scope(|scope| {
        for name in ["left", "right"] {
            let host = &host;
            scope.spawn(move || host.destroy(name));
        }
    });
    host.assert_unchanged();
}

#[test]
fn a_resized_node_keeps_its_files() {
    let Some(host) = crate::host() else { return };
    host.peers("grown", 1);
    host.apply("grown");
    host.inside("peer-1", "echo kept | sudo tee /root/note && sync")
        .good();
    host.manifest("grown", "  - {name: peer-1, cores: 2, memory: 768}\n");
    host.apply("grown");
    let node = &host.nodes()[0];
    assert_eq!((&node["cores"], &node["memory"]), (&2.into(), &768.into()));
    assert_eq!(
        host.inside("peer-1", "sudo cat /root/note").good(),
        "kept\n"
    );
    host.destroy("grown");
    host.assert_unchanged();
}

#[test]
fn a_node_whose_stop_was_interrupted_is_stopped_and_not_restarted() {
    use std::time::Duration;

    use rustix::process::{Pid, Signal, kill_process};

    let Some(host) = crate::host() else { return };
    host.peers("single", 1);
    host.apply("single");
    let node = host.nodes().remove(0);
    let instance = homestak_providers::local::Instance::at(&host.root()).unwrap();
    let mut found = crate::killed::processes(instance.name(), &node).into_iter();
    let (nspawn, _) = found
        .find(|(_, line)| line.starts_with("systemd-nspawn"))
        .unwrap();
    let console = host
        .root()
        .join("nodes")
        .join(text(&node["uuid"]))
        .join("console.log");
    // What a driver sends that is killed then.
    kill_process(Pid::from_raw(nspawn).unwrap(), Signal::TERM).unwrap();
    let mut destroying = host
        .command(&[
            "manifest", "destroy", "-M", "single", "-H", "local", "--yes",
        ])
        .spawn()
        .unwrap();
    while destroying.try_wait().unwrap().is_none() {
        let printed = std::fs::read(&console).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        assert!(!printed.contains("restarting the node"), "{printed}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(destroying.wait().unwrap().success());
    host.assert_unchanged();
}
