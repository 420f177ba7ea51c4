//! The units in `packaging/`, on a node with systemd.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::test_host::{SshConnection, TestHost, text};

const UNIT: &str = "homestak-server.service";

/// Runs a script as root in the node.
fn root(host: &TestHost, script: &str) -> String {
    let script = script.replace('\'', "'\\''");
    host.inside("hub", &format!("sudo sh -euc '{script}'"))
        .good()
}

/// Runs a script as root in the node, with a file or directory as a tar archive on its input.
fn copy(host: &TestHost, from: &Path, what: &str, script: &str) {
    let packed = Command::new("tar")
        .args(["--owner=0", "--group=0", "-C"])
        .arg(from)
        .args(["-c", what])
        .output()
        .unwrap();
    assert!(packed.status.success(), "{packed:?}");
    let line = format!("sudo sh -euc '{script}'");
    let copied = host
        .command_with_input("hub", &line, &packed.stdout, SshConnection::New)
        .output()
        .unwrap();
    assert!(copied.status.success(), "{copied:?}");
}

fn property(host: &TestHost, name: &str) -> String {
    let line = format!("systemctl show --value -p {name} {UNIT}");
    root(host, &line).trim().to_owned()
}

/// Copies what the driver published.
fn publish(host: &TestHost, published: &Path) {
    host.run(&["server", "publish"]).good();
    // As the driver does on the machine of the server: files get the group of their directory.
    let script = "cd /var/lib/homestak-server/published; umask 027; \
                  tar -x --strip-components=1 --no-same-owner --no-same-permissions";
    copy(host, published.parent().unwrap(), "published", script);
}

/// Clones a repository from the server: there, git runs in the sandbox of the unit.
fn clone(host: &TestHost, published: &Path, address: &str) {
    // The image has no git; that of this machine needs libraries only that Debian always has.
    copy(host, Path::new("/usr/bin"), "git", "tar -x -C /usr/bin");
    if host.inside("hub", "git --version").code != 0 {
        println!("SKIPPED: git of this machine does not run in the image");
        return;
    }
    let directory = host.state().with_file_name("clones");
    let git = |words: &str| {
        let output = Command::new("git")
            .args(words.split_whitespace())
            .current_dir(&directory)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_SSL_NO_VERIFY", "1")
            .env("GIT_CONFIG_COUNT", "3")
            .env("GIT_CONFIG_KEY_0", "http.extraHeader")
            .env(
                "GIT_CONFIG_VALUE_0",
                "Authorization: Bearer token-of-repositories",
            )
            .env("GIT_CONFIG_KEY_1", "user.name")
            .env("GIT_CONFIG_VALUE_1", "a")
            .env("GIT_CONFIG_KEY_2", "user.email")
            .env("GIT_CONFIG_VALUE_2", "a@example.org")
            .output()
            .unwrap();
        let log = || root(host, &format!("journalctl -u {UNIT} -n 20 --no-pager"));
        assert!(output.status.success(), "{output:?}\n{}", log());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("token"), "token-of-repositories\n").unwrap();
    git("init -q -b main tofu");
    for text in ["one", "two"] {
        std::fs::write(directory.join("tofu/file"), text).unwrap();
        git("-C tofu add -A");
        git("-C tofu commit -q -m next");
    }
    let path = |name: &str| directory.join(name).display().to_string();
    let (repos, token) = (path(""), path("token"));
    let line = ["server", "publish", "--repos", "--repos-dir", &repos];
    host.run(&[&line[..], &["--repo-token-file", &token]].concat())
        .good();
    publish(host, published);
    // The unit is reloaded in the background.
    let line = format!(
        "systemctl reload {UNIT}; until journalctl -u {UNIT} | grep -q \"token of repositories\"; do sleep 0.1; done"
    );
    root(host, &line);
    let url = format!("https://{address}:44443/tofu.git");
    git(&format!("clone -q --depth 1 {url} shallow"));
    git(&format!("clone -q {url} full"));
    assert_eq!(git("-C shallow rev-list --count HEAD"), "1");
    assert_eq!(git("-C full rev-list --count HEAD"), "2");
}

