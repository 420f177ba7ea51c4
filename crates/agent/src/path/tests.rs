//! Attacks with paths, on a directory that stands for `/`.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use homestak_api::durable::Access;
use rustix::fs::{CWD, Mode};
use tempfile::TempDir;

use super::{DIRECTORY, Directory, Entry, PathError, Walk, WritableBy, read};

const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;

/// A root directory with a home directory; `None` unless root runs the test, which changes owners.
struct Root(TempDir);

impl Root {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let root = Self(tempfile::tempdir().unwrap());
        for directory in ["etc", "home"] {
            fs_err::create_dir(root.at(directory)).unwrap();
        }
        root.directory("home/alice", ALICE, 0o755);
        Some(root)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn directory(&self, path: &str, owner: u32, mode: u32) {
        fs_err::create_dir(self.at(path)).unwrap();
        self.set(path, owner, mode);
    }

    fn set(&self, path: &str, owner: u32, mode: u32) {
        chown(self.at(path), Some(owner), Some(owner)).unwrap();
        let mode = std::fs::Permissions::from_mode(mode);
        fs_err::set_permissions(self.at(path), mode).unwrap();
    }

    /// Creates a symbolic link.
    fn link(&self, path: &str, target: &str, owner: u32) {
        symlink(target, self.at(path)).unwrap();
        std::os::unix::fs::lchown(self.at(path), Some(owner), Some(owner)).unwrap();
    }

    fn walk(&self, creates: bool) -> Walk {
        let fd = rustix::fs::openat(CWD, self.0.path(), DIRECTORY, Mode::empty()).unwrap();
        let device = rustix::fs::fstat(&fd).unwrap().st_dev;
        let root = Directory {
            fd,
            path: PathBuf::from("/"),
            device,
            writable_by: WritableBy::Root,
            open: true,
        };
        Walk::from(root, creates)
    }

    fn parent(&self, path: &str) -> Result<Directory, PathError> {
        let (directory, _) = self.walk(false).parent(Path::new(path))?;
        Ok(directory)
    }

    fn refusal(&self, path: &str) -> String {
        let error = self.parent(path).unwrap_err();
        assert!(error.by_user);
        error.source.to_string()
    }

    fn owner(&self, path: &str) -> (u32, u32) {
        let meta = fs_err::symlink_metadata(self.at(path)).unwrap();
        (meta.uid(), meta.mode() & 0o7777)
    }
}

fn owned(owner: u32) -> Access {
    Access {
        mode: 0o600,
        owner: Some((owner, owner)),
    }
}

#[test]
fn links_of_root_in_directories_of_root_are_followed_and_no_others() {
    let Some(root) = Root::new() else { return };
    root.directory("srv", 0, 0o755);
    root.directory("srv/homes", 0, 0o755);
    root.link("etc/near", "../srv", 0);
    root.link("srv/far", "/etc/near/homes", 0);
    assert_eq!(
        root.parent("/srv/far/x").unwrap().path,
        Path::new("/srv/homes")
    );
    // Owned by a user, or where a user could have created it.
    root.link("srv/theirs", "homes", ALICE);
    assert!(root.refusal("/srv/theirs/x").contains("is a symbolic link"));
    root.link("home/alice/conf", "/etc", 0);
    assert!(
        root.refusal("/home/alice/conf/x")
            .contains("/home/alice/conf")
    );
    root.directory("tmp", 0, 0o1777);
    root.link("tmp/conf", "/etc", 0);
    assert!(root.refusal("/tmp/conf/x").contains("is a symbolic link"));
    // Loops are detected.
    root.link("etc/a", "b", 0);
    root.link("etc/b", "a", 0);
    assert!(root.parent("/etc/a/x").is_err());
    assert!(
        root.refusal("/home/alice/../../etc/x")
            .contains("leads out")
    );
}

#[test]
fn a_path_belongs_to_its_first_user_and_directories_of_others_below_are_refused() {
    let Some(root) = Root::new() else { return };
    let writable_by = |path: &str| root.parent(path).unwrap().writable_by();
    assert_eq!(writable_by("/etc/x"), WritableBy::Root);
    assert_eq!(writable_by("/home/alice/x"), WritableBy::User(ALICE));
    // A directory of root in it does not make the path root's again.
    root.directory("home/alice/root", 0, 0o755);
    assert_eq!(writable_by("/home/alice/root/x"), WritableBy::User(ALICE));
    root.directory("home/alice/bob", BOB, 0o755);
    assert!(
        root.refusal("/home/alice/bob/x")
            .contains("belongs to another user")
    );
    root.directory("home/alice/open", 0, 0o777);
    assert!(
        root.refusal("/home/alice/open/x")
            .contains("can be changed by other users")
    );
    root.directory("mail", 0, 0o2775);
    assert_eq!(writable_by("/mail/x"), WritableBy::Shared);
    root.directory("mail/alice", ALICE, 0o700);
    assert_eq!(writable_by("/mail/alice/x"), WritableBy::User(ALICE));
}

