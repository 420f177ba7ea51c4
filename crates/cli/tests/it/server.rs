//! The server of a site: started, shared and stopped by the commands that use it.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Run, TestEnv};

/// A site with a server on a port of its own.
pub(crate) struct Site {
    pub(crate) env: TestEnv,
    pub(crate) port: u16,
}

impl Site {
    pub(crate) fn new() -> Self {
        let env = TestEnv::new();
        // The port is free until someone else takes it, which a test that fails shows.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        std::fs::write(env.work().join("agent"), "program").unwrap();
        Self { env, port }
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let mut command = self.env.command(&arguments);
        command
            .env("HOMESTAK_SITE_CONFIG", "site")
            .env("HOMESTAK_STATE", self.env.work().join("state"))
            .env("HOMESTAK_AGENT", self.env.work().join("agent"))
            .env(
                "HOMESTAK_SERVER",
                format!("https://127.0.0.1:{}", self.port),
            );
        command
    }

    pub(crate) fn run(&self, line: &str) -> Run {
        Run::of(&mut self.command(line))
    }

    pub(crate) fn status(&self) -> (i32, Value) {
        let run = self.run(&format!("server status --json --port {}", self.port));
        (run.code, serde_json::from_str(&run.out).unwrap())
    }

    /// Returns the file on which users of the server hold locks.
    fn users(&self) -> PathBuf {
        let sites = self.env.work().join("state/server");
        let mut sites = std::fs::read_dir(sites).unwrap();
        sites.next().unwrap().unwrap().path().join("users.lock")
    }