#[test]
fn the_units_run_the_server_as_its_own_user_watch_it_and_keep_its_socket_open() {
    let Some(mut host) = crate::host() else {
        return;
    };
    host.manifest("lab", "  - {name: hub}\n");
    host.apply("lab");
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    copy(&host, &packaging, "sysusers.d", "tar -x -C /etc");
    copy(&host, &packaging, "tmpfiles.d", "tar -x -C /etc");
    copy(
        &host,
        &packaging,
        "systemd",
        "tar -x -C /etc/systemd/system --strip-components=1",
    );
    let program = crate::program();
    let directory = program.parent().unwrap();
    copy(&host, directory, "homestak", "tar -x -C /usr/local/bin");
    root(
        &host,
        "systemd-sysusers; systemd-tmpfiles --create; touch /etc/homestak/server.toml
         mkdir /etc/systemd/system/homestak-server.service.d
         printf \"[Service]\\nWatchdogSec=3\\n\" >/etc/systemd/system/homestak-server.service.d/test.conf
         systemctl daemon-reload",
    );
    let published = host.state().with_file_name("published");
    std::fs::create_dir(&published).unwrap();
    let mode = std::fs::Permissions::from_mode(0o2750);
    std::fs::set_permissions(&published, mode).unwrap();
    let address = text(&host.nodes()[0]["address"]);
    host.set("HOMESTAK_PUBLISH_TO", &published.display().to_string());
    host.set("HOMESTAK_SERVER", &format!("https://{address}:44443"));
    publish(&host, &published);

    // `start` returns when it is ready, and it has no rights.
    root(&host, &format!("systemctl start {UNIT}"));
    host.run(&["server", "status"]).good();
    let pid = property(&host, "MainPID");
    let status = root(&host, &format!("cat /proc/{pid}/status"));
    for line in ["CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let user = root(&host, &format!("ps -o user:32= -p {pid}"));
    assert_eq!(user.trim(), "homestak-server");

    // What limits git, which checks repositories, may run under the filter of the unit.
    let unit = std::fs::read_to_string(packaging.join("systemd").join(UNIT)).unwrap();
    let sandbox = unit.lines().filter(|line| {
        let keys = [
            "SystemCallFilter=",
            "SystemCallArchitectures=",
            "User=",
            "NoNewPrivileges=",
        ];
        keys.iter().any(|key| line.starts_with(key))
    });
    let sandbox: String = sandbox.map(|line| format!(" -p \"{line}\"")).collect();
    let limits = "--as=268435456 --fsize=67108864 --cpu=60 --core=0";
    let run = |line: &str| {
        let with = format!("nice -n 10 choom -n 500 -- prlimit {limits} -- {line}");
        let line = format!("systemd-run --quiet --wait --pipe{sandbox} {with}");
        root(&host, &line).trim().to_owned()
    };
    assert_eq!(run("nice"), "10");
    assert_eq!(run("cat /proc/self/oom_score_adj"), "500");

    clone(&host, &published, &address);

    // Refused requests are in the journal.
    let refused = Command::new("curl")
        .args(["--silent", "--insecure", "--max-time", "20"])
        .args(["--header", "Authorization: Bearer no.token"])
        .arg(format!("https://{address}:44443/spec/web"))
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&refused.stdout).contains("E300"),
        "{refused:?}"
    );
    let journal = root(&host, &format!("journalctl -o cat -u {UNIT}"));
    assert!(journal.contains("listening"), "{journal}");
    assert!(journal.contains("refused"), "{journal}");

    // A server that hangs is replaced.
    root(&host, &format!("kill -STOP {pid}"));
    let mut tries = 0;
    while property(&host, "NRestarts") == "0" || property(&host, "ActiveState") != "active" {
        tries += 1;
        assert!(tries < 300, "systemd has not restarted it");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    host.run(&["server", "status"]).good();

    // One that is killed is started again, however often that was.
    for _ in 0..7 {
        let pid = property(&host, "MainPID");
        root(&host, &format!("kill -KILL {pid}"));
        let mut tries = 0;
        while property(&host, "ActiveState") != "active" || property(&host, "MainPID") == pid {
            tries += 1;
            assert!(tries < 100, "systemd has not restarted it");
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }
    host.run(&["server", "status"]).good();

    // A reload reads everything again and does not stop it.
    let pid = property(&host, "MainPID");
    root(&host, &format!("systemctl reload {UNIT}"));
    host.run(&["server", "status"]).good();
    assert_eq!(property(&host, "MainPID"), pid);
    root(&host, &format!("systemctl stop {UNIT}"));
    assert_eq!(property(&host, "Result"), "success");
    assert_ne!(host.run(&["server", "status"]).code, 0);

    // With the socket unit, the first connection starts it, and a restart refuses none.
    root(&host, "systemctl start homestak-server.socket");
    host.run(&["server", "status"]).good();
    assert_eq!(property(&host, "ActiveState"), "active");
    let line = format!("systemctl restart {UNIT}; sleep 1; systemctl restart {UNIT}");
    std::thread::scope(|scope| {
        let restarts = scope.spawn(|| root(&host, &line));
        while !restarts.is_finished() {
            let connected = std::net::TcpStream::connect(format!("{address}:44443"));
            assert!(connected.is_ok(), "{connected:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        restarts.join().unwrap();
    });
    host.run(&["server", "status"]).good();
    host.destroy("lab");
    host.assert_unchanged();
}
