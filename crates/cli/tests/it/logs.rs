//! The log: destination, content at each level, and no secrets.

use std::os::unix::fs::MetadataExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::server::Site;
use crate::support::{Run, TestEnv, mode};

const SECRETS: [&str; 4] = [
    "token-value",
    "hash-value",
    "AAAAkeyvalue",
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
];

fn command(env: &TestEnv, arguments: &[&str]) -> std::process::Command {
    let mut command = env.command(arguments);
    command
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_SIM_SPEED", "200");
    command
}

fn run(env: &TestEnv, arguments: &[&str]) -> Run {
    Run::of(&mut command(env, arguments))
}

/// Returns a value as it appears in text, and in base64 at each position within three bytes.
fn forms(value: &str) -> Vec<String> {
    let encoded = (0..3).map(|before| {
        let text = STANDARD_NO_PAD.encode("x".repeat(before) + value);
        let end = (before + value.len()) * 8 / 6;
        text[(before * 8).div_ceil(6)..end].to_owned()
    });
    std::iter::once(value.to_owned()).chain(encoded).collect()
}

fn assert_no_secret(text: &str, arguments: &[&str]) {
    for form in SECRETS.iter().flat_map(|value| forms(value)) {
        assert!(!text.contains(&form), "{arguments:?} logs {form}:\n{text}");
    }
}

#[test]
fn base64_forms_are_found_at_every_position() {
    for before in ["", "a", "ab", "abc"] {
        let text = STANDARD_NO_PAD.encode(format!("{before}token-value: more"));
        assert!(forms("token-value").iter().any(|form| text.contains(form)));
    }
}

#[test]
fn no_secret_is_logged_at_any_level() {
    let env = TestEnv::new();
    let on_sim = ["-M", "n2-tiered", "-H", "sim"];
    let of_sim = |verb: &'static str, more: &[&'static str]| {
        [&["manifest", verb], &on_sim[..], more].concat()
    };
    let commands = [
        vec!["secrets", "keygen"],
        vec!["site", "validate"],
        vec!["manifest", "show", "n1-push", "--node", "edge", "--origin"],
        vec!["spec", "show", "base", "--origin"],
        vec!["resolve", "tofu", "-M", "n1-push", "-H", "father"],
        vec!["token", "mint", "edge", "base"],
        vec!["secrets", "get", "api_tokens.father"],
        vec!["secrets", "encrypt"],
        vec!["secrets", "decrypt", "--force"],
        vec!["host", "preflight", "father"],
        of_sim("apply", &["--yes"]),
        of_sim("status", &[]),
        of_sim("destroy", &["--yes"]),
        of_sim("apply", &["--yes"]),
        of_sim("rollback", &["--yes"]),
    ];
    let file = env.work().join("all.log");
    let mut on_stderr = String::new();
    for (at, arguments) in commands.iter().enumerate() {
        // The first apply logs to the file, the second to stderr.
        let to_file: &[&str] = if at % 2 == 0 {
            &["--log-file", "all.log"]
        } else {
            &[]
        };
        let shown = run(&env, &[&arguments[..], &["-vvv"], to_file].concat());
        assert_no_secret(&shown.err, arguments);
        on_stderr += &shown.err;
    }
    run(&env, &["sim", "stop"]).good();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_no_secret(&text, &["all.log"]);
    for part in [" INFO ", "DEBUG ", "TRACE ", "step finished", "planned"] {
        assert!(text.contains(part), "{part} is not in the log:\n{text}");
        assert!(
            on_stderr.contains(part),
            "{part} is not on stderr:\n{on_stderr}"
        );
    }
    assert_eq!(mode(&file), 0o600);
    for line in text.lines() {
        assert!(line.contains(" homestak"), "not of this workspace: {line}");
    }
}

