//! Provisioning tokens over the command line.

use crate::support::World;

const VECTOR: &str = "eyJ2IjoxLCJuIjoid2ViLTEiLCJzIjoiYmFzZSIsImlhdCI6MTcwMDAwMDAwMH0.tpw5Q3DWDwuymgtCv-ZutoEZ49Tagbu4P6z14PagRos";

#[test]
fn a_minted_token_verifies_and_the_published_one_too() {
    let world = World::new();
    let token = world.on_site(&["token", "mint", "edge", "base"]).good();
    let json = world
        .with_input(
            &["token", "verify", "-", "--node", "edge", "--json-output"],
            &token,
        )
        .json();
    assert_eq!(
        (&json["claims"]["n"], &json["claims"]["s"]),
        (&"edge".into(), &"base".into())
    );
    world
        .on_site(&["token", "verify", VECTOR, "--node", "web-1"])
        .good();
    let shown = world.run(&["token", "inspect", VECTOR]).good();
    assert!(
        shown.contains("2023-11-14T22:13:20Z") && shown.contains("not checked"),
        "{shown}"
    );
}

#[test]
fn a_token_of_another_node_or_key_is_refused() {
    let world = World::new();
    let other = world.on_site(&["token", "verify", VECTOR, "--node", "web-2"]);
    assert_eq!(other.code, 1);
    assert!(other.err.contains("E301"), "{}", other.err);
    let changed = world.on_site(&[
        "token",
        "inspect",
        "--verify",
        &VECTOR.replace("tpw5", "tpw6"),
    ]);
    assert_eq!(changed.code, 1);
    let malformed = world.on_site(&["token", "inspect", "nonsense"]);
    assert!(malformed.err.contains("E300"), "{}", malformed.err);
}

#[test]
fn without_a_signing_key_minting_fails_loudly() {
    let world = World::new();
    world.secrets("auth: {signing_key: ''}\n");
    let run = world.on_site(&["token", "mint", "edge", "base"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("auth.signing_key"), "{}", run.err);
}
