//! Commands that a recording shows being run on the host as root, and their effect on the World.
//!
//! A command that only reads has no effect. One whose effect the World does not have is listed.

use std::time::Duration;

use super::follow::pid_of;
use super::report::Command;
use super::runner::Runner;
use super::transcript::Row;
use crate::world::lock::Mode;

/// Programs that only read.
const READERS: [&str; 8] = [
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
    /// Carries out what a command did, and notes when that is not possible.
    pub(crate) async fn command(&mut self, row: &Row) {
        let missing = self.carry_out(row).await.err();
        self.commands.push(Command {
            line: row.line,
            flow: row.flow().to_owned(),
            what: row.path.chars().take(80).collect(),
            missing,
        });
    }

    async fn carry_out(&mut self, row: &Row) -> Result<(), String> {
        let words: Vec<&str> = row.path.split_whitespace().collect();
        let id = |text: &str| text.trim_end_matches(';').parse::<u32>().unwrap_or(0);
        match words[..] {
            ["kill", signal, pid] => {
                let upid = self
                    .task_of(pid)
                    .ok_or("no recorded task has this process")?;
                self.resolve_task(&upid).await;
                let here = self
                    .tasks
                    .get(&upid)
                    .ok_or("the task was not started here")?;
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
                let hold = hold.ok_or("something else holds the lock here")?;
                let (world, held) = (self.world.clone(), Duration::from_secs_f64(row.seconds));
                // Cancel safety: dropped only when the replay ends.
                self.spawner.spawn("held lock", async move {
                    world.sleep(held).await;
                    drop(hold);
                });
            }
            ["qm" | "pct", "config", ..] => {}
            // What was refused there has no effect.
            ["qm" | "pct", "destroy", _] if row.status != 0 => {}
            ["pct", "mount", ..] => {
                return Err("containers here have no files to compare".to_owned());
            }
            [program, ..] if READERS.contains(&program) => {}
            _ => return Err("the World has no such effect".to_owned()),
        }
        Ok(())
    }

    /// Returns the recorded task that a process worked on.
    fn task_of(&self, pid: &str) -> Option<String> {
        let mut started = self.rows.iter().filter_map(Row::started);
        started
            .find(|upid| pid_of(upid) == pid)
            .map(ToOwned::to_owned)
    }

    /// Whether a guest is complete when a row shows it after a command, as when a process is killed
    /// that had done its work.
    fn is_complete_after(&self, row: &Row, upid: &str) -> bool {
        let id = upid.split(':').nth(6).unwrap_or("");
        let config = format!("/{id}/config");
        let shown = self.rows.iter().find(|later| {
            later.t0 > row.t0 && later.method == "GET" && later.api_path().ends_with(&config)
        });
        shown.is_some_and(|shown| shown.status == 200 && shown.data().get("arch").is_some())
    }
}
