//! Provisioning tokens over the command line.

use crate::support::TestEnv;

const VECTOR: &str = "eyJ2IjoxLCJuIjoid2ViLTEiLCJzIjoiYmFzZSIsImlhdCI6MTcwMDAwMDAwMH0.tpw5Q3DWDwuymgtCv-ZutoEZ49Tagbu4P6z14PagRos";

#[test]
fn minted_and_published_tokens_verify() {
    let env = TestEnv::new();
    let token = env.on_site(&["token", "mint", "edge", "base"]).good();
    let json = env
        .with_input(
            &["token", "verify", "-", "--node", "edge", "--json-output"],
            &token,
        )
        .json();
    assert_eq!(
        (&json["claims"]["n"], &json["claims"]["s"]),
        (&"edge".into(), &"base".into())
    );
    env.on_site(&["token", "verify", VECTOR, "--node", "web-1"])
        .good();
    let shown = env.run(&["token", "inspect", VECTOR]).good();
    assert!(
        shown.contains("2023-11-14T22:13:20Z") && shown.contains("not checked"),
        "{shown}"
    );
}

#[test]
fn a_token_of_another_node_or_key_is_refused() {
    let env = TestEnv::new();
    let other = env.on_site(&["token", "verify", VECTOR, "--node", "web-2"]);
    assert_eq!(other.code, 1);
    assert!(other.err.contains("E301"), "{}", other.err);
    let changed = env.on_site(&[
        "token",
        "inspect",
        "--verify",
        &VECTOR.replace("tpw5", "tpw6"),
    ]);
    assert_eq!(changed.code, 1);
    let malformed = env.on_site(&["token", "inspect", "nonsense"]);
    assert!(malformed.err.contains("E300"), "{}", malformed.err);
}

#[test]
fn a_token_is_minted_only_for_a_name_that_a_node_can_have() {
    let env = TestEnv::new();
    for name in ["a/b", "", "Edge", "edge-"] {
        let run = env.on_site(&["token", "mint", name, "base"]);
        assert_eq!(run.code, 2, "{name}: {}", run.err);
        assert!(run.err.contains("start with a letter"), "{}", run.err);
    }
}

#[test]
fn minting_without_a_signing_key_is_an_error() {
    let env = TestEnv::new();
    env.secrets("auth: {signing_key: ''}\n");
    let run = env.on_site(&["token", "mint", "edge", "base"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("auth.signing_key"), "{}", run.err);
}
