//! Fetching specs from a server.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic"
)]

mod kinds;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use homestak_test_support::run::Run;
use homestak_test_support::server::{Response, Server};
use serde_json::{Value, json};

const TOKEN: &str = "payload.signature-that-is-secret";

fn spec(name: &str) -> String {
    json!({ "schema_version": 1, "identity": { "hostname": name }, "access": { "posture": "dev", "_posture": { "auth": { "method": "network" } } } })
        .to_string()
}

fn good() -> Response {
    Response::Reply(200, spec("web"))
}

fn refusal(status: u16, code: &str) -> Response {
    let error = json!({ "error": { "code": code, "message": "so it is" } });
    Response::Reply(status, error.to_string())
}

/// Runs the agent with exactly this environment.
fn run(words: &[&str], environment: &[(&str, &str)], input: &str) -> Run {
    run_in(Path::new("/"), words, environment, input)
}

/// The same in a directory.
fn run_in(directory: &Path, words: &[&str], environment: &[(&str, &str)], input: &str) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homestak-agent"));
    let mut child = command
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
    let run = Run::of_output(&command, output);
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
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    let head = requests[0].to_lowercase();
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
fn variables_of_earlier_versions_are_read_with_a_notice_and_newer_ones_win() {
    let server = Server::new(vec![good()]);
    let url = server.url();
    let older = [
        ("HOMESTAK_SPEC_SERVER", url.as_str()),
        ("HOMESTAK_IDENTITY", "web"),
        ("HOMESTAK_AUTH_TOKEN", TOKEN),
        ("HOMESTAK_FINGERPRINT", server.fingerprint.as_str()),
    ];
    let got = run(&["spec", "get", "-o", "-"], &older, "");
    assert_eq!(got.code, 0, "{}", got.err);
    for name in ["HOMESTAK_SPEC_SERVER", "HOMESTAK_AUTH_TOKEN"] {
        assert!(got.err.contains(&format!("notice: {name}")), "{}", got.err);
    }
    let newer = [("HOMESTAK_SERVER", url.as_str()), ("HOMESTAK_TOKEN", TOKEN)];
    let wrong = [
        ("HOMESTAK_SPEC_SERVER", "https://127.0.0.1:1"),
        ("HOMESTAK_AUTH_TOKEN", "a b"),
    ];
    let both = [&newer[..], &wrong, &older[1..2], &older[3..]].concat();
    let got = run(&["spec", "get", "-o", "-"], &both, "");
    assert_eq!(got.code, 0, "{}", got.err);
    assert!(!got.err.contains("notice"), "{}", got.err);
}

#[test]
fn each_older_variable_is_read_on_its_own_and_an_empty_newer_one_does_not_count() {
    let server = Server::new(vec![good()]);
    let url = server.url();
    let always = [
        ("HOMESTAK_IDENTITY", "web"),
        ("HOMESTAK_FINGERPRINT", server.fingerprint.as_str()),
    ];
    let notices = ["HOMESTAK_SPEC_SERVER", "HOMESTAK_AUTH_TOKEN"];
    for (address, token, expected) in [
        ("HOMESTAK_SERVER", "HOMESTAK_TOKEN", [false, false]),
        ("HOMESTAK_SPEC_SERVER", "HOMESTAK_TOKEN", [true, false]),
        ("HOMESTAK_SERVER", "HOMESTAK_AUTH_TOKEN", [false, true]),
        ("HOMESTAK_SPEC_SERVER", "HOMESTAK_AUTH_TOKEN", [true, true]),
    ] {
        // The last value of a variable counts.
        let empty = [("HOMESTAK_SERVER", ""), ("HOMESTAK_TOKEN", "")];
        let used = [(address, url.as_str()), (token, TOKEN)];
        let environment = [&empty[..], &used, &always].concat();
        for command in [["spec", "get"], ["config", "fetch"]] {
            let words = [&command[..], &["-o", "-"]].concat();
            let got = run(&words, &environment, "");
            assert_eq!(got.code, 0, "{address} {token}: {}", got.err);
            let found = notices.map(|name| got.err.contains(&format!("notice: {name} is")));
            assert_eq!(found, expected, "{}", got.err);
            // Nodes export it, so it is no older name.
            assert!(!got.err.contains("HOMESTAK_IDENTITY"), "{}", got.err);
        }
    }
    // The name is used, and an argument takes precedence.
    for (more, path) in [(&[][..], "db"), (&["-i", "web"], "web")] {
        let environment = [
            ("HOMESTAK_SERVER", url.as_str()),
            ("HOMESTAK_TOKEN", TOKEN),
            ("HOMESTAK_IDENTITY", "db"),
            always[1],
        ];
        run(
            &[&["spec", "get", "-o", "-"], more].concat(),
            &environment,
            "",
        );
        let last = server.requests().pop().unwrap();
        assert!(last.starts_with(&format!("GET /spec/{path} ")), "{last}");
    }
}

