//! Applies the effects of commands that were run as root on the recorded host. Commands whose
//! effect is not simulated are reported.

use std::time::Duration;

use super::align::pid_of;
use super::report::Command;
use super::runner::Runner;
use super::transcript::Row;
use crate::world::lock::Mode;

/// Programs that change nothing.
const READ_ONLY_PROGRAMS: [&str; 8] = [
    "df",
    "ls",
    "ps",
    "mount",
    "for",
    "ssh-keyscan",
    "cat",
    "losetup",
];

impl Runner {
    /// Applies the effect of a command and records whether that was possible.
    pub(crate) async fn command(&mut self, row: &Row) {
        let missing = self.apply_command(row).await.err();
        self.commands.push(Command {
            line: row.line,
            flow: row.flow().to_owned(),
            what: row.path.chars().take(80).collect(),
            missing,
        });
    }

    async fn apply_command(&mut self, row: &Row) -> Result<(), String> {
        let words: Vec<&str> = row.path.split_whitespace().collect();
        let id = |text: &str| text.trim_end_matches(';').parse::<u32>().unwrap_or(0);
        match words[..] {
            ["kill", signal, pid] => {
                let upid = self
                    .task_of(pid)
                    .ok_or("no recorded task has this process id")?;
                self.resolve_task(&upid).await;
                let here = self
                    .tasks
                    .get(&upid)
                    .ok_or("the task was not started in the replay")?;
                let here = here.clone();
                if signal == "-KILL" {
                    if self.is_complete_after(row, &upid) {
                        self.wait_for_tasks(std::slice::from_ref(&here)).await;
                        let mut state = self.world.state();
                        let task = state.tasks.by_upid.get_mut(&here);
                        task.into_iter().for_each(|task| task.ended = None);
                    }
                    self.world.kill_task(&here);
                } else if let Some(task) = self.world.state().tasks.by_upid.get(&here) {
                    task.cancel.cancel();
                }
                crate::world::clock::settle().await;
            }
            ["qm" | "pct", "unlock", vmid] => self.world.unlock_guest(id(vmid)),
            ["qm" | "pct", "set", vmid, "--lock", lock, ..] => {
                self.world.lock_guest(id(vmid), lock);
            }
            ["flock", file, "sleep", _] => {
                let hold = self.world.locks().try_take(file, Mode::Exclusive);
                let hold = hold.ok_or("the file is already locked")?;
                let (world, held) = (self.world.clone(), Duration::from_secs_f64(row.seconds));
                // Cancel safety: dropped only when the replay ends.
                self.spawner.spawn("held lock", async move {
                    world.sleep(held).await;
                    drop(hold);
                });
            }
            ["qm" | "pct", "config", ..] => {}
            // The command failed.
            ["qm" | "pct", "destroy", _] if row.status != 0 => {}
            ["pct", "mount", ..] => {
                return Err("simulated containers have no files".to_owned());
            }
            [program, ..] if READ_ONLY_PROGRAMS.contains(&program) => {}
            _ => return Err("not simulated".to_owned()),
        }
        Ok(())
    }

    /// Returns the recorded task of a process.
    fn task_of(&self, pid: &str) -> Option<String> {
        let mut started = self.rows.iter().filter_map(Row::started);
        started
            .find(|upid| pid_of(upid) == pid)
            .map(ToOwned::to_owned)
    }

    /// Whether a guest is complete in the first row after a command that shows it: the process had
    /// finished its work before it was killed.
    fn is_complete_after(&self, row: &Row, upid: &str) -> bool {
        let id = upid.split(':').nth(6).unwrap_or("");
        let config = format!("/{id}/config");
        let shown = self.rows.iter().find(|later| {
            later.t0 > row.t0 && later.method == "GET" && later.api_path().ends_with(&config)
        });
        shown.is_some_and(|shown| shown.status == 200 && shown.data().get("arch").is_some())
    }
}
