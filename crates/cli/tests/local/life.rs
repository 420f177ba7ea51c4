//! From nothing to nodes and back.

use crate::bed::text;

#[test]
fn st_6_peers_are_made_on_this_machine_and_leave_nothing() {
    let Some(bed) = crate::new_bed() else { return };
    bed.manifest(
        "workers",
        "  - {name: worker-1}\n  - {name: worker-2}\n  - {name: worker-3, type: ct, template: debian-12-standard}\n",
    );
    let made = bed
        .manifest_run("apply", "workers", &["--yes", "--json-output"])
        .json();
    assert_eq!(made["success"], true, "{made}");
    assert_eq!(bed.names(), ["worker-1", "worker-2", "worker-3"]);
    for node in bed.names() {
        let said = bed
            .inside(
                &node,
                "hostname && sudo -n id -u && cat /etc/debian_version",
            )
            .good();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[..2], [node.as_str(), "0"], "{said}");
        assert!(lines[2].starts_with("12."), "{said}");
    }
    let plan = bed
        .manifest_run("plan", "workers", &["--json-output"])
        .json();
    assert_eq!(
        plan["plan"]["steps"].as_array().map_or(0, Vec::len),
        0,
        "{plan}"
    );
    bed.destroy("workers");
    bed.is_as_before();
}

#[test]
fn st_8_applying_and_destroying_twice_is_the_same_as_once() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("single", 1);
    bed.apply("single");
    let first = bed.nodes();
    bed.apply("single");
    assert_eq!(bed.nodes(), first);
    bed.destroy("single");
    bed.destroy("single");
    bed.is_as_before();
}

#[test]
fn ten_peers_at_once_each_have_an_address_and_packages_can_be_fetched() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("ten", 10);
    bed.apply("ten");
    let nodes = bed.nodes();
    let addresses: std::collections::BTreeSet<String> =
        nodes.iter().map(|node| text(&node["address"])).collect();
    assert_eq!(addresses.len(), 10, "{nodes:#?}");
    // One peer sees another, by its address on the bridge.
    let other = text(&nodes[1]["address"]);
    bed.inside("peer-1", &format!("ping -c 1 -W 5 {other}"))
        .good();
    // And the archive of packages, by name.
    bed.inside("peer-1", "sudo apt-get update -q").good();
    bed.destroy("ten");
    bed.is_as_before();
}

#[test]
fn a_node_sees_its_own_network_and_nothing_of_the_machines() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("own", 1);
    bed.apply("own");
    assert_eq!(
        bed.inside("peer-1", "ls /sys/class/net").good(),
        "eth0\nlo\n"
    );
    let planned = bed
        .inside("peer-1", "cat /sys/class/net/eth0/address")
        .good();
    assert!(planned.starts_with("02:"), "{planned}");
    bed.destroy("own");
    bed.is_as_before();
}

#[test]
fn a_node_that_reboots_comes_back_as_it_was() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("one", 1);
    bed.apply("one");
    bed.inside("peer-1", "echo kept | sudo tee /root/note && sync")
        .good();
    bed.reboot("peer-1");
    assert_eq!(bed.inside("peer-1", "sudo cat /root/note").good(), "kept\n");
    bed.destroy("one");
    bed.is_as_before();
}

#[test]
fn nodes_are_found_again_when_the_drivers_state_is_lost() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("lost", 2);
    bed.apply("lost");
    std::fs::remove_dir_all(bed.state()).unwrap();
    let plan = bed.manifest_run("plan", "lost", &[]);
    assert!(
        plan.out.contains("Nothing to do") || plan.err.contains("Nothing to do"),
        "{}{}",
        plan.out,
        plan.err
    );
    bed.destroy("lost");
    bed.is_as_before();
}

#[test]
fn two_drivers_at_once_do_not_collide() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("left", 2);
    bed.manifest("right", "  - {name: other-1}\n  - {name: other-2}\n");
    std::thread::scope(|scope| {
        for name in ["left", "right"] {
            let bed = &bed;
            scope.spawn(move || bed.apply(name));
        }
    });
    let nodes = bed.nodes();
    let ids: std::collections::BTreeSet<u64> = nodes
        .iter()
        .filter_map(|node| node["id"].as_u64())
        .collect();
    assert_eq!((nodes.len(), ids.len()), (4, 4), "{nodes:#?}");
    std::thread::scope(|scope| {
        for name in ["left", "right"] {
            let bed = &bed;
            scope.spawn(move || bed.destroy(name));
        }
    });
    bed.is_as_before();
}

#[test]
fn a_node_is_changed_and_keeps_what_is_on_it() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("grown", 1);
    bed.apply("grown");
    bed.inside("peer-1", "echo kept | sudo tee /root/note && sync")
        .good();
    bed.manifest("grown", "  - {name: peer-1, cores: 2, memory: 768}\n");
    bed.apply("grown");
    let node = &bed.nodes()[0];
    assert_eq!((&node["cores"], &node["memory"]), (&2.into(), &768.into()));
    assert_eq!(bed.inside("peer-1", "sudo cat /root/note").good(), "kept\n");
    bed.destroy("grown");
    bed.is_as_before();
}