#[test]
fn each_finished_step_is_a_line_at_info_with_its_run_and_node() {
    let env = TestEnv::new();
    let apply = ["manifest", "apply", "-M", "n1-push", "-H", "sim"];
    let logged = run(&env, &[&apply[..], &["-v", "--events"]].concat());
    run(&env, &["sim", "stop"]).good();
    let done = logged.out.matches("\"event\":\"step-done\"").count();
    assert!(done > 0, "{}", logged.out);
    assert_eq!(logged.err.matches("step finished").count(), done);
    let span = "run{id=1 verb=\"apply\" manifest=\"n1-push\"}:step{node=edge kind=\"create\"";
    assert!(logged.err.contains(span), "{}", logged.err);
    assert!(!logged.err.contains("DEBUG"), "{}", logged.err);
}

#[test]
fn a_log_file_does_not_change_stderr() {
    let env = TestEnv::new();
    let show = ["site", "show"];
    let plain = run(&env, &show);
    let logged = run(&env, &[&show[..], &["--log-file", "show.log"]].concat());
    assert_eq!((plain.out, plain.err), (logged.out, logged.err));
    let text = std::fs::read_to_string(env.work().join("show.log")).unwrap();
    assert!(
        text.contains("site: site ($HOMESTAK_SITE_CONFIG)"),
        "{text}"
    );
    let refused = run(&env, &["site", "show", "--log-file", "no/such/dir.log"]);
    assert_eq!(refused.code, 2);
    assert!(
        refused.err.contains("Cannot open the log file"),
        "{}",
        refused.err
    );
}

#[test]
fn under_systemd_lines_have_a_priority_and_no_time() {
    let env = TestEnv::new();
    let path = env.work().join("stderr");
    let file = std::fs::File::create(&path).unwrap();
    let meta = file.metadata().unwrap();
    let stream = format!("{}:{}", meta.dev(), meta.ino());
    let mut shown = command(&env, &["site", "show", "-v"]);
    let status = shown.env("JOURNAL_STREAM", stream).stderr(file).status();
    assert!(status.unwrap().success());
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.starts_with("<6>INFO homestak"), "{text}");
    // A stream of another process.
    let elsewhere = command(&env, &["site", "show", "-v"])
        .env("JOURNAL_STREAM", "1:2")
        .output()
        .map(Run::from)
        .unwrap();
    assert!(elsewhere.err.starts_with("20"), "{}", elsewhere.err);
}

/// A server that ends with the test, also when an assertion fails.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
fn a_server_under_systemd_logs_each_request_with_its_span_and_without_secrets() {
    let site = Site::new();
    let path = site.env.work().join("stderr");
    let file = std::fs::File::create(&path).unwrap();
    let meta = file.metadata().unwrap();
    let stream = format!("{}:{}", meta.dev(), meta.ino());
    let port = site.port;
    let start = format!("server start --foreground --port {port} -vvv");
    let mut command = site.command(&start);
    command.env("JOURNAL_STREAM", stream).stderr(file);
    let mut server = Server(command.spawn().unwrap());
    while site.status().0 != 0 {
        assert!(server.0.try_wait().unwrap().is_none(), "it ended");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    site.run("node list").good();
    let token = site.run("token mint edge base").good();
    let refused = site.run("token revoke no-such");
    assert_eq!(refused.code, 1, "{}", refused.err);
    let process = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    server.0.wait().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    for line in [
        "<7>DEBUG request{method=\"GET\" route=\"/v1/nodes\" caller=operator ",
        "<6>INFO request{method=\"POST\" route=\"/v1/tokens/{id}/revoke\" caller=operator ",
    ] {
        let mut lines = text.lines();
        assert!(lines.any(|found| found.starts_with(line)), "{line}\n{text}");
    }
    assert_no_secret(&text, &["server"]);
    assert!(!text.contains(token.trim()), "{text}");
    // The keys of the site and of its certificates.
    let mut directories = vec![site.env.work().join("state")];
    let mut keys = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let file = std::fs::read(path).unwrap();
            let file = String::from_utf8_lossy(&file).replace("\\n", "\n");
            for key in file.split("PRIVATE KEY-----").skip(1).step_by(2) {
                keys += 1;
                for line in key.lines().filter(|line| line.len() > 20) {
                    assert!(!text.contains(line), "{line}\n{text}");
                }
            }
        }
    }
    assert!(keys > 0, "the site has keys");
}
