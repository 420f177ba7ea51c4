//! What the process that listens knows of the secrets of a site, and what it does with those that
//! it has when they cannot be opened.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::server::Site;

/// How much memory is read at once.
const BLOCK: usize = 1 << 20;

/// A site with sealed secrets. Only commands that get the identity can open them.
struct SealedSite {
    site: Site,
    identity: String,
}

impl SealedSite {
    fn new() -> Self {
        let site = Site::new();
        site.env.run(&["secrets", "keygen"]).good();
        site.env.on_site(&["secrets", "encrypt"]).good();
        std::fs::remove_file(site.env.site().join("secrets.yaml")).unwrap();
        let file = site.env.home().join(".config/sops/age/keys.txt");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(file).unwrap();
        let mut lines = text.lines();
        let identity = lines.find(|line| line.starts_with("AGE-SECRET-KEY-"));
        let identity = identity.unwrap().to_owned();
        Self { site, identity }
    }

    /// Returns a command that can open the secrets.
    fn command(&self, line: &str) -> Command {
        let mut command = self.site.command(line);
        command.env("SOPS_AGE_KEY", &self.identity);
        command
    }

    fn run(&self, line: &str) -> crate::support::Run {
        crate::support::Run::of(&mut self.command(line))
    }

    /// Returns the directory of the site in a directory of the state directory.
    fn state(&self, name: &str) -> PathBuf {
        let directory = self.site.env.work().join("state").join(name);
        let mut entries = std::fs::read_dir(directory).unwrap();
        entries.next().unwrap().unwrap().path()
    }

    fn published(&self) -> Value {
        let file = self.state("server").join("published/secrets.json");
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    }

    /// Returns what only the driver may know, with names.
    fn secrets(&self) -> Vec<(String, Vec<u8>)> {
        let mut secrets = vec![
            ("age identity".to_owned(), self.identity.clone().into()),
            ("host token".to_owned(), b"token-value".to_vec()),
            ("password".to_owned(), b"$6$salt$hash-value".to_vec()),
        ];
        let keys = self.state("site-keys");
        // PKCS #8 of Ed25519: the seed is behind 16 bytes.
        let site_key = std::fs::read(keys.join("site.key")).unwrap();
        secrets.push(("site key".to_owned(), site_key[16..48].to_vec()));
        for name in ["authority", "operator"] {
            let text = std::fs::read_to_string(keys.join(format!("{name}.json"))).unwrap();
            let text = text.replace("\\n", "\n");
            let pem = text.split("PRIVATE KEY-----").nth(1).unwrap();
            let lines: Vec<&str> = pem.lines().filter(|line| line.len() > 20).collect();
            let engine = base64::engine::general_purpose::STANDARD;
            let mut all: String = lines.concat();
            all.retain(|letter| letter.is_ascii_alphanumeric() || "+/=".contains(letter));
            let der = engine.decode(all).unwrap();
            // PKCS #8 of P-256: the number is behind 36 bytes.
            secrets.push((format!("{name} key"), der[36..68].to_vec()));
            secrets.push((format!("{name} key in PEM"), lines[0].into()));
        }
        secrets
    }

    /// Fails if a process knows more than what is published.
    fn check(&self, pid: u32, when: &str) {
        let path = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
        let line = std::fs::read(path("cmdline")).unwrap();
        let environment = std::fs::read(path("environ")).unwrap();
        let secrets = self.secrets();
        let mut known: Vec<String> = Vec::new();
        let mut note = |name: &str, place: &str, is_known: bool| {
            if is_known {
                known.push(format!("{name} in its {place}"));
            }
        };
        for (name, secret) in &secrets {
            note(name, "command line", contains(&line, secret));
            note(name, "environment", contains(&environment, secret));
        }
        let mut wanted: Vec<&[u8]> = secrets.iter().map(|(_, secret)| &secret[..]).collect();
        // What is in memory for certain shows that the memory is read.
        wanted.push(b"--foreground");
        match found_in_memory(&path("maps"), &path("mem"), &wanted) {
            None => println!("the memory of another process cannot be read here"),
            Some(found) => {
                let (was_read, found) = found.split_last().unwrap();
                assert!(was_read, "{when}: the memory was not read");
                for ((name, _), found) in secrets.iter().zip(found) {
                    note(name, "memory", *found);
                }
            }
        }
        assert!(known.is_empty(), "{when}: it has the {known:#?}");
        let mut words = line.split(|byte| *byte == 0);
        assert!(words.any(|word| word == b"--published"), "{when}");
    }
}

