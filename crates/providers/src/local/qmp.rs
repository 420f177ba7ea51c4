//! Clients of QEMU (QMP) and of the guest agent, as lines of JSON over Unix sockets.
//!
//! Scripts are sent as data, so that no secret appears in the arguments of a process.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};

/// Names of sockets in a node's directory.
pub(super) const QMP: &str = "qmp.sock";
pub(super) const AGENT: &str = "agent.sock";
pub(super) const SERIAL: &str = "serial.sock";

/// How long one answer may take. QEMU answers at once; an emulated machine that boots does not.
const PATIENCE: Duration = Duration::from_secs(10);
/// The polling interval for the end of a script.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Lines of JSON, both ways.
struct JsonStream {
    reader: BufReader<UnixStream>,
}

impl JsonStream {
    fn open(directory: &Path, socket: &str) -> std::io::Result<Self> {
        // Through a file descriptor: the path of a socket is limited to 107 bytes.
        let held = fs_err::File::open(directory)?;
        let short = format!("/proc/self/fd/{}/{socket}", held.file().as_raw_fd());
        let stream = UnixStream::connect(short)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    fn send(&mut self, value: &Json) -> std::io::Result<()> {
        let line = format!("{value}\n");
        self.reader.get_mut().write_all(line.as_bytes())
    }

    fn receive(&mut self) -> std::io::Result<Json> {
        let mut line = Vec::new();
        // Limits the memory that a misbehaving machine can use.
        let mut reader = (&mut self.reader).take(crate::ssh::MAX_OUTPUT as u64);
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        // The agent answers a flush with a byte that is no text.
        let start = line.iter().position(|byte| *byte != 0xff).unwrap_or(0);
        serde_json::from_slice(&line[start..]).map_err(std::io::Error::other)
    }

    /// Sends a command and returns the response; events are skipped.
    fn execute(&mut self, command: &str, arguments: &Json) -> std::io::Result<Json> {
        let mut call = json!({ "execute": command });
        if !arguments.is_null() {
            call["arguments"] = arguments.clone();
        }
        self.send(&call)?;
        loop {
            let mut answer = self.receive()?;
            if let Some(error) = answer.get("error") {
                let words = error["desc"].as_str().unwrap_or("it failed");
                return Err(std::io::Error::other(format!("{command}: {words}")));
            }
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
        }
    }
}

/// QEMU itself.
pub(super) struct Qmp(JsonStream);

impl Qmp {
    /// Connects to the QEMU of a node.
    pub(super) fn open(directory: &Path) -> std::io::Result<Self> {
        let mut lines = JsonStream::open(directory, QMP)?;
        lines.receive()?;
        lines.execute("qmp_capabilities", &Json::Null)?;
        Ok(Self(lines))
    }

    /// Executes a command.
    pub(super) fn execute(&mut self, command: &str, arguments: &Json) -> std::io::Result<Json> {
        self.0.execute(command, arguments)
    }

    /// Returns the run state of the machine, such as `running` or `inmigrate`.
    pub(super) fn status(&mut self) -> std::io::Result<String> {
        let answer = self.execute("query-status", &Json::Null)?;
        Ok(answer["status"].as_str().unwrap_or_default().to_owned())
    }
}

/// The agent inside the machine.
pub(super) struct GuestAgent(JsonStream);

impl GuestAgent {
    /// Connects, and synchronizes, so that responses belong to our requests.
    pub(super) fn open(directory: &Path) -> std::io::Result<Self> {
        let mut lines = JsonStream::open(directory, AGENT)?;
        let mark = u32::from_le_bytes(
            *uuid::Uuid::new_v4()
                .as_bytes()
                .first_chunk()
                .unwrap_or(&[7; 4]),
        );
        lines.send(&json!({ "execute": "guest-sync", "arguments": { "id": mark } }))?;
        loop {
            // Responses to earlier clients come first.
            if lines.receive()?["return"] == mark {
                return Ok(Self(lines));
            }
        }
    }

