//! Events of runs.

use homestak_api::v1::{EventError, EventNextAction, EventNode, RunEvent, RunEventKind};
use homestak_engine::events::{Event, EventKind, PlannedNode};
use homestak_engine::journal::StepError;
use homestak_engine::ports::NextAction;

use super::run::ending;

/// Converts an event of a run.
pub fn event(event: &Event) -> RunEvent {
    RunEvent {
        at: event.at,
        // 0 is what this format has always had outside of a run.
        run: event.run.map_or(0, |run| run.0),
        kind: kind(&event.kind),
    }
}

fn kind(kind: &EventKind) -> RunEventKind {
    match kind {
        EventKind::RunStarted {
            verb,
            manifest,
            resumed,
            nodes,
        } => RunEventKind::RunStarted {
            verb: verb.clone(),
            manifest: manifest.clone(),
            resumed: *resumed,
            nodes: nodes.iter().map(node).collect(),
        },
        EventKind::StepStarted {
            subject,
            step,
            undo,
        } => RunEventKind::StepStarted {
            subject: subject.to_string(),
            step: *step,
            undo: *undo,
        },
        EventKind::Waiting { subject, what } => RunEventKind::Waiting {
            subject: subject.to_string(),
            what: what.clone(),
        },
        EventKind::Doing { subject, what } => RunEventKind::Doing {
            subject: subject.to_string(),
            what: what.clone(),
        },
        EventKind::Warning { subject, text } => RunEventKind::Warning {
            subject: subject.to_string(),
            text: text.clone(),
        },
        EventKind::StepDone {
            subject,
            step,
            undo,
            changed,
            kept,
            seconds,
            guest_id,
            address,
        } => RunEventKind::StepDone {
            subject: subject.to_string(),
            step: *step,
            undo: *undo,
            changed: *changed,
            kept: *kept,
            seconds: *seconds,
            vmid: *guest_id,
            address: *address,
        },
        EventKind::StepFailed {
            subject,
            step,
            undo,
            error: failed,
            seconds,
        } => RunEventKind::StepFailed {
            subject: subject.to_string(),
            step: *step,
            undo: *undo,
            error: error(failed),
            seconds: *seconds,
        },
        EventKind::RollbackStarted => RunEventKind::RollbackStarted,
        EventKind::RunEnded {
            ending: how,
            seconds,
        } => RunEventKind::RunEnded {
            ending: ending(*how),
            seconds: *seconds,
        },
    }
}

fn node(node: &PlannedNode) -> EventNode {
    EventNode {
        name: node.name.clone(),
        parent: node.parent.clone(),
        host: node.host.clone(),
        action: node.action,
        steps: node.steps,
    }
}

fn error(error: &StepError) -> EventError {
    EventError {
        class: error.class.name().to_owned(),
        message: error.message.clone(),
        log: error.log.clone(),
        hint: error.hint.clone(),
        next: match error.next {
            NextAction::Repeat => None,
            NextAction::NewPlan => Some(EventNextAction::NewPlan),
            NextAction::Trust => Some(EventNextAction::Trust),
        },
    }
}

#[cfg(test)]
mod tests {
    use homestak_core::plan::{Action, StepKind};
    use homestak_engine::events::Subject;
    use homestak_engine::journal::{RunId, RunOutcome};
    use homestak_engine::ports::ErrorClass;
    use jiff::Timestamp;

    use super::*;

    fn web() -> Subject {
        Subject::Node("web".to_owned())
    }

    fn image() -> Subject {
        Subject::Image {
            name: "debian-12".to_owned(),
            location: "father".to_owned(),
        }
    }

    fn failed(next: NextAction, log: &[&str], hint: &str) -> EventKind {
        EventKind::StepFailed {
            subject: web(),
            step: StepKind::Create,
            undo: false,
            error: StepError {
                class: ErrorClass::Refused,
                message: "no \"space\"".to_owned(),
                log: log.iter().map(ToString::to_string).collect(),
                hint: hint.to_owned(),
                next,
            },
            seconds: 1.0,
        }
    }

