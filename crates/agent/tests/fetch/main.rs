//! Fetching specs from a server.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic"
)]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use homestak_test_support::run::Run;
use homestak_test_support::server::{Answer, Server};
use serde_json::{Value, json};

const TOKEN: &str = "payload.signature-that-is-secret";

fn spec(name: &str) -> String {
    json!({ "schema_version": 1, "identity": { "hostname": name }, "access": { "posture": "dev", "_posture": { "auth": { "method": "network" } } } })
        .to_string()
}

fn good() -> Answer {
    Answer::Says(200, spec("web"))
}

fn refusal(status: u16, code: &str) -> Answer {
    let error = json!({ "error": { "code": code, "message": "so it is" } });
    Answer::Says(status, error.to_string())
}

/// Runs the agent with exactly this environment.
fn run(words: &[&str], environment: &[(&str, &str)], input: &str) -> Run {
    run_in(Path::new("/"), words, environment, input)
}

/// The same in a directory.
fn run_in(directory: &Path, words: &[&str], environment: &[(&str, &str)], input: &str) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_homestak-agent"))
        .args(words)
        .current_dir(directory)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let run = Run::from(output);
    assert!(!run.err.contains(TOKEN) && !run.out.contains(TOKEN));
    run
}

/// Fetches the spec of `web` from a server, with more arguments.
fn fetch(server: &Server, more: &[&str]) -> Run {
    let url = server.url();
    let mut words = vec!["spec", "get", "-o", "-", "-i", "web", "--wait", "0"];
    words.extend(["--server", &url, "--fingerprint", &server.fingerprint]);
    words.extend(more);
    run(&words, &[("HOMESTAK_TOKEN", TOKEN)], "")
}

#[test]
fn a_spec_is_fetched_from_a_server_whose_certificate_is_known() {
    let server = Server::new(vec![good()]);
    let got = fetch(&server, &[]);
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(got.out.trim(), spec("web"));
    let asked = server.asked();
    assert_eq!(asked.len(), 1);
    let head = asked[0].to_lowercase();
    assert!(head.starts_with("get /spec/web http/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("authorization: bearer {TOKEN}\r\n").to_lowercase()));
    assert!(head.contains("accept: application/json\r\n"));
}

#[test]
fn settings_come_from_the_environment_and_a_ca_certificate_is_trusted() {
    let server = Server::new(vec![good()]);
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca.pem");
    std::fs::write(&authority, &server.pem).unwrap();
    let output = directory.path().join("spec.yaml");
    let url = format!("{}/", server.url());
    let environment = [
        ("HOMESTAK_SERVER", url.as_str()),
        ("HOMESTAK_TOKEN", TOKEN),
        ("HOMESTAK_CA_CERT", authority.to_str().unwrap()),
    ];
    let output = output.to_str().unwrap();
    let words = [
        "config",
        "fetch",
        "-i",
        "web",
        "-o",
        output,
        "--json-output",
    ];
    let got = run(&words, &environment, "");
    assert_eq!(got.code, 0, "{}", got.err);
    let printed: Value = serde_json::from_str(&got.out).unwrap();
    assert_eq!(printed["success"], true);
    assert_eq!(printed["kind"], "config.fetch");
    assert_eq!(printed["spec"], "web");
    assert_eq!(std::fs::read_to_string(output).unwrap(), spec("web"));
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(output).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let valid = run(&["spec", "validate", output], &[], "");
    assert_eq!(valid.code, 0, "{}", valid.err);
}

#[test]
fn a_token_is_read_from_a_file_or_standard_input_or_an_argument_with_a_notice() {
    let server = Server::new(vec![good()]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let url = server.url();
    let common = ["spec", "get", "-o", "-", "-i", "web", "-s", &url];
    let trust = ["--fingerprint", &server.fingerprint];
    for (more, input) in [
        (["--token-file", file.to_str().unwrap()], ""),
        (["--token-file", "-"], TOKEN),
        (["-t", TOKEN], ""),
    ] {
        let words: Vec<&str> = common.iter().chain(&trust).chain(&more).copied().collect();
        let got = run(&words, &[], input);
        assert_eq!(got.code, 0, "{}", got.err);
        assert_eq!(got.err.contains("notice: a token"), more[0] == "-t");
    }
    assert_eq!(server.asked().len(), 3);
}

#[test]
fn an_untrusted_server_gets_no_request_and_no_second_attempt() {
    let server = Server::new(vec![good()]);
    let url = server.url();
    let other = "AB:".repeat(31) + "AB";
    let common = ["spec", "get", "-o", "-", "-i", "web", "-s", &url];
    for more in [&["--fingerprint", other.as_str()][..], &[]] {
        let words: Vec<&str> = common.iter().chain(more).copied().collect();
        let got = run(&words, &[("HOMESTAK_TOKEN", TOKEN)], "");
        assert_eq!(got.code, 2, "{}", got.err);
        assert!(got.err.contains("not trusted"), "{}", got.err);
        assert!(got.err.contains("--fingerprint"), "{}", got.err);
    }
    assert!(server.asked().is_empty());
}

#[test]
fn insecure_trusts_the_presented_certificate_with_a_notice() {
    let server = Server::new(vec![good()]);
    let url = server.url();
    let words = [
        "spec", "get", "-k", "-vvv", "-o", "-", "-i", "web", "-s", &url,
    ];
    let got = run(&words, &[("HOMESTAK_TOKEN", TOKEN)], "");
    assert_eq!(got.code, 0, "{}", got.err);
    assert!(got.err.contains(&server.fingerprint), "{}", got.err);
}

#[test]
fn an_unreachable_server_is_retried_with_insecure_too() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let late = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        Server::at(port, vec![good()])
    });
    let url = format!("https://localhost:{port}");
    let words = ["spec", "get", "-k", "-o", "-", "-i", "web", "-s", &url];
    let more = ["--wait", "1"];
    let words: Vec<&str> = words.iter().chain(&more).copied().collect();
    let got = run(&words, &[("HOMESTAK_TOKEN", TOKEN)], "");
    assert_eq!(got.code, 0, "{}", got.err);
    assert!(got.err.contains("retrying in 1 s"), "{}", got.err);
    late.join().unwrap();
}

