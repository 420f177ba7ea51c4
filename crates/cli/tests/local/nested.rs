//! Nested nodes.

#[test]
fn a_nested_node_is_created_reached_and_destroyed() {
    let Some(host) = crate::host() else { return };
    host.write("specs/web.yaml", "schema_version: 1\n");
    host.manifest(
        "deep",
        "  - {name: outer, type: pve, spec: web, image: debian-12, memory: 1024}\n  - {name: inner, parent: outer}\n",
    );
    let applied = host
        .manifest_run("apply", "deep", &["--yes", "--json-output"])
        .json();
    assert_eq!(applied["success"], true, "{applied}");
    assert_eq!(
        host.names(),
        ["outer"],
        "the inner one is not on this machine itself"
    );
    let address = applied["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|node| node["name"] == "inner")
        .unwrap()["ip"]
        .clone();
    let known = std::fs::read_to_string(host.state().join("ssh/known_hosts")).unwrap();
    let parent = host.nodes()[0]["uuid"].as_str().unwrap().to_owned();
    let inner = known
        .lines()
        .filter_map(|line| line.split(' ').next())
        .find(|uuid| *uuid != parent)
        .unwrap();
    let output = host
        .run_at(
            address.as_str().unwrap(),
            inner,
            "hostname && systemctl is-system-running --wait",
        )
        .good();
    assert!(output.starts_with("inner\n"), "{output}");
    let plan = host.manifest_run("plan", "deep", &[]);
    assert!(
        plan.out.contains("Nothing to do") || plan.err.contains("Nothing to do"),
        "{}{}",
        plan.out,
        plan.err
    );
    // The spec of a hypervisor of this machine is not applied, and this is reported.
    let why = "nodes of type `pve` are not configured on this machine";
    let shown = format!("its spec `web` is not applied: {why}");
    assert!(plan.out.contains(&shown), "{}", plan.out);
    let status = host
        .manifest_run("status", "deep", &["--json-output"])
        .json();
    let nodes = status["runs"][0]["nodes"].as_array().unwrap();
    let outer = nodes.iter().find(|node| node["name"] == "outer").unwrap();
    assert!(outer["differs"].is_null(), "{outer}");
    let diff = host.run(&["spec", "diff", "outer"]);
    assert!(diff.err.contains(why), "{}", diff.err);
    host.destroy("deep");
    host.assert_unchanged();
}
