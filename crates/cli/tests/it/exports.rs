//! Variables for OpenTofu and Ansible.

use crate::support::{TestEnv, mode};

fn keys(json: &serde_json::Value) -> Vec<&str> {
    json.as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn tofu_variables_have_the_documented_keys_and_values() {
    let env = TestEnv::new();
    env.write(
        "site.yaml",
        "defaults:\n  gateway: 192.0.2.1\n  dns_servers: [192.0.2.53]\n  server_url: https://192.0.2.10:44443\n",
    );
    env.on_site(&[
        "resolve",
        "tofu",
        "-M",
        "n1-push",
        "-H",
        "father",
        "--out",
        "vars.json",
    ])
    .good();
    let file = env.work().join("vars.json");
    assert_eq!(mode(&file), 0o600);
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let expected = [
        "node",
        "api_endpoint",
        "api_token",
        "ssh_private_key_file",
        "vm_user",
        "ssh_host",
        "datastore",
        "root_password",
        "ssh_keys",
        "server_url",
        "dns_servers",
        "vms",
    ];
    assert_eq!(keys(&json), expected);
    assert_eq!(json["api_token"], "root@pam!homestak=token-value");
    assert_eq!(json["root_password"], "$6$salt$hash-value");
    assert_eq!(json["ssh_host"], "192.0.2.61");
    assert_eq!(json["vm_user"], "homestak");
    let vm = &json["vms"][0];
    let expected = [
        "name",
        "vmid",
        "image",
        "cores",
        "memory",
        "disk",
        "bridge",
        "gateway",
        "boot_scenario",
        "auth_token",
    ];
    assert_eq!(keys(vm), expected);
    assert_eq!(
        (&vm["vmid"], &vm["gateway"]),
        (&99001.into(), &"192.0.2.1".into())
    );
    let token = vm["auth_token"].as_str().unwrap();
    env.on_site(&["token", "verify", token, "--node", "edge"])
        .good();
}

#[test]
fn tofu_variables_with_compat_legacy_have_exactly_the_documented_keys() {
    let env = TestEnv::new();
    let arguments = [
        "resolve", "tofu", "-M", "n1-push", "-H", "father", "--compat", "legacy",
    ];
    let json = env.on_site(&arguments).json();
    let expected = [
        "node",
        "api_endpoint",
        "api_token",
        "ssh_user",
        "datastore",
        "root_password",
        "ssh_keys",
        "spec_server",
        "vms",
    ];
    assert_eq!(keys(&json), expected);
    let expected = [
        "name",
        "vmid",
        "image",
        "cores",
        "memory",
        "disk",
        "bridge",
        "auth_token",
    ];
    assert_eq!(keys(&json["vms"][0]), expected);
    assert_eq!(json["ssh_user"], "ops");
    assert_eq!(json["api_token"], "<secret api_tokens.father>");
}

#[test]
fn ansible_variables_have_the_documented_keys_and_values() {
    let env = TestEnv::new();
    env.write(
        "site.yaml",
        "defaults: {timezone: America/Denver, packages: [htop, strace]}\n",
    );
    let json = env
        .on_site(&["resolve", "ansible", "stage", "--show-secrets"])
        .json();
    let expected = [
        "timezone",
        "pve_remove_subscription_nag",
        "packages",
        "ssh_port",
        "ssh_permit_root_login",
        "ssh_password_authentication",
        "sudo_nopasswd",
        "fail2ban_enabled",
        "posture_name",
        "ssh_authorized_keys",
    ];
    assert_eq!(keys(&json), expected);
    assert_eq!(
        json["packages"],
        serde_json::json!(["htop", "strace", "net-tools"])
    );
    assert_eq!(
        json["ssh_authorized_keys"][0],
        "ssh-ed25519 AAAAkeyvalue ops@desk"
    );
    let legacy = env
        .on_site(&["resolve", "ansible", "--compat", "legacy"])
        .json();
    assert_eq!(
        (&legacy["env_name"], &legacy["posture_name"]),
        (&"dev".into(), &"dev".into())
    );
    assert_eq!(keys(&legacy).len(), expected.len() + 1);
}

#[test]
fn an_unknown_posture_or_host_is_an_error_and_not_a_default() {
    let env = TestEnv::new();
    let run = env.on_site(&["resolve", "ansible", "devv"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("did you mean `dev`?"), "{}", run.err);
    let run = env.on_site(&["resolve", "tofu", "-M", "n1-push", "-H", "fathr"]);
    assert!(run.err.contains("did you mean `father`?"), "{}", run.err);
    let run = env.on_site(&["resolve", "tofu", "-M", "n1-push"]);
    assert_eq!(run.code, 2);
}
