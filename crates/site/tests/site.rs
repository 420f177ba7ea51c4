//! Finding, loading and starting sites, on real directories.
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
fn places_are_looked_at_in_order_and_the_first_that_is_there_wins() {
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
        let place = site_at(&root.join(step));
        assert_eq!(
            find(&candidates).unwrap().source,
            SiteSource::Directory(place),
            "{step}"
        );
    }
    let anchor = root.join("anchor");
    let place = site_at(&anchor.join("config"));
    candidates.root = Some(anchor);
    assert_eq!(
        find(&candidates).unwrap().source,
        SiteSource::Directory(place)
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
fn a_place_that_was_named_and_is_not_there_is_an_error() {
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
fn a_site_that_belongs_to_somebody_else_is_not_taken_unless_it_is_named() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let place = site_at(&root.join("work/here/site-config"));
    let stranger = Candidates {
        owners: vec![own_user(root) + 1],
        ..candidates(root)
    };
    let error = find(&stranger).unwrap_err();
    assert!(
        matches!(&error, FindError::Untrusted { path, .. } if *path == place),
        "{error}"
    );
    assert!(find(&candidates(root)).is_ok());
    let named = Candidates {
        site_config: Some(place.clone()),
        ..stranger
    };
    assert_eq!(find(&named).unwrap().source, SiteSource::Directory(place));
}

#[test]
fn links_and_documents_of_a_site_count_as_well_as_its_directory() {
    // Only root can give files away.
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    if own_user(root) != 0 {
        return;
    }
    let other = 12345;
    let place = root.join("work/here/site-config");
    std::fs::create_dir_all(root.join("work/here")).unwrap();
    let real = site_at(&root.join("real"));
    std::os::unix::fs::symlink(&real, &place).unwrap();
    assert!(find(&candidates(root)).is_ok());
    std::os::unix::fs::lchown(&place, Some(other), None).unwrap();
    assert!(
        find(&candidates(root)).is_err(),
        "the link is another user's"
    );
    std::os::unix::fs::lchown(&place, Some(0), None).unwrap();
    std::os::unix::fs::chown(&real, Some(other), None).unwrap();
    assert!(find(&candidates(root)).is_err(), "what it points at is");
    std::os::unix::fs::chown(&real, Some(0), None).unwrap();
    let document = real.join("site.yaml");
    std::fs::write(&document, "schema_version: 1\n").unwrap();
    assert!(find(&candidates(root)).is_ok());
    std::os::unix::fs::chown(&document, Some(other), None).unwrap();
    let error = find(&candidates(root)).unwrap_err();
    assert!(error.to_string().contains("site.yaml"), "{error}");
}

#[test]
fn a_site_that_others_can_write_to_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let place = site_at(&root.join("work/here/site-config"));
    let named = Candidates {
        flag: Some(place.clone()),
        ..candidates(root)
    };
    for mode in [0o777, 0o1777, 0o757] {
        set_mode(&place, mode);
        for candidates in [&candidates(root), &named] {
            let error = find(candidates).unwrap_err();
            assert!(
                matches!(&error, FindError::Untrusted { path, .. } if *path == place),
                "{mode:o}: {error}"
            );
        }
    }
    set_mode(&place, 0o755);
    let document = place.join("site.yaml");
    std::fs::write(&document, "schema_version: 1\n").unwrap();
    set_mode(&document, 0o666);
    assert!(find(&candidates(root)).is_err());
    assert!(find(&named).is_err());
    set_mode(&document, 0o644);
    assert!(find(&candidates(root)).is_ok());
    assert!(find(&named).is_ok());
}