    fn has_ended(&self) {
        for _ in 0..100 {
            if self.status().0 == 1 {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("it still runs: {:?}", self.status());
    }
}

#[test]
fn a_server_is_started_when_it_is_needed_and_ends_with_its_last_user() {
    let site = Site::new();
    assert_eq!(site.status().0, 1);
    let listed = site.run("node list --json-output").json();
    assert_eq!(listed["nodes"], serde_json::json!([]));
    site.has_ended();

    // Two users at once share one, and it stays as long as one of them is there.
    let user = std::fs::File::open(site.users()).unwrap();
    user.lock_shared().unwrap();
    site.run("node list").good();
    let (code, first) = site.status();
    assert_eq!(code, 0, "{first}");
    site.run("token list").good();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(site.status(), (0, first.clone()));

    // A server that died is started again by the next command that needs it.
    let pid = i32::try_from(first["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    site.run("node list").good();
    let (code, second) = site.status();
    assert_eq!(code, 0, "{second}");
    assert_ne!(second["pid"], first["pid"]);
    drop(user);
    site.has_ended();
}

#[test]
fn a_server_that_was_started_to_stay_is_used_and_stays() {
    let site = Site::new();
    let port = site.port;
    let started = site.run(&format!("server start --port {port} --json"));
    let started: Value = serde_json::from_str(&started.good()).unwrap();
    assert_eq!(started["started"], true);
    site.run("node list").good();
    std::thread::sleep(Duration::from_millis(2500));
    let (code, status) = site.status();
    assert_eq!((code, &status["pid"]), (0, &started["pid"]));
    site.run("server publish").good();
    let reloaded = site.run(&format!("server reload --port {port}"));
    assert_eq!(reloaded.code, 0, "{}", reloaded.err);
    site.run(&format!("server stop --port {port}")).good();
    assert_eq!(site.status().0, 1);
    let reloaded = site.run(&format!("server reload --port {port}"));
    assert_eq!(reloaded.code, 1, "{}", reloaded.err);
    let hint = "homestak server start starts it";
    assert!(reloaded.err.contains(hint), "{}", reloaded.err);
}

#[test]
fn the_log_of_a_server_in_the_background_is_the_file_that_is_selected() {
    let site = Site::new();
    let port = site.port;
    let wrong = site.run(&format!(
        "server start --port {port} --foreground --log a.log"
    ));
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    site.run(&format!("server start --port {port} --log logs/own.log"))
        .good();
    let log = site.env.work().join("logs/own.log");
    let text = std::fs::read_to_string(log).unwrap();
    assert!(text.contains("listening"), "{text}");
    let usual = format!("state/server-{port}.log");
    assert!(!site.env.work().join(usual).exists());
    site.run(&format!("server stop --port {port}")).good();
}

#[test]
fn a_server_of_a_run_is_replaced_by_one_that_stays() {
    let site = Site::new();
    site.run("node list").good();
    site.has_ended();
    let user = std::fs::File::open(site.users()).unwrap();
    user.lock_shared().unwrap();
    site.run("node list").good();
    let run = site.run(&format!("server start --port {}", site.port));
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.contains("this one stays"), "{}", run.err);
    drop(user);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(site.status().0, 0);
    site.run(&format!("server stop --port {}", site.port))
        .good();
}

#[test]
fn a_server_that_does_not_answer_elsewhere_is_an_error_and_none_is_started() {
    let site = Site::new();
    let run = site
        .command("node list")
        .env("HOMESTAK_SERVER", "https://127.0.0.1.invalid:44443")
        .output()
        .map(Run::from)
        .unwrap();
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(run.err.contains("does not answer"), "{}", run.err);
    let wrong = site
        .command("node list")
        .env("HOMESTAK_SERVER", "http://127.0.0.1:1")
        .output()
        .map(Run::from)
        .unwrap();
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert_eq!(site.status().0, 1);
}

#[test]
fn a_server_is_given_the_grace_of_its_own_settings() {
    let site = Site::new();
    let port = site.port;
    let settings = site.env.work().join("server.toml");
    let set =
        |grace: u32| std::fs::write(&settings, format!("[limits]\ngrace = {grace}\n")).unwrap();
    set(30);
    site.run(&format!(
        "server start --port {port} --settings server.toml"
    ))
    .good();
    let pid = site.env.work().join(format!("state/server-{port}.pid"));
    let recorded = || std::fs::read_to_string(&pid).unwrap();
    assert!(recorded().ends_with("\ngrace 30\n"), "{}", recorded());
    set(7);
    let reloaded = site.run(&format!("server reload --port {port}"));
    assert!(
        reloaded.out.contains("setting `limits`"),
        "{}",
        reloaded.out
    );
    assert!(recorded().ends_with("\ngrace 7\n"), "{}", recorded());
    site.run(&format!("server stop --port {port}")).good();
    assert!(!pid.exists());
}

#[test]
fn a_server_of_another_site_is_not_taken_for_that_of_this_one() {
    let (site, other) = (Site::new(), Site::new());
    let port = other.port;
    other.run(&format!("server start --port {port}")).good();
    let run = site.run(&format!("server status --port {port}"));
    assert_eq!(run.code, 2, "{}", run.out);
    assert!(
        run.out
            .contains("certificate is not one that this site knows"),
        "{}",
        run.out
    );
    let run = site.run(&format!("server stop --port {port}"));
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains("is not that of this site"), "{}", run.err);
    assert!(!run.err.contains("systemctl"), "{}", run.err);
    let lost = format!("`ss -ltnp sport = :{port}` shows the process");
    assert!(
        run.err.contains("state directory was lost") && run.err.contains(&lost),
        "{}",
        run.err
    );
    let run = site
        .command("server reload")
        .env("HOMESTAK_SERVER", format!("https://127.0.0.1:{port}"))
        .output()
        .map(Run::from)
        .unwrap();
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("a server answers at"), "{}", run.err);
    let run = site.run(&format!("server start --port {port}"));
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(
        run.err.contains("is used by another program"),
        "{}",
        run.err
    );
    assert!(run.err.contains("another site"), "{}", run.err);
    assert!(run.err.contains("HOMESTAK_SERVER="), "{}", run.err);
    assert_eq!(other.status().0, 0);
    other.run(&format!("server stop --port {port}")).good();
}

#[test]
fn a_server_listens_on_the_port_of_the_url_that_other_commands_use() {
    let site = Site::new();
    // The variable names a port of this machine.
    let started = site.run("server start --json").json();
    assert_eq!(
        started["port"].as_u64(),
        Some(u64::from(site.port)),
        "{started}"
    );
    let again = site.run("server start");
    assert_eq!(again.code, 0, "{}", again.err);
    let (code, status) = site.status();
    assert_eq!(code, 0, "{status}");
    site.run("server stop").good();
    assert_eq!(site.status().0, 1);
}

#[test]
fn stopping_removes_the_pid_file_of_a_server_that_was_killed() {
    let site = Site::new();
    let started = site.run("server start --json").json();
    let pid = i32::try_from(started["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    site.has_ended();
    let file = format!("state/server-{}.pid", site.port);
    let file = site.env.work().join(file);
    assert!(file.exists());
    let run = site.run("server stop");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.contains("is not running"), "{}", run.err);
    assert!(!file.exists());
}

#[test]
fn a_command_reports_that_it_waits_for_a_server_that_does_not_answer() {
    let site = Site::new();
    let started = site.run("server start --json").json();
    let pid = i32::try_from(started["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let mut command = site.command("node list");
    command.stderr(std::process::Stdio::piped());
    let mut listing = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let stderr = std::io::BufReader::new(listing.stderr.take().unwrap());
    let first = std::io::BufRead::lines(stderr).next().unwrap().unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let waiting = format!("Waiting for the server at https://127.0.0.1:{}.", site.port);
    assert_eq!(first, waiting);
    listing.wait().unwrap();
    site.run("server stop").good();
}

#[test]
fn a_run_that_was_killed_leaves_no_server_behind() {
    let site = Site::new();
    site.run("node list").good();
    site.has_ended();
    // A process that uses the server, as a run does, and is killed.
    let mut user = Command::new("flock")
        .arg("--shared")
        .arg(site.users())
        .args(["sleep", "60"])
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    site.run("node list").good();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(site.status().0, 0);
    // `flock` passes the lock on to the command that it runs.
    let children = format!("/proc/{0}/task/{0}/children", user.id());
    let child = std::fs::read_to_string(children).unwrap();
    for pid in [child.trim().parse().unwrap(), user.id().cast_signed()] {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    user.wait().unwrap();
    site.has_ended();
}

#[test]
fn a_server_may_open_as_many_files_as_the_system_allows() {
    let site = Site::new();
    let start = site.command(&format!("server start --json --port {}", site.port));
    let mut limited = Command::new("prlimit");
    limited.arg("--nofile=256:").arg(start.get_program());
    limited.args(start.get_args()).env_clear();
    limited.current_dir(start.get_current_dir().unwrap());
    for (name, value) in start.get_envs() {
        limited.env(name, value.unwrap_or_default());
    }
    let started = limited.output().map(Run::from).unwrap().json();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", started["pid"])).unwrap();
    site.run(&format!("server stop --port {}", site.port))
        .good();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let words: Vec<&str> = files.unwrap().split_whitespace().collect();
    assert_eq!(words[3], words[4], "{limits}");
    assert_ne!(words[3], "256", "{limits}");
}

#[test]
fn a_server_without_its_pid_file_is_not_mistaken_for_that_of_another_site() {
    let site = Site::new();
    let port = site.port;
    let started = site.run(&format!("server start --port {port} --json"));
    let started: Value = serde_json::from_str(&started.good()).unwrap();
    let file = site.env.work().join(format!("state/server-{port}.pid"));
    std::fs::remove_file(&file).unwrap();
    let run = site.run(&format!("server stop --port {port}"));
    assert_eq!(run.code, 3, "{}", run.err);
    assert!(run.err.contains("PID file was deleted"), "{}", run.err);
    let pid = i32::try_from(started["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    site.has_ended();
}

#[test]
fn a_server_in_the_background_needs_a_port_that_is_known() {
    let run = Site::new().run("server start --port 0");
    assert_eq!(run.code, 2, "{}", run.err);
    assert!(run.err.contains("`--foreground`"), "{}", run.err);
}

#[test]
fn errors_are_json_with_json_as_with_json_output() {
    let site = Site::new();
    std::fs::write(site.env.work().join("server.toml"), "port = 0\n").unwrap();
    for (line, code) in [
        ("server start --settings server.toml --json", 1),
        ("server status --json --wrong", 2),
    ] {
        let run = site.run(line);
        assert_eq!(run.code, code, "{line}: {}", run.err);
        let error: Value = serde_json::from_str(&run.out).unwrap();
        assert!(error.is_object(), "{line}: {}", run.out);
    }
    site.env.write("site.yaml", "schema_version: 2\nid: 17\n");
    let run = site.run("server status --json");
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(
        !run.out.is_empty() && !run.err.contains("The site's id"),
        "{}",
        run.err
    );
}
