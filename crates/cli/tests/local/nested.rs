//! Nodes inside of nodes.

#[test]
fn a_node_inside_a_node_is_made_reached_and_removed() {
    let Some(bed) = crate::new_bed() else { return };
    bed.write("specs/web.yaml", "schema_version: 1\n");
    bed.manifest(
        "deep",
        "  - {name: outer, type: pve, spec: web, image: debian-12, memory: 1024}\n  - {name: inner, parent: outer}\n",
    );
    let made = bed
        .manifest_run("apply", "deep", &["--yes", "--json-output"])
        .json();
    assert_eq!(made["success"], true, "{made}");
    assert_eq!(
        bed.names(),
        ["outer"],
        "the inner one is not on this machine itself"
    );
    let address = made["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|node| node["name"] == "inner")
        .unwrap()["ip"]
        .clone();
    let known = std::fs::read_to_string(bed.state().join("ssh/known_hosts")).unwrap();
    let outer = bed.nodes()[0]["uuid"].as_str().unwrap().to_owned();
    let inner = known
        .lines()
        .filter_map(|line| line.split(' ').next())
        .find(|uuid| *uuid != outer)
        .unwrap();
    let said = bed
        .at(
            address.as_str().unwrap(),
            inner,
            "hostname && systemctl is-system-running --wait",
        )
        .good();
    assert!(said.starts_with("inner\n"), "{said}");
    let plan = bed.manifest_run("plan", "deep", &[]);
    assert!(
        plan.out.contains("Nothing to do") || plan.err.contains("Nothing to do"),
        "{}{}",
        plan.out,
        plan.err
    );
    // Nobody applies the spec of a hypervisor of this machine, and nobody claims to.
    let why = "nodes of type `pve` are not configured on this machine";
    let shown = format!("its spec `web` is not applied: {why}");
    assert!(plan.out.contains(&shown), "{}", plan.out);
    let status = bed
        .manifest_run("status", "deep", &["--json-output"])
        .json();
    let nodes = status["runs"][0]["nodes"].as_array().unwrap();
    let outer = nodes.iter().find(|node| node["name"] == "outer").unwrap();
    assert!(outer["differs"].is_null(), "{outer}");
    let diff = bed.run(&["spec", "diff", "outer"]);
    assert!(diff.err.contains(why), "{}", diff.err);
    bed.destroy("deep");
    bed.is_as_before();
}
