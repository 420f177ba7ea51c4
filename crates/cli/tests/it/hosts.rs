//! Hosts: listed, trusted, shown and checked, against a simulated Proxmox VE over TLS.

use std::io::{BufReader, Read as _};
use std::process::{Child, Stdio};

use homestak_sim::{Answer, Request};

use crate::support::TestEnv;

/// A simulator that is stopped when the test ends.
struct Simulator {
    child: Child,
    url: String,
    token: String,
}

impl Simulator {
    fn start(env: &TestEnv) -> Self {
        let mut command =
            env.command(&["sim", "serve", "--listen", "127.0.0.1:0", "--json-output"]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut text = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        // The document is complete with the brace that closes it.
        let json: serde_json::Value = loop {
            let mut byte = [0];
            assert_eq!(
                out.read(&mut byte).unwrap(),
                1,
                "the simulator ended: {text}"
            );
            text.push(char::from(byte[0]));
            if byte[0] == b'}' {
                homestak_test_support::output::check(&text);
                break serde_json::from_str(&text).unwrap();
            }
        };
        let field = |key: &str| json[key].as_str().unwrap().to_owned();
        Self {
            child,
            url: field("url"),
            token: field("token"),
        }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// An environment whose host `lab` is the simulator, not trusted yet.
fn untrusted_host() -> (TestEnv, Simulator) {
    let env = TestEnv::new();
    let simulator = Simulator::start(&env);
    env.write(
        "nodes/lab.yaml",
        &format!(
            "# the lab\nnode: pve1\napi_endpoint: {}  # over there\ndatastore: local\n",
            simulator.url
        ),
    );
    env.secrets(&format!(
        "api_tokens:\n  lab: {}\nssh_keys:\n  ops@desk: ssh-ed25519 AAAA ops@desk\n",
        simulator.token
    ));
    (env, simulator)
}

#[test]
fn an_untrusted_host_is_not_contacted() {
    let (env, _simulator) = untrusted_host();
    let shown = env.on_site(&["host", "show", "lab"]);
    assert_eq!(shown.code, 1);
    assert!(
        shown.err.contains("homestak host trust lab"),
        "{}",
        shown.err
    );
    let refused = env.with_input(&["host", "trust", "lab"], "");
    assert_eq!(refused.code, 3, "without a terminal the answer is no");
    assert!(
        !std::fs::read_to_string(env.site().join("nodes/lab.yaml"))
            .unwrap()
            .contains("fingerprint")
    );
}

#[test]
fn trusting_a_host_keeps_comments_and_host_show_reports_its_version() {
    let (env, _simulator) = untrusted_host();
    env.on_site(&["host", "trust", "lab", "--yes", "--json-output"])
        .good();
    let text = std::fs::read_to_string(env.site().join("nodes/lab.yaml")).unwrap();
    assert!(
        text.starts_with("# the lab\n")
            && text.contains("# over there")
            && text.contains("fingerprint:"),
        "{text}"
    );
    let json = env
        .on_site(&["host", "show", "lab", "--json-output"])
        .json();
    assert!(
        json["says"]["product"]
            .as_str()
            .unwrap()
            .starts_with("Proxmox VE 9"),
        "{json}"
    );
    assert_eq!(json["says"]["hosts"][0]["name"], "pve1");
    let again = env.on_site(&["host", "trust", "lab"]);
    assert!(again.err.contains("Already recorded"), "{}", again.err);
}

#[test]
fn a_certificate_other_than_the_recorded_one_is_refused() {
    let (env, _simulator) = untrusted_host();
    env.on_site(&["host", "trust", "lab", "--yes"]).good();
    let path = env.site().join("nodes/lab.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let key = text.find("fingerprint: ").unwrap() + "fingerprint: ".len();
    let at = key + usize::from(text[key..].starts_with('"'));
    let first = if text[at..].starts_with("00") {
        "11"
    } else {
        "00"
    };
    std::fs::write(&path, format!("{}{first}{}", &text[..at], &text[at + 2..])).unwrap();
    let shown = env.on_site(&["host", "show", "lab"]);
    assert_eq!(shown.code, 1);
    assert!(shown.err.contains("not the recorded one"), "{}", shown.err);
    assert!(shown.err.contains("host trust lab shows"), "{}", shown.err);
}

#[test]
fn preflight_reports_what_is_missing_with_a_command_to_fix_it() {
    let (env, _simulator) = untrusted_host();
    env.on_site(&["host", "trust", "lab", "--yes"]).good();
    let run = env.on_site(&[
        "host",
        "preflight",
        "lab",
        "-M",
        "n2-tiered",
        "--json-output",
    ]);
    assert_eq!(run.code, 1);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let findings = json["findings"].as_array().unwrap();
    let image = findings
        .iter()
        .find(|finding| finding["check"] == "image")
        .unwrap();
    assert_eq!(image["outcome"], "failure");
    assert!(
        image["fix"].as_str().unwrap().contains("pvesh create"),
        "{image}"
    );
    assert!(
        findings
            .iter()
            .any(|finding| finding["check"] == "privileges" && finding["outcome"] == "good")
    );
    assert!(
        findings
            .iter()
            .any(|finding| finding["check"] == "nested" && finding["outcome"] != "good"),
        "unknown is not good"
    );
}

#[test]
fn an_image_that_apply_downloads_does_not_fail_preflight() {
    let (env, _simulator) = untrusted_host();
    env.on_site(&["host", "trust", "lab", "--yes"]).good();
    let arguments = ["host", "preflight", "lab", "-M", "n1-push", "--json-output"];
    let json = env.on_site(&arguments).json();
    let findings = json["findings"].as_array().unwrap();
    let image = findings.iter().find(|finding| finding["check"] == "image");
    let image = image.unwrap();
    assert_eq!(image["outcome"], "good", "{image}");
    let detail = image["detail"].as_str().unwrap();
    assert!(
        detail.contains("apply downloads it from https://"),
        "{image}"
    );
}

#[test]
fn host_role_prints_the_minimal_role_and_which_versions_were_tested() {
    let env = TestEnv::new();
    let nine = env.on_site(&["host", "role", "father"]);
    assert!(
        nine.out.contains("VM.GuestAgent.Audit") && nine.out.contains("/storage/local-zfs"),
        "{}",
        nine.out
    );
    assert!(!nine.err.contains("only those for version 9"));
    let eight = env.on_site(&["host", "role", "--pve-version", "8"]);
    assert!(
        eight.out.contains("VM.Monitor") && eight.err.contains("only those for version 9"),
        "{}",
        eight.out
    );
}

/// Runs the printed commands as root on the host, and returns the token.
fn run_on_host(
    host: &homestak_sim::World,
    ask: impl Fn(Request) -> Answer,
    lines: &[&str],
) -> String {
    let mut granted = String::new();
    for line in lines {
        let words: Vec<&str> = line
            .split(' ')
            .map(|word| word.trim_matches('\''))
            .collect();
        let request = match words[..] {
            ["pveum", "role", "add", role, "--privs", list] => Request::post("/access/roles")
                .with("roleid", role)
                .with("privs", list),
            ["pveum", "user", "add", user] => Request::post("/access/users").with("userid", user),
            [
                "pveum",
                "user",
                "token",
                "add",
                user,
                token,
                "--privsep",
                "1",
            ] => Request::post(&format!("/access/users/{user}/token/{token}")).with("privsep", 1),
            [
                "pveum",
                "acl",
                "modify",
                path,
                "--roles",
                role,
                "--users",
                user,
                "--tokens",
                token,
            ] => Request::put("/access/acl")
                .with("path", path)
                .with("roles", role)
                .with("users", user)
                .with("tokens", token),
            _ => panic!("{line}"),
        };
        let answer = ask(request);
        assert_eq!(answer.status, 200, "{line}: {}", answer.reason);
        if let Some(secret) = answer.data()["value"].as_str() {
            let id = answer.data()["full-tokenid"].as_str().unwrap();
            granted = format!("{id}={secret}");
        }
    }
    assert!(host.guests().is_empty());
    granted
}

#[test]
fn the_printed_role_is_sufficient_for_preflight_and_plan() {
    const ROOT: &str = "root@pam!t=secret";
    let env = TestEnv::new();
    let host = homestak_sim::World::builder()
        .host("lab")
        .token(ROOT)
        .build();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let served = runtime.block_on(homestak_sim::serve(host.clone(), address));
    env.write(
        "nodes/lab.yaml",
        &format!(
            "api_endpoint: {}\ndatastore: local\n",
            served.unwrap().url()
        ),
    );
    let json = env
        .on_site(&["host", "role", "lab", "--json-output"])
        .json();
    let lines = json["commands"].as_array().unwrap().clone();
    let lines: Vec<&str> = lines.iter().map(|line| line.as_str().unwrap()).collect();
    let ask = |request: Request| runtime.block_on(host.call(request.token(ROOT)));
    let token = run_on_host(&host, ask, &lines);
    env.secrets(&format!(
        "api_tokens:\n  lab: {token}\nssh_keys:\n  ops@desk: ssh-ed25519 AAAA ops@desk\n"
    ));
    env.on_site(&["host", "trust", "lab", "--yes"]).good();
    let check = ["host", "preflight", "lab", "-M", "n1-push"];
    env.on_site(&check).good();
    let plan = ["manifest", "plan", "-M", "n1-push", "-H", "lab"];
    let plan = env.on_site(&plan).good();
    assert!(plan.contains("create"), "{plan}");
}

#[test]
fn host_list_includes_local_and_sim() {
    let env = TestEnv::new();
    let json = env.on_site(&["host", "list", "--json-output"]).json();
    let names: Vec<_> = json["hosts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|host| host["name"].clone())
        .collect();
    assert_eq!(names, ["father", "local", "sim"]);
}

#[test]
fn every_listed_host_can_be_shown_and_checked() {
    let env = TestEnv::new();
    env.write(
        "hosts/attic.yaml",
        "host: attic\nip: 127.0.0.1\naccess:\n  ssh_port: 1\n",
    );
    let listed = env.on_site(&["host", "list", "--json-output"]).json();
    let listed = listed["hosts"].as_array().unwrap().clone();
    let names: Vec<&str> = listed
        .iter()
        .map(|host| host["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["father", "attic", "local", "sim"]);
    for name in names {
        let shown = env
            .on_site(&["host", "show", name, "--offline", "--json-output"])
            .json();
        assert_eq!(shown["name"], name);
    }
    for name in ["attic", "local", "sim"] {
        let shown = env.on_site(&["host", "show", name, "--json-output"]).json();
        assert!(shown["says"].is_object(), "{shown}");
        let run = env.on_site(&["host", "preflight", name, "--json-output"]);
        let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!(json["host"], name);
        assert!(!json["findings"].as_array().unwrap().is_empty(), "{json}");
    }
    let attic = env.on_site(&["host", "preflight", "attic"]);
    assert_eq!(attic.code, 1, "guests cannot be created there");
    assert!(
        attic.out.contains("127.0.0.1:1 does not answer"),
        "{}",
        attic.out
    );
    assert_eq!(env.on_site(&["host", "preflight", "sim"]).code, 0);
}

#[test]
fn a_hint_names_each_host_once() {
    let env = TestEnv::new();
    for arguments in [
        &["host", "show", "nosuchhost"][..],
        &["host", "preflight", "nosuchhost"],
        &["manifest", "plan", "-M", "n1-push", "-H", "nosuchhost"],
    ] {
        let run = env.on_site(arguments);
        assert_eq!(run.err.matches("father").count(), 1, "{}", run.err);
        assert!(
            run.err.contains("local") && run.err.contains("sim"),
            "{}",
            run.err
        );
    }
}

#[test]
fn role_and_trust_refuse_a_host_of_another_kind() {
    let env = TestEnv::new();
    env.write(
        "nodes/plain.yaml",
        "kind: ssh\napi_endpoint: https://127.0.0.1:1\n",
    );
    for command in ["role", "trust"] {
        let run = env.on_site(&["host", command, "plain"]);
        assert_eq!(run.code, 3, "{}", run.err);
        assert!(run.err.contains("is of the kind `ssh`"), "{}", run.err);
    }
}

#[test]
fn the_simulator_listens_on_loopback_only() {
    let run = TestEnv::without_site().run(&["sim", "serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(run.code, 3);
}