#[test]
fn every_document_that_is_read_is_checked_and_all_that_are_wrong_are_listed() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let place = site_at(&root.join("work/here/site-config"));
    let named = Candidates {
        flag: Some(place.clone()),
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
        let path = place.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "a: b\n").unwrap();
        set_mode(&path, 0o666);
    }
    set_mode(&place.join("v2/specs"), 0o777);
    // Nobody reads this one.
    std::fs::write(place.join("specs/notes.txt"), "").unwrap();
    set_mode(&place.join("specs/notes.txt"), 0o666);
    for candidates in [&candidates(root), &named] {
        let error = find(candidates).unwrap_err().to_string();
        for name in documents.iter().chain(&["v2/specs"]) {
            let told = format!("write to `{}`", place.join(name).display());
            assert!(error.contains(&told), "{name}: {error}");
        }
        assert!(!error.contains("notes.txt"), "{error}");
    }
    for name in documents {
        set_mode(&place.join(name), 0o644);
    }
    set_mode(&place.join("v2/specs"), 0o755);
    find(&candidates(root)).unwrap();
    // Only root can give files away.
    if own_user(root) == 0 {
        std::os::unix::fs::chown(place.join(documents[0]), Some(12345), None).unwrap();
        let error = find(&candidates(root)).unwrap_err().to_string();
        assert!(error.contains("belongs to the user 12345"), "{error}");
        find(&named).unwrap();
    }
}

#[test]
fn a_site_of_a_group_is_taken_when_it_is_named_or_the_group_is_the_owners_own() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    if own_user(root) != 0 {
        return;
    }
    let place = site_at(&root.join("work/here/site-config"));
    set_mode(&place, 0o775);
    assert!(find(&candidates(root)).is_ok());
    std::os::unix::fs::chown(&place, None, Some(12345)).unwrap();
    assert!(find(&candidates(root)).is_err());
    let named = Candidates {
        flag: Some(place.clone()),
        ..candidates(root)
    };
    assert!(find(&named).is_ok());
}

#[test]
fn a_directory_with_nothing_of_a_site_in_it_is_passed_over() {
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
fn the_stock_site_in_the_program_is_the_one_in_the_tree() {
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
fn the_stock_site_has_no_fault_and_no_notice() {
    let catalog = load_stock().catalog();
    let faults = validate(&catalog);
    assert_eq!(
        faults
            .iter()
            .map(|fault| fault.message.as_str())
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
fn a_started_site_is_valid_private_and_not_written_twice() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().join("site");
    init(&place).unwrap();
    let mode = std::fs::metadata(place.join("secrets.yaml"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    let ignored = std::fs::read_to_string(place.join(".gitignore")).unwrap();
    assert!(ignored.lines().any(|line| line == "*.homestak-new"));
    let catalog = load(&place, &|text| Ok(text.to_owned())).catalog();
    // Whose keys it is for is not known yet, and Debian's images are the latest ones.
    let said: Vec<Code> = validate(&catalog).iter().map(|fault| fault.code).collect();
    let unpinned = Code::UnpinnedImage;
    assert_eq!(said, [unpinned, unpinned, Code::NoKeys]);
    assert!(matches!(init(&place), Err(InitError::NotEmpty(_))));
    let other = root.path().join("other");
    init(&other).unwrap();
    let secrets = |place: &Path| std::fs::read_to_string(place.join("secrets.yaml")).unwrap();
    assert_ne!(
        secrets(&place),
        secrets(&other),
        "each site has a signing key of its own"
    );
}

#[test]
fn the_older_layout_loads_and_the_flat_one_wins() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path();
    let write = |path: &str, text: &str| {
        let path = place.join(path);
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
    let catalog = load(place, &|text| Ok(text.to_owned())).catalog();
    let faults = validate(&catalog);
    assert_eq!(faults.errors(), 0);
    let mut codes: Vec<&str> = faults.iter().map(|fault| fault.code.id()).collect();
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
    assert!(catalog.nodes.is_empty(), "v2/nodes held something else");
}

#[test]
fn pipes_and_binary_files_are_reported_and_nothing_waits() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path();
    std::fs::create_dir_all(place.join("specs")).unwrap();
    std::fs::write(place.join("specs/binary.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(place.join("specs/pipe.yaml"))
        .status()
        .unwrap();
    assert!(made.success());
    let loaded = load(place, &|text| Ok(text.to_owned()));
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
fn git_is_asked_only_about_the_files_named() {
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
        "there is no repository"
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