#[test]
fn files_are_owned_by_the_owner_of_their_directory_or_root() {
    let Some(root) = Root::new() else { return };
    let home = root.parent("/home/alice/x").unwrap();
    let write = |name: &str, owner: u32| home.write(OsStr::new(name), b"new", owned(owner));
    write("x", ALICE).unwrap();
    write("y", 0).unwrap();
    assert_eq!(root.owner("home/alice/x"), (ALICE, 0o600));
    assert_eq!(root.owner("home/alice/y"), (0, 0o600));
    assert!(write("z", BOB).is_err());
    assert!(!root.at("home/alice/z").exists());
    // A replaced file keeps its owner, mode and content: it may be a hard link.
    fs_err::write(root.at("etc/shadow"), "secret").unwrap();
    root.set("etc/shadow", 0, 0o600);
    fs_err::hard_link(root.at("etc/shadow"), root.at("home/alice/link")).unwrap();
    write("link", ALICE).unwrap();
    assert_eq!(root.owner("etc/shadow"), (0, 0o600));
    assert_eq!(fs_err::read(root.at("etc/shadow")).unwrap(), b"secret");
    // The same for a file that has the temporary name.
    fs_err::hard_link(root.at("etc/shadow"), root.at("home/alice/.x.homestak-new")).unwrap();
    write("x", ALICE).unwrap();
    assert_eq!(root.owner("etc/shadow"), (0, 0o600));
    assert_eq!(fs_err::read(root.at("etc/shadow")).unwrap(), b"secret");
    // A user could move a link of root to where root's links are trusted.
    assert!(home.link(OsStr::new("l"), OsStr::new("/etc")).is_err());
}

#[test]
fn a_directory_is_open_if_everyone_may_enter_it_and_its_parents() {
    let Some(root) = Root::new() else { return };
    root.directory("home/alice/www", ALICE, 0o755);
    assert!(root.parent("/home/alice/www/x").unwrap().is_open());
    root.set("home/alice", ALICE, 0o750);
    assert!(!root.parent("/home/alice/www/x").unwrap().is_open());
    assert!(root.parent("/etc/x").unwrap().is_open());
}

#[test]
fn setuid_and_setgid_files_are_refused_where_a_user_can_change_them() {
    let Some(root) = Root::new() else { return };
    root.directory("mail", 0, 0o2775);
    for (path, expected) in [
        ("/home/alice/x", false),
        ("/mail/x", false),
        ("/etc/x", true),
    ] {
        let directory = root.parent(path).unwrap();
        assert!(directory.require_plain(0o755).is_ok(), "{path}");
        for mode in [0o4755, 0o2755] {
            assert_eq!(directory.require_plain(mode).is_ok(), expected, "{path}");
        }
    }
}

#[test]
fn the_owner_of_a_directory_is_set_unless_it_belongs_to_someone_else() {
    let Some(root) = Root::new() else { return };
    let home = root.parent("/home/alice/x").unwrap();
    let set = |name: &str, owner: u32| home.set_directory(OsStr::new(name), 0o700, (owner, owner));
    set("new", ALICE).unwrap();
    assert_eq!(root.owner("home/alice/new"), (ALICE, 0o700));
    set("new", ALICE).unwrap();
    // Also root's: a user may have moved it here with its content.
    for (name, mode) in [("admin", 0o755), ("secrets", 0o700)] {
        root.directory(&format!("home/alice/{name}"), 0, mode);
        let refused = set(name, ALICE).unwrap_err().to_string();
        assert!(
            refused.contains("belongs to another user (id 0)"),
            "{refused}"
        );
        assert_eq!(root.owner(&format!("home/alice/{name}")), (0, mode));
    }
    // A temporary directory of a killed run is reused if it is empty.
    root.directory("home/alice/.half.homestak-new", 0, 0o700);
    set("half", ALICE).unwrap();
    assert_eq!(root.owner("home/alice/half"), (ALICE, 0o700));
    root.directory("home/alice/.full.homestak-new", 0, 0o700);
    fs_err::write(root.at("home/alice/.full.homestak-new/secret"), "").unwrap();
    assert!(set("full", ALICE).is_err());
    assert_eq!(root.owner("home/alice/.full.homestak-new").0, 0);
    assert_eq!(fs_err::read_dir(root.at("home/alice")).unwrap().count(), 5);
    fs_err::remove_dir_all(root.at("home/alice/.full.homestak-new")).unwrap();
    root.directory("home/alice/bob", BOB, 0o755);
    assert!(set("bob", ALICE).is_err());
    assert_eq!(root.owner("home/alice/bob"), (BOB, 0o755));
    root.link("home/alice/link", "../../etc", ALICE);
    assert!(set("link", ALICE).is_err());
    assert!(set("new", BOB).is_err());
    assert_eq!(root.owner("etc"), (0, 0o755));
}

