//! The unit that reverts changes when the agent cannot: it runs now, and at the next boot before
//! the network is set up. Its files exist only while a confirmation is outstanding.

use std::path::{Path, PathBuf};

use crate::error::AgentError;
use crate::files::{link, write};
use crate::{settings, systemctl};

const UNITS: &str = "/etc/systemd/system";

fn name(job: &str) -> String {
    format!("homestak-undo-{job}.service")
}

fn paths(job: &str) -> (PathBuf, PathBuf) {
    let units = Path::new(UNITS);
    let wants = units.join("multi-user.target.wants");
    (units.join(name(job)), wants.join(name(job)))
}

/// Installs the unit, enables it for the next boot, and starts it.
pub(super) fn install(job: &str) -> Result<(), AgentError> {
    let (path, wanted) = paths(job);
    let program = settings::program();
    let text = format!(
        "# Written by homestak; removed when the changes of job {job} are confirmed or reverted.
[Unit]
Description=Revert unconfirmed changes of homestak
DefaultDependencies=no
Wants=network-pre.target
After=local-fs.target systemd-remount-fs.service systemd-sysctl.service
Before=network-pre.target shutdown.target
Conflicts=shutdown.target
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={program} job guard --id {job}
Restart=on-failure
RestartSec=1
"
    );
    let failed = AgentError::write(path.display());
    write(&path, text.as_bytes(), 0o644).map_err(&failed)?;
    link(&wanted.to_string_lossy(), &path.to_string_lossy()).map_err(failed)?;
    systemctl::run_ok(&["start", "--no-block", "--", &name(job)])?;
    Ok(())
}

/// Removes the unit. If it is running, it runs to its end.
pub(super) fn remove(job: &str) {
    let (path, wanted) = paths(job);
    _ = fs_err::remove_file(wanted);
    _ = fs_err::remove_file(path);
}
