//! Output on a terminal: a live tree that ends as a table.

use std::process::Command;

use homestak_sim::{Pace, Timing};

use crate::test_pve::TestPve;

/// A terminal with `height` lines: its content and its cursor. Lines that scroll out are kept.
#[derive(Default)]
struct Terminal {
    height: usize,
    lines: Vec<String>,
    row: usize,
    /// Index of the first visible line.
    top: usize,
    /// Maximum of lines that the cursor moved up.
    max_up: usize,
}

impl Terminal {
    fn new(height: usize) -> Self {
        Self {
            height,
            lines: vec![String::new()],
            ..Self::default()
        }
    }

    /// Prints text; panics at escape codes other than those that are used.
    fn show(&mut self, text: &str) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match c {
                '\x1b' => rest = self.apply_code(rest),
                '\r' => {}
                '\n' => {
                    self.row += 1;
                    if self.row == self.lines.len() {
                        self.lines.push(String::new());
                    }
                    self.top = self.top.max((self.row + 1).saturating_sub(self.height));
                }
                c => self.lines[self.row].push(c),
            }
        }
    }

    fn apply_code<'t>(&mut self, rest: &'t str) -> &'t str {
        let body = rest.strip_prefix('[').expect("a code begins with [");
        let end = body.find(|c: char| c.is_ascii_alphabetic()).unwrap();
        let (number, letter) = (&body[..end], &body[end..=end]);
        match letter {
            "A" => {
                let up: usize = number.parse().unwrap();
                self.max_up = self.max_up.max(up);
                assert!(self.row - up >= self.top, "above the top of the terminal");
                self.row -= up;
            }
            "K" => self.lines[self.row].clear(),
            "J" => {
                self.lines.truncate(self.row + 1);
                self.lines[self.row].clear();
            }
            "m" => {}
            other => panic!("the code {number}{other} is not expected"),
        }
        &body[end + 1..]
    }
}

/// Quotes for the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Runs the program on a terminal of this size, and returns its output.
fn on_terminal(host: &TestPve, arguments: &[&str], lines: usize, columns: usize) -> String {
    let (text, success) = run_on_terminal(&host.command(arguments), lines, columns);
    assert!(success, "{text}");
    text
}

/// Runs a command on a terminal; returns its output and whether it succeeded.
pub(crate) fn run_on_terminal(program: &Command, lines: usize, columns: usize) -> (String, bool) {
    let words: Vec<String> = std::iter::once(program.get_program())
        .chain(program.get_args())
        .map(|word| quoted(word.to_str().unwrap()))
        .collect();
    let line = format!("stty rows {lines} cols {columns}; exec {}", words.join(" "));
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env_clear();
    command.envs(
        program
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    command.env("TERM", "xterm").env("SHELL", "/bin/sh");
    if let Some(directory) = program.get_current_dir() {
        command.current_dir(directory);
    }
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (text, output.status.success())
}

/// A host on which a machine takes about a second, so that the tree is drawn several times.
fn slow_host() -> TestPve {
    TestPve::new(Pace::Accelerated(40.0), Timing::default())
}

const APPLY: [&str; 6] = ["manifest", "apply", "-M", "workers", "-H", "father"];

#[test]
fn a_tree_is_drawn_in_place_and_ends_as_a_table() {
    let host = slow_host();
    host.workers(3, "");
    let text = on_terminal(&host, &APPLY, 24, 80);
    assert!(
        text.contains("\x1b[4A"),
        "three nodes and a last line: {text}"
    );
    assert!(text.contains("0 of 3 done"), "{text}");
    let mut terminal = Terminal::new(24);
    terminal.show(&text);
    assert_eq!(terminal.max_up, 4);
    let end = terminal.lines.join("\n");
    assert!(!end.contains("of 3 done"), "the tree is removed: {end}");
    for word in ["NODE", "worker-1", "worker-2", "worker-3", "completed"] {
        assert!(end.contains(word), "{word}: {end}");
    }
}

#[test]
fn a_tree_is_never_taller_or_wider_than_the_terminal() {
    let host = slow_host();
    host.workers(12, "");
    let text = on_terminal(&host, &APPLY, 8, 30);
    let mut terminal = Terminal::new(8);
    terminal.show(&text);
    assert!((1..8).contains(&terminal.max_up), "{}", terminal.max_up);
    // The text between two upward movements is one frame.
    for picture in text
        .split("\x1b[0J")
        .filter(|part| part.contains("\x1b[2K"))
    {
        let picture = &picture[picture.find("\x1b[2K").unwrap()..];
        let mut alone = Terminal::new(100);
        alone.show(picture);
        assert!(alone.lines.len() <= 8, "{picture}");
        for line in &alone.lines {
            assert!(line.chars().count() < 30, "{line}");
        }
    }
    let end = terminal.lines.join("\n");
    assert!(
        end.contains("worker-12") && end.contains("completed"),
        "{end}"
    );
}

#[test]
fn without_a_terminal_output_is_plain_lines_without_escape_codes() {
    let host = TestPve::quick();
    host.workers(2, "");
    let run = host.run(&APPLY);
    assert!(
        !run.err.contains('\x1b') && !run.out.contains('\x1b'),
        "{}",
        run.err
    );
    assert!(run.err.contains("worker-1: created"), "{}", run.err);
    assert!(run.out.contains("completed"), "{}", run.out);
}
