//! Renders changes as a diff: `-` for the value on the node, `+` for the value of the spec.

use super::change::{Change, ChangeCause, Danger, Handling};

/// Renders changes as a diff, grouped by resource.
pub fn render(changes: &[Change]) -> String {
    let mut out = String::new();
    let mut resource = "";
    for change in changes {
        if change.resource != resource {
            resource = &change.resource;
            out += &format!("{resource}\n");
        }
        // Hidden values have the same placeholder on both sides.
        if change.expected == change.found {
            let why = [change.expected.lines().next().unwrap_or_default()];
            let marks = why.into_iter().chain(marks(change)).collect::<Vec<_>>();
            out += &format!("  {} differs ({})\n", change.field, marks.join(", "));
            continue;
        }
        let marks = marks(change);
        let marks = match marks.is_empty() {
            true => String::new(),
            false => format!(" ({})", marks.join(", ")),
        };
        out += &format!("  {}{marks}\n", change.field);
        if change.expected.contains('\n') || change.found.contains('\n') {
            lines(&mut out, &change.found, &change.expected);
        } else {
            out += &format!("    - {}\n    + {}\n", change.found, change.expected);
        }
    }
    out
}

fn marks(change: &Change) -> Vec<&'static str> {
    let mut marks = Vec::new();
    match change.cause {
        ChangeCause::FirstRun => {}
        ChangeCause::Spec => marks.push("changed in the spec"),
        ChangeCause::Node => marks.push("changed on the node"),
    }
    match change.danger {
        Some(Danger::Network) => marks.push("network"),
        Some(Danger::Sshd) => marks.push("sshd"),
        Some(Danger::Sudo) => marks.push("sudo"),
        Some(Danger::Users) => marks.push("users"),
        None => {}
    }
    match change.handling {
        Handling::Enforce => {}
        Handling::Report => marks.push("only reported"),
        Handling::Ignore => marks.push("ignored"),
    }
    marks
}

/// Renders the lines between the common start and the common end of two texts.
fn lines(out: &mut String, found: &str, expected: &str) {
    let old: Vec<&str> = found.lines().collect();
    let new: Vec<&str> = expected.lines().collect();
    let same = |pair: &(&&str, &&str)| pair.0 == pair.1;
    let start = old.iter().zip(&new).take_while(same).count();
    let end = old[start..]
        .iter()
        .rev()
        .zip(new[start..].iter().rev())
        .take_while(same)
        .count();
    for line in &old[start..old.len() - end] {
        *out += &format!("    - {line}\n");
    }
    for line in &new[start..new.len() - end] {
        *out += &format!("    + {line}\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_marked_as_a_change_of_the_spec() {
        let removal = Change {
            id: "package:htop.state".to_owned(),
            resource: "package:htop".to_owned(),
            field: "state".to_owned(),
            expected: "absent".into(),
            found: "installed".into(),
            cause: ChangeCause::Spec,
            danger: None,
            handling: Handling::Enforce,
        };
        let text = render(&[removal]);
        assert!(text.contains("state (changed in the spec)"), "{text}");
    }
}
