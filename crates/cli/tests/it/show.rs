//! Show, origins, graph, migrate, schemas and manual pages.

use crate::support::TestEnv;

#[test]
fn without_a_site_the_stock_site_is_used_and_named() {
    let env = TestEnv::without_site();
    let json = env.run(&["site", "show", "--json-output"]).json();
    assert_eq!(
        (&json["site"], &json["chosen_by"]),
        (&"stock".into(), &"the stock site".into())
    );
    env.run(&["manifest", "show", "n3-deep"]).good();
}

#[test]
fn a_missing_site_is_an_error_with_a_hint() {
    let run = TestEnv::without_site().run(&["--site", "gone", "site", "show"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("homestak site init gone"), "{}", run.err);
}

#[test]
fn a_node_is_shown_with_the_origin_of_each_value() {
    let env = TestEnv::new();
    let json = env
        .on_site(&[
            "manifest",
            "show",
            "n2-tiered",
            "-H",
            "father",
            "--origin",
            "--json-output",
        ])
        .json();
    let nodes = json["nodes"].as_array().unwrap();
    let root = nodes
        .iter()
        .find(|node| node["name"] == "root-pve")
        .unwrap();
    assert_eq!(
        root["disk"], 64,
        "the disk of the node overrides that of the preset"
    );
    assert_eq!(
        root["origins"]["disk"],
        "site/manifests/n2-tiered.yaml:12:11"
    );
    assert_eq!(root["origins"]["cores"], "site/presets/vm-large.yaml:2:8");
    assert_eq!(root["origins"]["host"], "command line (-H)");
    assert_eq!(root["origins"]["mode"], "built-in default");
    let edge = nodes.iter().find(|node| node["name"] == "edge").unwrap();
    assert_eq!(edge["parent"], "root-pve");
    assert_eq!(edge["resolved_spec"]["identity"]["hostname"], "edge");
    assert_eq!(
        edge["spec_origins"]["access._posture.ssh.port"],
        "site/postures/dev.yaml:4:13"
    );
}

#[test]
fn secrets_are_shown_only_on_request() {
    let env = TestEnv::new();
    let values = ["token-value", "hash-value", "AAAAkeyvalue", "0001020304"];
    for arguments in [
        vec!["manifest", "show", "n1-push", "--node", "edge"],
        vec!["manifest", "show", "n1-push", "--node", "edge", "--origin"],
        vec!["manifest", "show", "n1-push", "--json-output", "--origin"],
        vec!["spec", "show", "base", "--origin"],
        vec!["spec", "show", "base"],
        vec!["resolve", "tofu", "-M", "n1-push", "-H", "father"],
        vec!["resolve", "ansible"],
        vec!["site", "validate"],
        vec!["site", "show", "-v"],
    ] {
        let run = env.on_site(&arguments);
        for value in values {
            assert!(
                !run.out.contains(value) && !run.err.contains(value),
                "{arguments:?}"
            );
        }
    }
    let shown = env
        .on_site(&["spec", "show", "base", "--show-secrets"])
        .good();
    assert!(
        shown.contains("ssh-ed25519 AAAAkeyvalue ops@desk"),
        "{shown}"
    );
}

#[test]
fn mode_on_the_command_line_overrides_all_but_pve_nodes() {
    let env = TestEnv::new();
    let run = env.on_site(&[
        "manifest",
        "show",
        "n2-tiered",
        "--mode",
        "pull",
        "--json-output",
    ]);
    assert!(run.err.contains("SK0905"), "{}", run.err);
    let json = run.json();
    let mode = |name: &str| {
        let nodes = json["nodes"].as_array().unwrap();
        nodes.iter().find(|node| node["name"] == name).unwrap()["mode"].clone()
    };
    assert_eq!(
        (mode("root-pve"), mode("edge")),
        ("push".into(), "pull".into())
    );
}

#[test]
fn vmids_are_the_base_plus_the_rank_by_name() {
    let json = TestEnv::new()
        .on_site(&["manifest", "show", "workers", "--json-output"])
        .json();
    let vmids: Vec<_> = json["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["vmid"].clone())
        .collect();
    assert_eq!(vmids, [99101, 99102, 99103]);
}

#[test]
fn every_stock_manifest_can_be_drawn_in_every_format() {
    let env = TestEnv::without_site();
    let json = env.run(&["manifest", "list", "--json-output"]).json();
    for manifest in json["manifests"].as_array().unwrap() {
        let name = manifest["name"].as_str().unwrap();
        let starts = [
            ("tree", name),
            ("svg", "<svg"),
            ("dot", "digraph"),
            ("mermaid", "---"),
        ];
        for (format, start) in starts {
            let drawn = env
                .run(&["manifest", "graph", name, "--format", format])
                .good();
            assert!(
                drawn.trim_start().starts_with(start),
                "{name} {format}: {drawn}"
            );
        }
    }
}

#[test]
fn a_graph_is_written_to_a_file() {
    let env = TestEnv::without_site();
    env.run(&[
        "manifest",
        "graph",
        "cluster",
        "--format",
        "svg",
        "--out",
        "cluster.svg",
    ])
    .good();
    let text = std::fs::read_to_string(env.work().join("cluster.svg")).unwrap();
    assert!(text.ends_with("</svg>\n"));
}

const V1: &str = "\
schema_version: 1
name: n2-quick
levels:
  - name: nested-pve
    vm_preset: large
    vmid: 99011
    image: debian-13-pve
    post_scenario: pve-setup
    post_scenario_args: [\"--local\"]
  - name: test
    vm_preset: vm-small
    vmid: 99021
    image: debian-12-custom
    post_scenario: user-setup
";

#[test]
fn a_manifest_of_version_1_is_refused_and_migrated() {
    let env = TestEnv::new();
    env.write("manifests/n2-quick.yaml", V1);
    let refused = env.on_site(&["validate", "-M", "n2-quick"]);
    assert_eq!(refused.code, 1);
    assert!(
        refused
            .err
            .contains("homestak manifest migrate site/manifests/n2-quick.yaml"),
        "{}",
        refused.err
    );
    let run = env.on_site(&["manifest", "migrate", "site/manifests/n2-quick.yaml"]);
    assert!(
        run.err
            .contains("`post_scenario` of `test` has no counterpart"),
        "{}",
        run.err
    );
    let text = run.good();
    env.write("manifests/n2-quick.yaml", &text);
    env.on_site(&["validate", "-M", "n2-quick"]).good();
    snapbox::assert_data_eq!(
        text,
        snapbox::str![[r#"
schema_version: 2
name: n2-quick
pattern: tiered
nodes:
  - name: nested-pve
    type: pve
    spec: pve
    preset: vm-large
    image: debian-13-pve
    vmid: 99011
  - name: test
    type: vm
    spec: base
    preset: vm-small
    image: debian-12-custom
    vmid: 99021
    parent: nested-pve

"#]]
    );
    let again = env.on_site(&["manifest", "migrate", "-M", "n2-quick"]);
    assert_eq!(again.code, 1);
    assert!(
        again.err.contains("already a manifest of version 2"),
        "{}",
        again.err
    );
}

#[test]
fn schemas_completions_and_manual_pages_are_generated_by_the_program() {
    let env = TestEnv::without_site();
    let files = env.run(&["schema", "--out", "schemas"]).good();
    assert_eq!(files.lines().count(), 9);
    assert!(env.work().join("schemas/manifest.v2.json").is_file());
    for shell in ["bash", "zsh", "fish"] {
        assert!(env.run(&["completions", shell]).good().contains("homestak"));
    }
    assert!(env.run(&["man"]).good().contains(".TH homestak 1"));
    env.run(&["man", "--out", "man"]).good();
    assert!(env.work().join("man/homestak-manifest-show.1").is_file());
}

#[test]
fn site_init_does_not_overwrite_files() {
    let env = TestEnv::new();
    env.write("site.yaml", "defaults: {}\n");
    let run = env.run(&["site", "init", "site"]);
    assert_eq!(run.code, 1);
    assert_eq!(
        std::fs::read_to_string(env.site().join("site.yaml")).unwrap(),
        "defaults: {}\n"
    );
}