impl Drop for SealedSite {
    fn drop(&mut self) {
        let stop = format!("server stop --port {}", self.site.port);
        self.site.run(&stop);
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Returns which of these are in the memory of a process; `None` if it cannot be read.
fn found_in_memory(maps: &Path, memory: &Path, wanted: &[&[u8]]) -> Option<Vec<bool>> {
    let maps = std::fs::read_to_string(maps).ok()?;
    let memory = match File::open(memory) {
        Err(_) if !rustix::process::geteuid().is_root() => return None,
        opened => opened.unwrap(),
    };
    let mut found = vec![false; wanted.len()];
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // What can be written; the program itself has no secrets.
        if !words[1].starts_with("rw") {
            continue;
        }
        let (start, end) = words[0].split_once('-').unwrap();
        let parse = |text| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = (parse(start), parse(end));
        let mut region = vec![0; usize::try_from(end - start).unwrap()];
        for (index, block) in region.chunks_mut(BLOCK).enumerate() {
            // Pages without memory cannot be read, and are zeros.
            _ = memory.read_exact_at(block, start + (index * BLOCK) as u64);
        }
        for (found, wanted) in found.iter_mut().zip(wanted) {
            *found = *found || memmem(&region, wanted);
        }
    }
    Some(found)
}

/// As [`contains`], for long texts: candidates are found by their first byte.
fn memmem(mut text: &[u8], part: &[u8]) -> bool {
    while let Some(at) = text.iter().position(|byte| *byte == part[0]) {
        text = &text[at..];
        if text.starts_with(part) {
            return true;
        }
        text = &text[1..];
    }
    false
}

/// Has a server reload, and waits until it has read what was published for it.
fn hang_up(pid: u32, log: &Path) {
    let text = || std::fs::read_to_string(log).unwrap();
    let before = text().len();
    let process = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(process, Signal::HUP).unwrap();
    for _ in 0..200 {
        if text()[before..].contains("published again") {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("it did not reload: {}", text());
}

/// A process that ends with the test.
struct Foreground(Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
fn a_server_in_the_background_knows_no_secret_but_what_is_published() {
    let sealed = SealedSite::new();
    let port = sealed.site.port;
    let started = sealed.run(&format!("server start --port {port} --json"));
    let started: Value = serde_json::from_str(&started.good()).unwrap();
    let pid = u32::try_from(started["pid"].as_u64().unwrap()).unwrap();
    sealed.check(pid, "after the start");
    let log = sealed
        .site
        .env
        .work()
        .join(format!("state/server-{port}.log"));
    let published = sealed.published()["signing_key"].clone();
    assert!(published.is_string(), "{published}");
    hang_up(pid, &log);
    sealed.check(pid, "after a reload");
    assert_eq!(sealed.published()["signing_key"], published);
}

#[test]
fn a_server_in_the_foreground_knows_no_secret_but_what_is_published() {
    let sealed = SealedSite::new();
    let log = sealed.site.env.work().join("stderr");
    let port = sealed.site.port;
    let line = format!("server start --foreground --json --port {port}");
    let mut command = sealed.command(&line);
    command.stdout(Stdio::piped());
    command.stderr(File::create(&log).unwrap());
    let mut server = Foreground(command.spawn().unwrap());
    // It prints where it listens once it does.
    let mut printed =
        serde_json::Deserializer::from_reader(server.0.stdout.take().unwrap()).into_iter::<Value>();
    let started = printed.next().unwrap().unwrap();
    assert_eq!(started["url"], format!("https://127.0.0.1:{port}"));
    let authority = started["authority_file"].as_str().unwrap();
    assert!(authority.ends_with("authority.pem"), "{authority}");
    sealed.check(server.0.id(), "after the start");
    hang_up(server.0.id(), &log);
    sealed.check(server.0.id(), "after a reload");
    assert_eq!(sealed.site.status().0, 0);
}

#[test]
fn what_is_published_of_the_secrets_stays_when_they_cannot_be_opened() {
    let sealed = SealedSite::new();
    let unopened = "the secrets of this site cannot be read";
    let first = sealed.site.run("server publish");
    assert_eq!(first.code, 0, "{}", first.err);
    assert_eq!(sealed.published()["signing_key"], Value::Null);
    let known = sealed.run("server publish");
    assert_eq!(known.code, 0, "{}", known.err);
    assert!(!known.err.contains(unopened), "{}", known.err);
    let key = sealed.published()["signing_key"].clone();
    assert!(key.as_str().is_some_and(|key| key.len() == 64), "{key}");
    for line in ["server publish", "node list"] {
        let run = sealed.site.run(line);
        assert_eq!(run.code, 0, "{line}: {}", run.err);
        assert_eq!(sealed.published()["signing_key"], key, "{line}");
        assert!(run.err.contains(unopened), "{line}: {}", run.err);
    }
    assert!(first.err.contains(unopened), "{}", first.err);
    // A key that the site does not have any more is removed.
    std::fs::remove_file(sealed.site.env.site().join("secrets.yaml.enc")).unwrap();
    sealed.site.run("server publish").good();
    assert_eq!(sealed.published()["signing_key"], Value::Null);
}

#[test]
fn a_server_in_the_foreground_notifies_systemd_for_as_long_as_it_works() {
    let sealed = SealedSite::new();
    let path = sealed.site.env.work().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let line = format!("server start --foreground --port {}", sealed.site.port);
    let mut command = sealed.command(&line);
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "1000000");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Foreground(command.spawn().unwrap());
    let received = || {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    assert_eq!(received(), "READY=1");
    // One is sent without asking the loop that accepts connections, the others with its answer.
    for _ in 0..4 {
        assert_eq!(received(), "WATCHDOG=1");
    }
}
