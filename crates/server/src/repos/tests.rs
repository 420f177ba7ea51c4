//! Which paths name files of repositories, and which do not.

use super::*;

const A: &str = "0123456789abcdef0123456789abcdef01234567";

fn what(path: &str) -> Option<RepoFile> {
    parse(&format!("/x.git/{path}")).map(|request| request.what)
}

#[test]
fn the_files_that_git_asks_for_have_their_kinds() {
    for (path, kind) in [
        ("HEAD", GitKind::Text),
        ("info/refs", GitKind::Text),
        ("packed-refs", GitKind::Text),
        ("objects/info/packs", GitKind::Text),
        ("refs/heads/_working", GitKind::Text),
        ("refs/tags/v1.0+rc", GitKind::Text),
        (&format!("objects/{}/{}", &A[..2], &A[2..]), GitKind::Loose),
        (&format!("objects/pack/pack-{A}.pack"), GitKind::Pack),
        (&format!("objects/pack/pack-{A}.idx"), GitKind::Index),
    ] {
        assert_eq!(what(path), Some(RepoFile::Git(path.to_owned(), kind)));
    }
}

#[test]
fn other_files_of_a_git_directory_are_never_sent() {
    for path in [
        "config",
        "Config",
        "description",
        "index",
        "homestak.json",
        "hooks/pre-commit",
        "HOOKS/x",
        "logs/HEAD",
        "logs/refs/heads/main",
        "objects/info/alternates",
        "objects/info/http-alternates",
        "info/exclude",
        "info/attributes",
        "refs/stash",
        "refs/heads",
        "refs/remotes/origin/main",
        "refs/heads/a.lock",
        "refs/heads/-a",
        "FETCH_HEAD",
        "ORIG_HEAD",
        "worktrees/a/HEAD",
        "objects/pack/pack-x.pack",
        "objects/pack/tmp_pack_x",
        "objects/00/x",
        &format!("objects/pack/pack-{}.pack", A.to_uppercase()),
        &format!("objects/pack/pack-{A}.keep"),
        &format!("objects/pack/pack-{A}.rev"),
        &format!("objects/{}/{}", &A[..2], &A[2..39]),
    ] {
        assert_eq!(what(path), Some(RepoFile::Hidden), "{path}");
    }
}

#[test]
fn raw_paths_are_decoded_once() {
    for (path, decoded) in [
        ("README.md", "README.md"),
        ("a/b%20c.txt", "a/b c.txt"),
        ("%C3%A4.txt", "ä.txt"),
        ("ä.txt", "ä.txt"),
        ("100%25.txt", "100%.txt"),
        ("a+b", "a+b"),
        ("-x", "-x"),
        (":(glob)x", ":(glob)x"),
        ("a...b", "a...b"),
        (".gitignore", ".gitignore"),
        ("modules/vm/main.tf", "modules/vm/main.tf"),
        ("conf/config", "conf/config"),
        ("head", "head"),
    ] {
        let raw = RepoFile::Raw(decoded.to_owned());
        assert_eq!(what(path), Some(raw), "{path}");
    }
}

#[test]
fn every_spelling_of_a_traversal_is_malformed() {
    for path in [
        "..",
        "../x",
        "a/../b",
        "a/..",
        "./a",
        "a/./b",
        "a//b",
        "/a",
        "",
        "a\\..\\b",
        "a%5cb",
        "%2e%2e/x",
        "%2E%2E/x",
        ".%2e/x",
        "a%2f..%2fb",
        "a%2Fb",
        "%252e%252e/x",
        "%25252e/x",
        "a%2541",
        "a%25ffb",
        "a%00b",
        "a%0ab",
        "a%0d%0aX: y",
        "a%7f",
        "a%1b[31m",
        "%c0%ae%c0%ae/x",
        "%ff",
        ".git/config",
        ".GIT/config",
        ".Git/config",
        "a/.git/config",
        "a/.giT",
        ".git%20/config",
        ".git./config",
        ".git::$INDEX_ALLOCATION/config",
        "git~1/config",
        "GIT~1/config",
        ".g%e2%80%8cit/config",
        "%ef%bb%bf.git/config",
        "objects/../config",
        "objects/../../../etc/passwd",
        "info/../config",
        "refs/heads/../../config",
        "refs/../config",
        "objects/%2e%2e/config",
        "HEAD/../config",
    ] {
        assert_eq!(what(path), None, "{path}");
    }
    assert_eq!(what(&"a/".repeat(600)), None);
    assert_eq!(what(&"a".repeat(256)), None);
}

#[test]
fn names_of_repositories_have_one_spelling() {
    for path in [
        "/.git/config",
        "/..git/HEAD",
        "/%78.git/HEAD",
        "/a/x.git/HEAD",
        "//x.git/HEAD",
        "/x.GIT/HEAD",
        "/x.git",
        "/x.git.git/HEAD",
        "/-x.git/HEAD",
        "/x%2fy.git/HEAD",
        "/x\\y.git/HEAD",
        "x.git/HEAD",
    ] {
        assert_eq!(parse(path), None, "{path}");
    }
}

#[test]
fn content_types_follow_the_ending() {
    for (path, kind) in [
        ("a.sh", "text/x-shellscript"),
        ("a/b.py", "text/x-python"),
        ("a.yaml", "text/yaml"),
        ("a.yml", "text/yaml"),
        ("a.sh/b", "application/octet-stream"),
        ("install", "application/octet-stream"),
    ] {
        assert_eq!(content_type(path), kind, "{path}");
    }
}