#[test]
fn a_spec_is_written_to_the_output_or_the_command_fails() {
    let server = Server::new(vec![good()]);
    let directory = tempfile::tempdir().unwrap();
    let url = server.url();
    let get = |output: &str| {
        let words = ["spec", "get", "-i", "web", "-s", &url, "-o", output];
        let trust = ["--fingerprint", &server.fingerprint];
        let words: Vec<&str> = words.iter().chain(&trust).copied().collect();
        run_in(directory.path(), &words, &[("HOMESTAK_TOKEN", TOKEN)], "")
    };
    let got = get("spec.yaml");
    assert_eq!(got.code, 0, "{}", got.err);
    let written = std::fs::read_to_string(directory.path().join("spec.yaml")).unwrap();
    assert_eq!(written, spec("web"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    // A device is not replaced.
    assert_eq!(get("/dev/null").code, 0);
    let full = get("/dev/full");
    assert_eq!(full.code, 1, "{}", full.err);
    use std::os::unix::fs::FileTypeExt as _;
    let kind = std::fs::metadata("/dev/null").unwrap().file_type();
    assert!(kind.is_char_device());
}

#[test]
fn exit_codes_distinguish_client_server_and_spec_errors() {
    for (status, code, exit) in [
        (400, "E300", 1),
        (401, "E301", 1),
        (403, "E301", 2),
        (404, "E200", 2),
        (422, "E400", 3),
        (500, "E500", 2),
        (501, "", 2),
    ] {
        let server = Server::new(vec![refusal(status, code)]);
        let got = fetch(&server, &["--attempts", "1"]);
        assert_eq!(got.code, exit, "{status}: {}", got.err);
        assert!(got.err.contains(&format!("refused with {status}")));
        assert!(
            got.err.contains("so it is") && got.err.contains(code),
            "{}",
            got.err
        );
        assert!(got.out.is_empty());
    }
}

#[test]
fn config_fetch_has_exit_code_one_for_every_error() {
    let server = Server::new(vec![refusal(422, "E400")]);
    let url = server.url();
    let words = ["config", "fetch", "-o", "-", "-i", "web", "-s", &url];
    let trust = ["--fingerprint", &server.fingerprint];
    let words: Vec<&str> = words.iter().chain(&trust).copied().collect();
    let got = run(&words, &[("HOMESTAK_TOKEN", TOKEN)], "");
    assert_eq!(got.code, 1, "{}", got.err);
}

#[test]
fn transient_errors_are_retried_and_refusals_are_not() {
    let server = Server::new(vec![Answer::Gone, refusal(503, "E500"), good()]);
    let got = fetch(&server, &[]);
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(server.asked().len(), 3);
    assert!(got.err.contains("retrying in 0 s (attempt 2 of 5)"));

    let server = Server::new(vec![Answer::Gone]);
    let got = fetch(&server, &["--attempts", "3"]);
    assert_eq!(got.code, 2);
    assert!(
        got.err.contains("is unreachable after 3 attempts"),
        "{}",
        got.err
    );
    assert_eq!(server.asked().len(), 3);

    let server = Server::new(vec![refusal(404, "E200"), good()]);
    assert_eq!(fetch(&server, &[]).code, 2);
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn a_refused_connection_is_reported() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://127.0.0.1:{}", free.local_addr().unwrap().port());
    drop(free);
    let words = [
        "spec",
        "get",
        "-o",
        "-",
        "-i",
        "web",
        "-s",
        &url,
        "--attempts",
        "1",
    ];
    let got = run(&words, &[("HOMESTAK_TOKEN", TOKEN)], "");
    assert_eq!(got.code, 2);
    assert!(got.err.contains("refused"), "{}", got.err);
}

#[test]
fn missing_and_wrong_settings_are_reported_with_a_hint() {
    let token = [("HOMESTAK_TOKEN", TOKEN)];
    let two_words = [("HOMESTAK_TOKEN", "a b")];
    for (more, environment, what) in [
        ("", &token[..], "HOMESTAK_SERVER"),
        ("-s https://x", &[], "HOMESTAK_TOKEN"),
        ("-s https://x", &two_words, "not a single word"),
        ("-s https://x --token-file /nowhere", &[], "/nowhere"),
        ("-s http://x", &token, "https://HOST:44443"),
        ("-s https://a:b@x", &token, "https://HOST:44443"),
        ("-s https://x?y", &token, "https://HOST:44443"),
        ("-s https://x -i a/../b", &token, "--identity"),
        ("-s https://x -i ..", &token, "--identity"),
        ("-s https://x --ca-cert /nowhere", &token, "/nowhere"),
        ("-s https://x --fingerprint AB", &token, "hexadecimal"),
    ] {
        let words: Vec<&str> = ["spec", "get", "-o", "-"]
            .into_iter()
            .chain(more.split_whitespace())
            .collect();
        let got = run(&words, environment, "");
        assert_eq!(got.code, 1, "{more}: {}", got.err);
        assert!(got.err.contains(what), "{more}: {}", got.err);
        assert!(!got.err.contains("a:b"), "{}", got.err);
    }
}

#[test]
fn a_response_that_is_not_the_spec_of_this_machine_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("spec.yaml");
    let huge = "x".repeat((16 << 20) + 1);
    for (answer, why) in [
        (Answer::Says(200, "<html>".to_owned()), "is not a spec"),
        (
            Answer::Says(200, "{\"schema_version\": 1, \"acces\": {}}".to_owned()),
            "acces",
        ),
        (Answer::Says(200, spec("db")), "the spec of `db`"),
        (Answer::Says(200, huge), "larger than 16 MiB"),
        (
            Answer::Redirect("https://localhost:1/".to_owned()),
            "refused with 302",
        ),
    ] {
        let server = Server::new(vec![answer]);
        let url = server.url();
        let words = [
            "spec",
            "get",
            "-i",
            "web",
            "-s",
            &url,
            "-o",
            output.to_str().unwrap(),
        ];
        let trust = ["--fingerprint", &server.fingerprint];
        let words: Vec<&str> = words.iter().chain(&trust).copied().collect();
        let got = run(&words, &[("HOMESTAK_TOKEN", TOKEN)], "");
        assert_eq!(got.code, 2, "{}", got.err);
        assert!(got.err.contains(why), "{}", got.err);
        assert!(!output.exists());
    }
}