    fn done(kept: bool, guest: Option<u32>) -> EventKind {
        EventKind::StepDone {
            subject: web(),
            step: StepKind::Create,
            undo: kept,
            changed: true,
            kept,
            seconds: 0.25,
            guest_id: guest.map(Into::into),
            address: guest.map(|_| [10, 0, 0, 7].into()),
        }
    }

    /// Lines as the first version printed them, without `at` and `run`.
    #[test]
    fn every_event_keeps_its_line() {
        let node = |name: &str, parent: Option<&str>, action| PlannedNode {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            host: "father".to_owned(),
            action,
            steps: 4,
        };
        let lines = [
            (
                EventKind::RunStarted {
                    verb: "apply".to_owned(),
                    manifest: "n2".to_owned(),
                    resumed: false,
                    nodes: vec![
                        node("web", None, Action::Create),
                        node("db", Some("web"), Action::Keep),
                    ],
                },
                r#""event":"run-started","verb":"apply","manifest":"n2","resumed":false,"nodes":[{"name":"web","parent":null,"host":"father","action":"create","steps":4},{"name":"db","parent":"web","host":"father","action":"leave","steps":4}]"#,
            ),
            (
                EventKind::StepStarted {
                    subject: image(),
                    step: StepKind::Image,
                    undo: false,
                },
                r#""event":"step-started","subject":"image debian-12 on father","step":"image","undo":false"#,
            ),
            (
                EventKind::Waiting {
                    subject: web(),
                    what: "its SSH".to_owned(),
                },
                r#""event":"waiting","subject":"web","what":"its SSH""#,
            ),
            (
                EventKind::Doing {
                    subject: web(),
                    what: "packages".to_owned(),
                },
                r#""event":"doing","subject":"web","what":"packages""#,
            ),
            (
                EventKind::Warning {
                    subject: Subject::Run,
                    text: "slow".to_owned(),
                },
                r#""event":"warning","subject":"","text":"slow""#,
            ),
            (
                done(false, Some(99_011)),
                r#""event":"step-done","subject":"web","step":"create","undo":false,"changed":true,"seconds":0.25,"vmid":99011,"address":"10.0.0.7""#,
            ),
            (
                done(true, None),
                r#""event":"step-done","subject":"web","step":"create","undo":true,"changed":true,"kept":true,"seconds":0.25"#,
            ),
            (
                failed(NextAction::Repeat, &[], ""),
                r#""event":"step-failed","subject":"web","step":"create","undo":false,"trouble":{"class":"refused","message":"no \"space\""},"seconds":1.0"#,
            ),
            (
                failed(NextAction::NewPlan, &["line 1", "line 2"], "free space"),
                r#""event":"step-failed","subject":"web","step":"create","undo":false,"trouble":{"class":"refused","message":"no \"space\"","log":["line 1","line 2"],"hint":"free space","next":"new-plan"},"seconds":1.0"#,
            ),
            (
                failed(NextAction::Trust, &[], ""),
                r#""event":"step-failed","subject":"web","step":"create","undo":false,"trouble":{"class":"refused","message":"no \"space\"","next":"trust"},"seconds":1.0"#,
            ),
            (EventKind::RollbackStarted, r#""event":"rollback-started""#),
            (
                EventKind::RunEnded {
                    ending: RunOutcome::RolledBack,
                    seconds: 61.5,
                },
                r#""event":"run-ended","ending":"rolled-back","seconds":61.5"#,
            ),
        ];
        for (kind, expected) in lines {
            let one = Event {
                at: Timestamp::new(1_700_000_000, 123_456_789).unwrap(),
                run: Some(RunId(7)),
                kind,
            };
            let line = serde_json::to_string(&event(&one)).unwrap();
            let head = r#"{"at":"2023-11-14T22:13:20.123456789Z","run":7,"#;
            assert_eq!(line, format!("{head}{expected}}}"));
            let read: RunEvent = serde_json::from_str(&line).unwrap();
            assert_eq!(read, event(&one));
        }
    }
}