    /// Runs a script in the machine as root, and returns what it printed.
    pub(super) fn run(&mut self, script: &str, patience: Duration) -> std::io::Result<String> {
        let started = self.0.execute(
            "guest-exec",
            &json!({
                "path": "/bin/sh",
                "input-data": STANDARD.encode(script),
                "capture-output": true,
            }),
        )?;
        let pid = started["pid"].clone();
        let n_attempts = patience.as_millis() / POLL_INTERVAL.as_millis();
        for _ in 0..=n_attempts {
            let state = self
                .0
                .execute("guest-exec-status", &json!({ "pid": pid }))?;
            if state["exited"] != true {
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
            let text = |key: &str| {
                let data = state[key].as_str().unwrap_or_default();
                String::from_utf8_lossy(&STANDARD.decode(data).unwrap_or_default()).into_owned()
            };
            if state["exitcode"] == 0 {
                return Ok(text("out-data"));
            }
            let stderr = text("err-data");
            let last = stderr.trim().lines().last().unwrap_or("nothing").to_owned();
            return Err(std::io::Error::other(format!(
                "a script in the virtual machine failed: {last}"
            )));
        }
        Err(std::io::ErrorKind::TimedOut.into())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Serves one client with these answers, one for each line that comes.
    fn serve(directory: &Path, socket: &str, greeting: &str, answers: &[&str]) {
        let listener = UnixListener::bind(directory.join(socket)).expect("a socket");
        let greeting = greeting.to_owned();
        let answers: Vec<String> = answers.iter().map(ToString::to_string).collect();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            let mut reader = BufReader::new(stream.try_clone().expect("a copy"));
            let mut writer = stream;
            writer.write_all(greeting.as_bytes()).expect("sent");
            for answer in answers {
                let mut line = String::new();
                reader.read_line(&mut line).expect("a line");
                // What the client wants to see again is in what it sent.
                let id: Json = serde_json::from_str(&line).expect("JSON");
                let id = id["arguments"]["id"].to_string();
                let answer = answer.replace("ID", &id);
                writer.write_all(answer.as_bytes()).expect("sent");
            }
        });
    }

    #[test]
    fn events_before_a_response_are_skipped() {
        let dir = tempfile::tempdir().expect("a directory");
        let answers = [
            "{\"return\": {}}\n",
            "{\"event\": \"RESUME\"}\n{\"return\": {\"status\": \"running\"}}\n",
            "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no such device\"}}\n",
        ];
        serve(dir.path(), QMP, "{\"QMP\": {}}\n", &answers);
        let mut qmp = Qmp::open(dir.path()).expect("it answers");
        assert_eq!(qmp.status().expect("a status"), "running");
        let error = qmp
            .execute("eject", &json!({ "id": "x" }))
            .expect_err("refused");
        assert_eq!(error.to_string(), "eject: no such device");
    }

    #[test]
    fn responses_to_earlier_clients_are_skipped() {
        let dir = tempfile::tempdir().expect("a directory");
        let answers = [
            "{\"return\": {\"pid\": 1}}\n{\"return\": ID}\n",
            "{\"return\": {\"pid\": 7}}\n",
            "{\"return\": {\"exited\": true, \"exitcode\": 0, \"out-data\": \"aGkK\"}}\n",
        ];
        serve(dir.path(), AGENT, "", &answers);
        let mut agent = GuestAgent::open(dir.path()).expect("it answers");
        let output = agent.run("echo hi", PATIENCE).expect("it ran");
        assert_eq!(output, "hi\n");
    }

    #[test]
    fn a_failed_script_is_reported_with_its_last_output() {
        let dir = tempfile::tempdir().expect("a directory");
        let answers = [
            "{\"return\": ID}\n",
            "{\"return\": {\"pid\": 7}}\n",
            "{\"return\": {\"exited\": true, \"exitcode\": 2, \"err-data\": \"YQpubyB1c2VyCg==\"}}\n",
        ];
        serve(dir.path(), AGENT, "", &answers);
        let mut agent = GuestAgent::open(dir.path()).expect("it answers");
        let error = agent.run("false", PATIENCE).expect_err("it failed");
        assert!(error.to_string().ends_with("failed: no user"), "{error}");
    }

    #[test]
    fn sockets_in_long_paths_are_reachable() {
        let dir = tempfile::tempdir().expect("a directory");
        let long = dir.path().join("n".repeat(120));
        fs_err::create_dir(&long).expect("created");
        // Bound by a short name, as QEMU does from inside of the directory.
        let held = fs_err::File::open(&long).expect("opened");
        let short = format!("/proc/self/fd/{}", held.file().as_raw_fd());
        serve(
            Path::new(&short),
            QMP,
            "{\"QMP\": {}}\n",
            &["{\"return\": {}}\n"],
        );
        Qmp::open(&long).expect("it answers");
    }
}