#[test]
fn pipes_and_hard_links_to_secrets_are_not_read_and_large_files_are_bounded() {
    let Some(root) = Root::new() else { return };
    let home = root.parent("/home/alice/x").unwrap();
    let fifo = root.at("home/alice/pipe");
    rustix::fs::mknodat(
        CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o666),
        0,
    )
    .unwrap();
    assert!(matches!(
        home.lookup(OsStr::new("pipe")).unwrap(),
        Entry::Other
    ));
    fs_err::write(root.at("etc/shadow"), "secret").unwrap();
    root.set("etc/shadow", 0, 0o640);
    fs_err::hard_link(root.at("etc/shadow"), root.at("home/alice/keys")).unwrap();
    let Entry::File(_, stat) = home.lookup(OsStr::new("keys")).unwrap() else {
        panic!()
    };
    assert!(!home.is_readable(&stat));
    let large = fs_err::File::create(root.at("home/alice/large")).unwrap();
    large.set_len(1 << 40).unwrap();
    let Entry::File(file, _) = home.lookup(OsStr::new("large")).unwrap() else {
        panic!()
    };
    assert_eq!(read(&file, 1000).unwrap(), None);
}

#[test]
fn a_home_directory_is_removed_without_following_links() {
    let Some(root) = Root::new() else { return };
    fs_err::write(root.at("etc/passwd"), "root").unwrap();
    root.directory("home/alice/deep", ALICE, 0o755);
    root.link("home/alice/deep/etc", "../../../etc", ALICE);
    root.link("home/alice/etc", "/etc", ALICE);
    let homes = root.parent("/home/alice").unwrap();
    homes.remove_all(OsStr::new("alice")).unwrap();
    assert!(!root.at("home/alice").exists());
    assert!(root.at("etc/passwd").exists());
}

/// A directory is exchanged with a link to `/etc` continuously, while root writes and deletes in it.
#[test]
fn a_directory_that_is_continuously_replaced_by_a_link_redirects_nothing() {
    let Some(root) = Root::new() else { return };
    fs_err::write(root.at("etc/keys"), "root").unwrap();
    root.directory("home/alice/ssh", ALICE, 0o700);
    root.link("home/alice/link", "/etc", ALICE);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut n_written = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (a, b) = (root.at("home/alice/ssh"), root.at("home/alice/link"));
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, &a, CWD, &b, flags).unwrap();
            }
        });
        for _ in 0..2_000 {
            if let Ok((directory, name)) = root.walk(true).parent(Path::new("/home/alice/ssh/keys"))
            {
                n_written += usize::from(directory.write(&name, b"alice", owned(ALICE)).is_ok());
                _ = directory.remove(&name);
            }
            if let Ok((directory, name)) = root.walk(true).parent(Path::new("/home/alice/ssh")) {
                _ = directory.set_directory(&name, 0o700, (ALICE, ALICE));
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(n_written > 0);
    assert_eq!(fs_err::read(root.at("etc/keys")).unwrap(), b"root");
    assert_eq!(root.owner("etc/keys").0, 0);
    assert_eq!(root.owner("etc"), (0, 0o755));
    assert_eq!(fs_err::read_dir(root.at("etc")).unwrap().count(), 1);
}

#[test]
fn directories_created_in_a_home_directory_belong_to_its_user() {
    let Some(root) = Root::new() else { return };
    let walk = root.walk(true);
    walk.parent(Path::new("/home/alice/conf/deep/x")).unwrap();
    assert_eq!(root.owner("home/alice/conf"), (ALICE, 0o755));
    assert_eq!(root.owner("home/alice/conf/deep"), (ALICE, 0o755));
    root.walk(true).parent(Path::new("/etc/new/x")).unwrap();
    assert_eq!(root.owner("etc/new").0, 0);
}
