//! Finding, loading and creating sites in real directories.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests make real files and processes, and a panic is how they fail"
)]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use homestak_core::doc::{Code, DocumentKind};
use homestak_core::resolve::site::validate;
use homestak_site::find::{FindError, SearchOutcome};
use homestak_site::{Candidates, InitError, SiteSource, find, git, init, load, load_stock, stock};

fn site_at(path: &Path) -> PathBuf {
    std::fs::create_dir_all(path.join("manifests")).unwrap();
    path.to_owned()
}

fn own_user(root: &Path) -> u32 {
    std::fs::metadata(root).unwrap().uid()
}

fn candidates(root: &Path) -> Candidates {
    Candidates {
        working_directory: root.join("work/here"),
        owners: vec![own_user(root)],
        system_root: root.join("system"),
        ..Candidates::default()
    }
}

#[test]
fn paths_are_searched_in_order_and_the_first_site_is_used() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    std::fs::create_dir_all(root.join("work/here")).unwrap();
    let mut candidates = candidates(root);
    assert_eq!(find(&candidates).unwrap().source, SiteSource::Stock);
    let steps = [
        "system/opt/homestak/site-config",
        "system/usr/local/etc/homestak",
        "work/site-config",
        "work/here/site-config",
    ];
    for step in steps {
        let site = site_at(&root.join(step));
        assert_eq!(
            find(&candidates).unwrap().source,
            SiteSource::Directory(site),
            "{step}"
        );
    }
    let anchor = root.join("anchor");
    let site = site_at(&anchor.join("config"));
    candidates.root = Some(anchor);
    assert_eq!(
        find(&candidates).unwrap().source,
        SiteSource::Directory(site)
    );
    candidates.site_config = Some(site_at(&root.join("variable")));
    assert_eq!(
        find(&candidates).unwrap().source,
        SiteSource::Directory(root.join("variable"))
    );
    candidates.flag = Some(site_at(&root.join("flag")));
    let found = find(&candidates).unwrap();
    assert_eq!(found.source, SiteSource::Directory(root.join("flag")));
    assert_eq!(
        found.searched.last().map(|look| (look.by, look.outcome)),
        Some(("--site", SearchOutcome::Used))
    );
}

#[test]
fn a_missing_explicit_path_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let named = Candidates {
        site_config: Some(root.path().join("gone")),
        ..candidates(root.path())
    };
    let error = find(&named).unwrap_err();
    assert!(
        matches!(error, FindError::Missing { by, .. } if by == "$HOMESTAK_SITE_CONFIG"),
        "{error}"
    );
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_site_of_another_user_is_used_only_if_given_explicitly() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let site = site_at(&root.join("work/here/site-config"));
    let other_user = Candidates {
        owners: vec![own_user(root) + 1],
        ..candidates(root)
    };
    let error = find(&other_user).unwrap_err();
    assert!(
        matches!(&error, FindError::Untrusted { path, .. } if *path == site),
        "{error}"
    );
    assert!(find(&candidates(root)).is_ok());
    let named = Candidates {
        site_config: Some(site.clone()),
        ..other_user
    };
    assert_eq!(find(&named).unwrap().source, SiteSource::Directory(site));
}

#[test]
fn links_and_documents_of_a_site_are_checked_like_its_directory() {
    // Only root can change the owner.
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    if own_user(root) != 0 {
        return;
    }
    let other = 12345;
    let site = root.join("work/here/site-config");
    std::fs::create_dir_all(root.join("work/here")).unwrap();
    let real = site_at(&root.join("real"));
    std::os::unix::fs::symlink(&real, &site).unwrap();
    assert!(find(&candidates(root)).is_ok());
    std::os::unix::fs::lchown(&site, Some(other), None).unwrap();
    assert!(
        find(&candidates(root)).is_err(),
        "the link belongs to another user"
    );
    std::os::unix::fs::lchown(&site, Some(0), None).unwrap();
    std::os::unix::fs::chown(&real, Some(other), None).unwrap();
    assert!(
        find(&candidates(root)).is_err(),
        "the target belongs to another user"
    );
    std::os::unix::fs::chown(&real, Some(0), None).unwrap();
    let document = real.join("site.yaml");
    std::fs::write(&document, "schema_version: 1\n").unwrap();
    assert!(find(&candidates(root)).is_ok());
    std::os::unix::fs::chown(&document, Some(other), None).unwrap();
    let error = find(&candidates(root)).unwrap_err();
    assert!(error.to_string().contains("site.yaml"), "{error}");
}

