//! Debian 13, which is not the default release of the tests.

use crate::test_node::TestNode;

#[test]
fn a_spec_is_applied_to_a_debian_13_node() {
    let Some(node) = TestNode::of("debian-13") else {
        return;
    };
    let release = node.root("cat /etc/debian_version").good();
    assert!(release.starts_with("13"), "{release}");
    let spec = node.spec("prod");
    node.apply(&spec);
    assert_eq!(node.dry_run(&spec), 0);
    assert_eq!(node.check(&spec), Vec::<String>::new());
    node.root("echo other >/etc/motd; passwd -l alice >/dev/null; systemctl stop cron")
        .good();
    assert!(
        node.check(&spec)
            .contains(&"file:/etc/motd/content".to_owned())
    );
    node.apply(&spec);
    assert_eq!(node.check(&spec), Vec::<String>::new());
    node.apply(&node.spec("dev"));
    assert_eq!(node.check(&node.spec("dev")), Vec::<String>::new());
    node.host.destroy("lab");
    node.host.assert_unchanged();
}