#[test]
fn a_machine_whose_host_name_includes_its_domain_fetches_the_spec_of_its_node() {
    // Only root can have another host name than this machine.
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    if !is_root {
        return;
    }
    for name in ["web", "web.lab.example", "WEB.lab.example"] {
        let server = Server::new(vec![good()]);
        let script = "hostname \"$1\" && shift && exec \"$@\"";
        let agent = env!("CARGO_BIN_EXE_homestak-agent");
        let output = Command::new("unshare")
            .args(["--uts", "sh", "-c", script, "sh", name, agent])
            .args(["spec", "get", "-o", "-", "-s", &server.url()])
            .args(["--fingerprint", &server.fingerprint])
            .env("HOMESTAK_TOKEN", TOKEN)
            .env_remove("HOMESTAK_IDENTITY")
            .output()
            .unwrap();
        let got = Run::from(output);
        assert_eq!(got.code, 0, "{name}: {}", got.err);
        assert!(server.requests()[0].starts_with("GET /spec/web "), "{name}");
    }
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
    assert_eq!(server.requests().len(), 3);
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
    assert!(server.requests().is_empty());
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
    let server_thread = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        Server::on_port(port, vec![good()])
    });
    let url = format!("https://localhost:{port}");
    let words = ["spec", "get", "-k", "-o", "-", "-i", "web", "-s", &url];
    let more = ["--wait", "1"];
    let words: Vec<&str> = words.iter().chain(&more).copied().collect();
    let got = run(&words, &[("HOMESTAK_TOKEN", TOKEN)], "");
    assert_eq!(got.code, 0, "{}", got.err);
    assert!(got.err.contains("retrying in 1 s"), "{}", got.err);
    server_thread.join().unwrap();
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
    let server = Server::new(vec![Response::Disconnect, refusal(503, "E500"), good()]);
    let got = fetch(&server, &[]);
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(server.requests().len(), 3);
    assert!(got.err.contains("retrying in 0 s (attempt 2 of 5)"));

    let server = Server::new(vec![Response::Disconnect]);
    let got = fetch(&server, &["--attempts", "3"]);
    assert_eq!(got.code, 2);
    assert!(
        got.err.contains("is unreachable after 3 attempts"),
        "{}",
        got.err
    );
    assert_eq!(server.requests().len(), 3);

    let server = Server::new(vec![refusal(404, "E200"), good()]);
    assert_eq!(fetch(&server, &[]).code, 2);
    assert_eq!(server.requests().len(), 1);
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
        (Response::Reply(200, "<html>".to_owned()), "is not a spec"),
        (
            Response::Reply(200, "{\"schema_version\": 1, \"acces\": {}}".to_owned()),
            "acces",
        ),
        (Response::Reply(200, spec("db")), "the spec of `db`"),
        (Response::Reply(200, huge), "larger than 16 MiB"),
        (
            Response::Redirect("https://localhost:1/".to_owned()),
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

#[test]
fn a_command_whose_output_cannot_be_written_fails() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("spec.json");
    std::fs::write(&path, spec("web")).unwrap();
    let path = path.to_str().unwrap();
    for words in [
        &["spec", "validate", path, "--json-output"][..],
        &["--help"][..],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_homestak-agent"))
            .args(words)
            .stdout(std::fs::File::create("/dev/full").unwrap())
            .output();
        let run = output.map(Run::from).unwrap();
        assert_eq!(run.code, 1, "{}", run.err);
        assert!(run.err.contains("cannot write the output"), "{}", run.err);
    }
}
