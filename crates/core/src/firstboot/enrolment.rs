//! What a node needs to obtain its spec from a server, and the files that carry it.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroize as _;

use crate::observed::GuestUuid;
use crate::shell::quote;

/// The path of the enrolment on a node, until it has enrolled.
pub const ENROLMENT: &str = "/usr/local/etc/homestak/first-boot/enrolment.json";
/// The directory of the enrolment, which only root may enter.
pub const ENROLMENT_DIRECTORY: &str = "/usr/local/etc/homestak/first-boot";
/// The unit that fetches specs and applies them.
pub const PULL_UNIT: &str = "homestak-pull.service";
/// Path and target of the link that enables [`PULL_UNIT`].
pub const PULL_UNIT_LINK: (&str, &str) = (
    "/etc/systemd/system/multi-user.target.wants/homestak-pull.service",
    "/etc/systemd/system/homestak-pull.service",
);

/// Address and fingerprint of the server, for shells.
const PROFILE: &str = "/etc/profile.d/homestak.sh";
/// The files of [`PULL_UNIT`], by their paths.
pub const PULL_FILES: [&str; 3] = [SCRIPT, PULL_UNIT_LINK.1, PROFILE];

const SCRIPT: &str = "/usr/local/lib/homestak/first-boot";
const SCRIPT_TEXT: &str = include_str!("first-boot.sh");
/// The line of the script that is replaced by the values of a node.
const VALUES: &str = "# values\n";

/// The script executes the agent (`exec`) once that is installed: systemd checks the exit code of
/// the main process only. Stopping the unit does not interrupt an installation of packages.
const UNIT_TEXT: &str = "\
# Written by homestak.
[Unit]
Description=Fetch the spec of this machine and apply it
After=network.target ssh.service dbus.service
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=/usr/local/lib/homestak/first-boot
Restart=always
RestartSec=5
RestartPreventExitStatus=3
KillMode=process
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
";

/// What a node needs to enrol at a server of its site. No `Debug`: it has a token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrolment {
    /// The node's name.
    pub identity: String,
    /// The guest's UUID.
    pub uuid: GuestUuid,
    /// Addresses of servers, such as `https://10.0.0.1:44443`, the preferred first.
    pub servers: Vec<String>,
    /// Certificates in PEM that the chain of a server ends at.
    pub authorities: Vec<String>,
    /// The site's id.
    pub site: String,
    /// Public keys of the site, as 43 characters of base64.
    pub site_keys: Vec<String>,
    /// The provisioning token.
    pub token: String,
    /// When it was issued, in seconds since 1970: when the spec was signed that is published with it. The
    /// node accepts no job, and as its first spec none, that was signed earlier.
    pub issued: i64,
    /// The lowest generation of the agent that the first boot installs: that of the published one. 0
    /// accepts any, and is what earlier versions wrote.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub agent_generation: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        self.token.zeroize();
    }
}

/// A file that is written into a node before its first boot. No `Debug`: it may have a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeFile {
    /// Its absolute path.
    pub path: &'static str,
    /// Its permissions.
    pub mode: u32,
    /// Its content.
    pub content: String,
}

impl Enrolment {
    /// Returns the files that make a node obtain the agent, enrol and converge. The only secret is in
    /// the first one, whose directory is [`ENROLMENT_DIRECTORY`].
    pub fn files(&self) -> Vec<NodeFile> {
        let enrolment = NodeFile {
            path: ENROLMENT,
            mode: 0o600,
            content: self.json(),
        };
        let files = [enrolment].into_iter().chain(self.service_files());
        files.collect()
    }

    /// Returns the files of [`PULL_UNIT`]. They contain no secret.
    pub fn service_files(&self) -> [NodeFile; 3] {
        let file = |path, mode, content| NodeFile {
            path,
            mode,
            content,
        };
        [
            file(SCRIPT, 0o755, self.script()),
            file(PULL_UNIT_LINK.1, 0o644, UNIT_TEXT.to_owned()),
            file(PROFILE, 0o644, self.profile()),
        ]
    }

    /// Returns what the agent reads, one field in a line as the script expects it. The generation of
    /// the agent is only for the script: agents of earlier versions refuse fields that they do not know.
    pub fn json(&self) -> String {
        let mut for_agent = self.clone();
        for_agent.agent_generation = 0;
        let text = serde_json::to_string_pretty(&for_agent).unwrap_or_default();
        text + "\n"
    }

    fn script(&self) -> String {
        let lines = |list: &[String]| quote(&list.join("\n"));
        let values = format!(
            "root=''\nidentity={}\nservers={}\nsite_keys={}\nauthorities={}\nlowest_generation={}\n",
            quote(&self.identity),
            lines(&self.servers),
            lines(&self.site_keys),
            lines(&self.authorities),
            self.agent_generation,
        );
        SCRIPT_TEXT.replacen(VALUES, &values, 1)
    }

    /// For people and scripts on the node; everyone may read it.
    fn profile(&self) -> String {
        let mut text = String::from("# Written by homestak.\n");
        let fingerprint = self.authorities.first();
        let fingerprint = fingerprint.and_then(|pem| fingerprint_of(pem));
        let values = [
            ("HOMESTAK_SERVER", self.servers.first().cloned()),
            ("HOMESTAK_IDENTITY", Some(self.identity.clone())),
            ("HOMESTAK_FINGERPRINT", fingerprint),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                let _ = writeln!(text, "export {name}={}", quote(&value));
            }
        }
        text
    }
}