#[test]
fn a_world_writable_site_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let site = site_at(&root.join("work/here/site-config"));
    let named = Candidates {
        flag: Some(site.clone()),
        ..candidates(root)
    };
    for mode in [0o777, 0o1777, 0o757] {
        set_mode(&site, mode);
        for candidates in [&candidates(root), &named] {
            let error = find(candidates).unwrap_err();
            assert!(
                matches!(&error, FindError::Untrusted { path, .. } if *path == site),
                "{mode:o}: {error}"
            );
        }
    }
    set_mode(&site, 0o755);
    let document = site.join("site.yaml");
    std::fs::write(&document, "schema_version: 1\n").unwrap();
    set_mode(&document, 0o666);
    assert!(find(&candidates(root)).is_err());
    assert!(find(&named).is_err());
    set_mode(&document, 0o644);
    assert!(find(&candidates(root)).is_ok());
    assert!(find(&named).is_ok());
}

#[test]
fn all_untrusted_documents_are_listed() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let site = site_at(&root.join("work/here/site-config"));
    let named = Candidates {
        flag: Some(site.clone()),
        ..candidates(root)
    };
    let documents = [
        "specs/web.yaml",
        "postures/dev.yml",
        "images/own.yaml",
        "v2/specs/old.yaml",
        ".sops.yaml",
    ];
    for name in documents {
        let path = site.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "a: b\n").unwrap();
        set_mode(&path, 0o666);
    }
    set_mode(&site.join("v2/specs"), 0o777);
    // This file is not read.
    std::fs::write(site.join("specs/notes.txt"), "").unwrap();
    set_mode(&site.join("specs/notes.txt"), 0o666);
    for candidates in [&candidates(root), &named] {
        let error = find(candidates).unwrap_err().to_string();
        for name in documents.iter().chain(&["v2/specs"]) {
            let message = format!("write to `{}`", site.join(name).display());
            assert!(error.contains(&message), "{name}: {error}");
        }
        assert!(!error.contains("notes.txt"), "{error}");
    }
    for name in documents {
        set_mode(&site.join(name), 0o644);
    }
    set_mode(&site.join("v2/specs"), 0o755);
    find(&candidates(root)).unwrap();
    // Only root can change the owner.
    if own_user(root) == 0 {
        std::os::unix::fs::chown(site.join(documents[0]), Some(12345), None).unwrap();
        let error = find(&candidates(root)).unwrap_err().to_string();
        assert!(error.contains("belongs to user 12345"), "{error}");
        find(&named).unwrap();
    }
}

#[test]
fn a_group_writable_site_is_used_if_explicit_or_of_the_private_group() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    if own_user(root) != 0 {
        return;
    }
    let site = site_at(&root.join("work/here/site-config"));
    set_mode(&site, 0o775);
    assert!(find(&candidates(root)).is_ok());
    std::os::unix::fs::chown(&site, None, Some(12345)).unwrap();
    assert!(find(&candidates(root)).is_err());
    let named = Candidates {
        flag: Some(site.clone()),
        ..candidates(root)
    };
    assert!(find(&named).is_ok());
}

#[test]
fn a_directory_without_files_of_a_site_is_skipped() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("work/here/site-config")).unwrap();
    let found = find(&candidates(root.path())).unwrap();
    assert_eq!(found.source, SiteSource::Stock);
    assert!(
        found
            .searched
            .iter()
            .any(|look| look.by == "./site-config" && look.outcome == SearchOutcome::Empty)
    );
}

#[test]
fn the_built_in_stock_site_matches_the_source_tree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../stock-site");
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(
                    path.strip_prefix(&root)
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned(),
                );
            }
        }
    }
    files.sort();
    let built_in: Vec<&str> = stock::FILES.iter().map(|(path, _)| *path).collect();
    assert_eq!(built_in, files);
}

