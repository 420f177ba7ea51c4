//! Images that all tests share, built once into `target/test-images` or the directory named by
//! `HOMESTAK_TEST_IMAGES`.

use std::path::PathBuf;

use homestak_providers::image::{ImageTree, Images};

/// Returns the directory of the images.
pub fn directory() -> PathBuf {
    let target = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target"));
    std::env::var_os("HOMESTAK_TEST_IMAGES")
        .map_or_else(|| target().join("test-images"), PathBuf::from)
}

/// Returns whether images can be built on this machine. If not, this is printed, or fails the test
/// if `HOMESTAK_TEST_REQUIRE` is set.
pub fn possible() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt as _;
        own.uid() == 0
    });
    let tool = ["/usr/bin/mmdebstrap", "/usr/local/bin/mmdebstrap"]
        .iter()
        .any(|path| std::path::Path::new(path).exists());
    if root && tool {
        return true;
    }
    let line = "SKIPPED: images need root and mmdebstrap; run tests/prepare as root";
    assert!(
        std::env::var_os("HOMESTAK_TEST_REQUIRE").is_none(),
        "{line}"
    );
    println!("{line}");
    false
}

/// Returns a tree, built by the first test that needs it; the others wait for it. Outdated, unused
/// ones are removed, so that the directory does not grow.
pub fn tree(name: &str) -> ImageTree {
    let images = Images::new(directory());
    let built = wait(images.ensure_tree(name, &|line| println!("{line}")));
    let tree =
        built.unwrap_or_else(|error| panic!("{error}: {}\n{:#?}", error.hint(), error.log()));
    for old in images.list().iter().filter(|image| !image.current) {
        // Another test may be removing it too.
        _ = wait(images.remove(&old.id()));
    }
    tree
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime can be started").block_on(future)
}