/// Returns the SHA-256 of the first certificate of a PEM text, as it is usually written.
fn fingerprint_of(pem: &str) -> Option<String> {
    let (_, rest) = pem.split_once("-----BEGIN CERTIFICATE-----")?;
    let (text, _) = rest.split_once("-----END CERTIFICATE-----")?;
    let text: String = text.split_whitespace().collect();
    let digest = Sha256::digest(STANDARD.decode(text).ok()?);
    let pairs: Vec<String> = digest.iter().map(|byte| format!("{byte:02X}")).collect();
    Some(pairs.join(":"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) const TOKEN: &str = "eyJ2IjoyfQ.c2lnbmF0dXJl-_";

    pub(in super::super) fn enrolment() -> Enrolment {
        Enrolment {
            identity: "web".to_owned(),
            uuid: GuestUuid::new("5d1f2a3b-0000-4000-8000-00000000000a").expect("a UUID"),
            servers: vec![
                "https://10.0.0.1:44443".to_owned(),
                "https://[fd00::1]:44443".to_owned(),
            ],
            authorities: vec![
                "-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n".to_owned(),
            ],
            site: "s".to_owned(),
            site_keys: vec!["A".repeat(43), "B".repeat(43)],
            token: TOKEN.to_owned(),
            issued: 1_800_000_000,
            agent_generation: 0,
        }
    }

    fn content(enrolment: &Enrolment, path: &str) -> String {
        let mut files = enrolment.files().into_iter();
        let file = files.find(|file| file.path == path);
        file.expect("a file").content.clone()
    }

    #[test]
    fn the_token_is_in_the_private_file_only() {
        for file in enrolment().files() {
            let has_token = file.content.contains(TOKEN);
            assert_eq!(has_token, file.path == ENROLMENT, "{}", file.path);
            assert_eq!(has_token, file.mode == 0o600, "{}", file.path);
        }
    }

    #[test]
    fn the_enrolment_is_read_back_and_has_its_token_in_a_line_of_its_own() {
        let text = content(&enrolment(), ENROLMENT);
        let read: Enrolment = serde_json::from_str(&text).expect("an enrolment");
        assert!(read == enrolment());
        assert!(text.contains(&format!("\n  \"token\": \"{TOKEN}\",\n")));
        let unknown = text.replacen('{', "{\"more\": 1,", 1);
        assert!(serde_json::from_str::<Enrolment>(&unknown).is_err());
    }

    #[test]
    fn the_generation_of_the_agent_is_in_the_script_and_not_in_what_agents_read() {
        let mut one = enrolment();
        one.agent_generation = 1_800_000_007;
        assert!(content(&one, SCRIPT).contains("\nlowest_generation=1800000007\n"));
        assert_eq!(content(&one, ENROLMENT), content(&enrolment(), ENROLMENT));
        // It survives where first-boot data is stored before it is written.
        let text = serde_json::to_string(&one).expect("JSON");
        let read: Enrolment = serde_json::from_str(&text).expect("an enrolment");
        assert!(read == one);
        let earlier: Enrolment = serde_json::from_str(&one.json()).expect("an enrolment");
        assert_eq!(earlier.agent_generation, 0);
    }

    #[test]
    fn values_of_the_script_are_quoted_and_nothing_in_them_is_executed() {
        let mut hostile = enrolment();
        hostile.identity = "a'; touch /tmp/x; '".to_owned();
        hostile.servers = vec!["https://$(id)".to_owned(), "`id`".to_owned()];
        let script = content(&hostile, SCRIPT);
        assert!(script.starts_with("#!/bin/sh\n"));
        assert!(!script.contains(VALUES));
        assert!(script.contains("\nidentity='a'\\''; touch /tmp/x; '\\'''\n"));
        assert!(script.contains("\nservers='https://$(id)\n`id`'\n"));
        assert!(script.contains(&format!("\nsite_keys='{}\n", "A".repeat(43))));
    }

    #[test]
    fn the_profile_has_what_is_not_secret() {
        let digest = "AE:4B:32:80:E5:6E:2F:AF:83:F4:14:A6:E3:DA:BE:9D:5F:BE:18:97:65:44:C0:5F:ED:12:1A:CC:B8:5B:53:FC";
        let expected = format!(
            "# Written by homestak.\nexport HOMESTAK_SERVER='https://10.0.0.1:44443'\n\
             export HOMESTAK_IDENTITY='web'\nexport HOMESTAK_FINGERPRINT='{digest}'\n"
        );
        assert_eq!(
            content(&enrolment(), "/etc/profile.d/homestak.sh"),
            expected
        );
    }

    #[test]
    fn the_unit_gives_up_on_permanent_failures_only() {
        let unit = content(&enrolment(), PULL_UNIT_LINK.1);
        for line in [
            "Restart=always",
            "RestartPreventExitStatus=3",
            "StartLimitIntervalSec=0",
            "WantedBy=multi-user.target",
        ] {
            assert!(unit.lines().any(|found| found == line), "{line}");
        }
        assert!(PULL_UNIT_LINK.0.ends_with(PULL_UNIT));
        assert!(unit.contains(SCRIPT) && script_is_whole());
    }

    fn script_is_whole() -> bool {
        SCRIPT_TEXT.contains(VALUES) && SCRIPT_TEXT.ends_with("exec \"$agent\" pull --daemon\n")
    }
}
