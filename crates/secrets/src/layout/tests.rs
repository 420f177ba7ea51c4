//! Layouts of various documents.

use homestak_core::doc::{Diagnostics, FileId, Source, yaml};

use super::*;

fn layout(text: &str) -> Result<Layout, LayoutError> {
    let mut diagnostics = Diagnostics::default();
    let root = yaml::parse(FileId(0), &Source::new("x", text), &mut diagnostics).unwrap();
    Layout::of(text, &root)
}

/// Lists the items of a walk: `path = bytes` for values, `path # text` for comments.
fn walked(text: &str) -> Vec<String> {
    let layout = layout(text).unwrap();
    let mut seen = Vec::new();
    layout
        .walk::<()>(text, &mut |visit, path, _| {
            let aad = aad(path);
            seen.push(match visit {
                WalkItem::Leaf(_, leaf) => format!("{aad} = {}", &text[leaf.range.clone()]),
                WalkItem::Comment(_, comment) => format!("{aad} #{}", comment.text(text)),
            });
            Ok(())
        })
        .unwrap();
    seen
}

#[test]
fn values_of_every_style_have_exact_ranges() {
    let text =
        "a: 1 # c\nb: \"x # y\" # d\nc: 'it''s'\nd: plain\n  goes on\ne:\nf: ~\ng: !!str 5\n";
    assert_eq!(
        walked(text),
        [
            ": # c",
            "a: = 1",
            ": # d",
            "b: = \"x # y\"",
            "c: = 'it''s'",
            "d: = plain\n  goes on",
            "g: = !!str 5",
        ]
    );
}

#[test]
fn the_lines_of_a_block_are_cut_and_its_comment_stays() {
    let text = "a: |- # note\n  one\n  two\n\nb: x\n";
    let layout = layout(text).unwrap();
    let leaf = &layout.leaves[0];
    assert_eq!(&text[leaf.range.clone()], "|-");
    assert_eq!(&text[leaf.cut.clone().unwrap()], "\n  one\n  two");
    assert_eq!(walked(text), [": # note", "a: = |-", "b: = x"]);
}

#[test]
fn lists_are_not_part_of_the_path() {
    let text = "l:\n- a\n# c\n- b: 1\n  # d\n  c: [x, {y: z}]\n- - n\n  - m\n-\n- o\n";
    assert_eq!(
        walked(text),
        [
            "l: = a",
            "l: # c",
            "l:b: = 1",
            "l: # d",
            "l:c: = x",
            "l:c:y: = z",
            "l: = n",
            "l: = m",
            "l: = o",
        ]
    );
}

#[test]
fn comments_belong_to_the_entry_below_or_to_the_end_of_the_one_above() {
    let text =
        "# top\n\na:\n  # first\n  b: 1\n  # last in a\nc:\n    d: 2\n# before e\ne: 3\n# end\n";
    assert_eq!(
        walked(text),
        [
            ": # top",
            "a: # first",
            "a:b: = 1",
            "a: # last in a",
            "c:d: = 2",
            ": # before e",
            "e: = 3",
            ": # end",
        ]
    );
}

#[test]
fn the_sops_block_is_skipped_and_its_lines_are_found() {
    let text = "a: 1\nsops:\n    mac: x\n    age:\n        - enc: |\n            block\n# end\n";
    let layout = layout(text).unwrap();
    let lines = &text[layout.metadata.clone().unwrap()];
    assert!(
        lines.starts_with("sops:") && lines.ends_with("block\n"),
        "{lines}"
    );
    assert_eq!(walked(text), ["a: = 1", ": # end"]);
}

#[test]
fn applicable_comments_are_those_directly_above() {
    let text = "# one\n# two\na: 1\nb: 2 # three\nc:\n  # four\n  d: 3\n";
    let mut seen = Vec::new();
    layout(text)
        .unwrap()
        .walk::<()>(text, &mut |visit, path, comments| {
            if let WalkItem::Leaf(..) = visit {
                let all: Vec<&str> = comments.iter().flatten().map(|line| line.trim()).collect();
                seen.push(format!("{} {}", path.join("."), all.join(",")));
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, ["a one,two", "b three", "c.d four"]);
}

#[test]
fn aliases_anchors_and_merges_are_refused() {
    for text in [
        "a: &x 1\nb: *x\n",
        "a: &x\n  b: 1\nc: *x\n",
        "a: {k: v}\nb:\n  <<: {c: d}\n  e: f\n",
        "a: {k: v}\nb:\n  e: f\n  <<: {c: d}\n",
        "a: &x {}\nb: *x\n",
        "a: &unused 1\n",
    ] {
        assert_eq!(layout(text).err(), Some(LayoutError::Alias), "{text}");
    }
}

#[test]
fn a_key_that_is_not_a_string_is_found() {
    assert_eq!(
        layout("1: a\n").unwrap().non_string_key.as_deref(),
        Some("1")
    );
    assert_eq!(layout("'1': a\nyes: b\n").unwrap().non_string_key, None);
}
