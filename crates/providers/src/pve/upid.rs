//! Task ids (UPID) of Proxmox VE.

/// The id of a task, such as `UPID:pve1:00000293:0009BFEB:6AFA1C02:qmcreate:130:root@pam!lab:`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Upid {
    /// The host it runs on.
    pub node: String,
    /// Its process.
    pub pid: u64,
    /// When the process started, in the kernel's ticks.
    pub process_start: u64,
    /// When the task started, in seconds since 1970.
    pub start: u64,
    /// What it does, such as `qmcreate`.
    pub kind: String,
    /// What it does it to; often a vmid, may be empty.
    pub id: String,
    /// Who asked for it, such as `root@pam!lab`.
    pub user: String,
}

impl Upid {
    /// Reads a task's id.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("UPID:")?.strip_suffix(':')?;
        let parts: Vec<&str> = rest.split(':').collect();
        let [node, pid, process_start, start, kind, id @ .., user] = parts.as_slice() else {
            return None;
        };
        if id.len() != 1 || node.is_empty() || kind.is_empty() || user.is_empty() {
            return None;
        }
        let host = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
        if !node.bytes().all(host) {
            return None;
        }
        let hex = |text: &str| {
            let digits =
                (1..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
            digits.then(|| u64::from_str_radix(text, 16).ok()).flatten()
        };
        Some(Self {
            node: (*node).to_owned(),
            pid: hex(pid)?,
            process_start: hex(process_start)?,
            start: hex(start)?,
            kind: (*kind).to_owned(),
            id: id.concat(),
            user: (*user).to_owned(),
        })
    }

    /// Returns the vmid the task is about, where its id is one.
    pub fn vmid(&self) -> Option<u32> {
        self.id.split('@').next().and_then(|id| id.parse().ok())
    }
}

impl std::fmt::Display for Upid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            node,
            pid,
            process_start,
            start,
            kind,
            id,
            user,
        } = self;
        write!(
            f,
            "UPID:{node}:{pid:08X}:{process_start:08X}:{start:08X}:{kind}:{id}:{user}:"
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn recorded_ids_are_parsed() {
        for text in [
            "UPID:pve1:00000293:0009BFEB:6AFA1C02:qmcreate:130:root@pam!lab:",
            "UPID:pve1:000000DD:000AA9A5:6AFA1E58:imgcopy::root@pam!lab:",
            "UPID:pve1:000016C0:000C6433:6AFA22C5:download:dl.qcow2:root@pam!lab:",
            "UPID:pve1:000016C0:000C6433:6AFA22C5:imgdel:301@local:root@pam:",
        ] {
            let upid = Upid::parse(text).expect("an id");
            assert_eq!(upid.to_string(), text);
        }
        let upid = Upid::parse("UPID:pve1:1:2:6AFA22C5:imgdel:301@local:root@pam:").expect("an id");
        assert_eq!(upid.vmid(), Some(301));
    }

    #[test]
    fn invalid_ids_are_rejected() {
        for text in [
            "",
            "UPID:",
            "UPID:pve1:0:0:0:x:y",
            "UPID:pve1:g:0:0:x:y:u:",
            "UPID::0:0:0:x:y:u:",
            "UPID:a/b:0:0:0:x:y:u:",
            "UPID:pve1:0:0:0:x:y:z:u:",
            "UPID:pve1:0:0:0::y:u:",
        ] {
            assert_eq!(Upid::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn it_reads_back(
            node in "[a-z][a-z0-9-]{0,10}",
            numbers in any::<(u32, u32, u32)>(),
            kind in "[a-z]{1,10}",
            id in "[a-z0-9.@]{0,10}",
            user in "[a-z]{1,6}@(pam|pve)(![a-z]{2,5})?",
        ) {
            let upid = Upid {
                node,
                pid: numbers.0.into(),
                process_start: numbers.1.into(),
                start: numbers.2.into(),
                kind,
                id,
                user,
            };
            prop_assert_eq!(Upid::parse(&upid.to_string()), Some(upid));
        }

        #[test]
        fn any_text_can_be_parsed(text in ".{0,80}") {
            let _ = Upid::parse(&text);
        }
    }
}
