//! The first-boot image against other readers of ISO 9660; skipped where they are not installed.

use std::process::{Command, Stdio};

use homestak_engine::ports::{FirstBootConfig, GuestUuid, Seed};
use homestak_providers::pve::seed;

fn sample() -> Seed {
    Seed {
        user_data: format!(
            "#cloud-config\nhostname: n1\n{}",
            "# filler line\n".repeat(700)
        ),
        meta_data: "instance-id: n1\nlocal-hostname: n1\n".to_owned(),
        network_config: "version: 2\nethernets: {}\n".to_owned(),
        identity: FirstBootConfig {
            uuid: GuestUuid::new("5d1f2a3b-0000-4000-8000-00000000000a").expect("a UUID"),
            hostname: "n1".to_owned(),
            user: "ops".to_owned(),
            keys: Vec::new(),
            host_key: None,
            mac: "bc:24:11:00:00:01".to_owned(),
            address: None,
            gateway: None,
            dns: Vec::new(),
            packages: Vec::new(),
            enrolment: None,
        },
    }
}

#[expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "real tools are asked on purpose, and missed loudly"
)]
fn run(program: &str, arguments: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => {
            assert!(output.status.success(), "{program}: {output:?}");
            Some(output.stdout)
        }
        Err(_) => {
            eprintln!("SKIPPED: {program} is not installed");
            None
        }
    }
}

#[test]
fn other_programs_read_the_same_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("seed.iso");
    fs_err::write(&path, seed::image(&sample())).expect("written");
    let path = path.to_str().expect("a plain path");
    let files = [
        ("user-data", sample().user_data),
        ("meta-data", sample().meta_data),
        ("network-config", sample().network_config),
    ];
    for (name, content) in &files {
        if let Some(read) = run("bsdtar", &["-xOf", path, name]) {
            assert_eq!(String::from_utf8_lossy(&read), *content, "{name}");
        }
        if let Some(read) = run("isoinfo", &["-R", "-i", path, "-x", &format!("/{name}")]) {
            assert_eq!(String::from_utf8_lossy(&read), *content, "{name}");
        }
    }
    if let Some(read) = run("isoinfo", &["-d", "-i", path]) {
        let text = String::from_utf8_lossy(&read);
        assert!(text.contains("Volume id: cidata"), "{text}");
        assert!(text.contains("Rock Ridge signatures"), "{text}");
    }
    if let Some(read) = run("blkid", &["-p", "-o", "export", path]) {
        let text = String::from_utf8_lossy(&read);
        assert!(
            text.contains("LABEL=cidata") && text.contains("TYPE=iso9660"),
            "{text}"
        );
    }
}