#[test]
fn the_stock_site_has_no_diagnostics() {
    let catalog = load_stock().catalog();
    let diagnostics = validate(&catalog);
    assert_eq!(
        diagnostics
            .iter()
            .map(|one| one.message.as_str())
            .collect::<Vec<_>>(),
        Vec::<&str>::new()
    );
    let names: Vec<&str> = catalog.manifests.keys().map(String::as_str).collect();
    let expected = [
        "cluster",
        "edge",
        "multi-site",
        "n1-pull",
        "n1-push",
        "n2-mixed",
        "n2-tiered",
        "n3-deep",
        "workers",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_new_site_is_valid_private_and_not_overwritten() {
    let root = tempfile::tempdir().unwrap();
    let site = root.path().join("site");
    init(&site).unwrap();
    let mode = std::fs::metadata(site.join("secrets.yaml"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    let ignored = std::fs::read_to_string(site.join(".gitignore")).unwrap();
    for pattern in ["*.homestak-new", "*secrets.y*", "!secrets.yaml.enc"] {
        assert!(ignored.lines().any(|line| line == pattern), "{pattern}");
    }
    let catalog = load(&site, &|text| Ok(text.to_owned())).catalog();
    // A new site has no keys, and the Debian images are the latest ones.
    let codes: Vec<Code> = validate(&catalog).iter().map(|one| one.code).collect();
    let unpinned = Code::UnpinnedImage;
    assert_eq!(codes, [unpinned, unpinned, Code::NoKeys]);
    assert!(matches!(init(&site), Err(InitError::NotEmpty(_))));
    let other = root.path().join("other");
    init(&other).unwrap();
    let secrets = |site: &Path| std::fs::read_to_string(site.join("secrets.yaml")).unwrap();
    assert_ne!(
        secrets(&site),
        secrets(&other),
        "each site has its own signing key"
    );
}

#[test]
fn the_flat_layout_overrides_the_older_one() {
    let root = tempfile::tempdir().unwrap();
    let site = root.path();
    let write = |path: &str, text: &str| {
        let path = site.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("v2/specs/base.yaml", "schema_version: 1\n");
    write(
        "v2/presets/vm-small.yaml",
        "cores: 1\nmemory: 1024\ndisk: 8\n",
    );
    write(
        "presets/vm-small.yaml",
        "cores: 2\nmemory: 2048\ndisk: 10\n",
    );
    write("v2/nodes/old.yaml", "type: vm\n");
    write(
        "v2/manifests/m.yaml",
        "schema_version: 2\nname: m\nnodes: [{name: a, spec: base, preset: vm-small}]\n",
    );
    let catalog = load(site, &|text| Ok(text.to_owned())).catalog();
    let diagnostics = validate(&catalog);
    assert_eq!(diagnostics.errors(), 0);
    let mut codes: Vec<&str> = diagnostics.iter().map(|one| one.code.id()).collect();
    codes.sort_unstable();
    codes.dedup();
    assert!(
        codes.contains(&"SK0906") && codes.contains(&"SK0907"),
        "{codes:?}"
    );
    let cores = catalog.presets["vm-small"]
        .value
        .as_ref()
        .unwrap()
        .cores
        .as_ref()
        .unwrap()
        .value
        .0;
    assert_eq!(cores, 2);
    assert!(catalog.nodes.is_empty(), "v2/nodes is ignored");
}

#[test]
fn pipes_and_binary_files_are_reported_without_blocking() {
    let root = tempfile::tempdir().unwrap();
    let site = root.path();
    std::fs::create_dir_all(site.join("specs")).unwrap();
    std::fs::write(site.join("specs/binary.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    let mkfifo = std::process::Command::new("mkfifo")
        .arg(site.join("specs/pipe.yaml"))
        .status()
        .unwrap();
    assert!(mkfifo.success());
    let loaded = load(site, &|text| Ok(text.to_owned()));
    let specs = loaded
        .inputs
        .iter()
        .filter(|input| input.kind == DocumentKind::Spec);
    let codes: Vec<&str> = specs
        .map(|input| input.text.as_ref().unwrap_err().code.id())
        .collect();
    assert_eq!(codes, ["SK0102", "SK0101"]);
}

#[test]
fn only_the_given_files_are_checked_in_git() {
    let root = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let status = std::process::Command::new("git")
            .arg("-C")
            .arg(root.path())
            .args(arguments)
            .status()
            .unwrap();
        assert!(status.success());
    };
    std::fs::write(root.path().join("secrets.yaml"), "a: b\n").unwrap();
    std::fs::write(root.path().join("other.yaml"), "a: b\n").unwrap();
    assert!(
        git::tracked(root.path(), &["secrets.yaml".into()]).is_empty(),
        "no repository yet"
    );
    run(&["init", "-q"]);
    assert!(git::tracked(root.path(), &["secrets.yaml".into()]).is_empty());
    run(&["add", "-f", "secrets.yaml", "other.yaml"]);
    assert_eq!(
        git::tracked(root.path(), &["secrets.yaml".into()]),
        ["secrets.yaml"]
    );
    assert!(git::tracked(root.path(), &[]).is_empty());
}
