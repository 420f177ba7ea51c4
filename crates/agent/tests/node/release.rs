//! Debian 13, which is not the release that tests use unless they are told to.

use crate::lab::Lab;

#[test]
fn a_debian_13_node_becomes_what_its_spec_says() {
    let Some(lab) = Lab::of("debian-13") else {
        return;
    };
    let release = lab.root("cat /etc/debian_version").good();
    assert!(release.starts_with("13"), "{release}");
    let spec = lab.spec("prod");
    lab.apply(&spec);
    assert_eq!(lab.rehearse(&spec), 0);
    assert_eq!(lab.check(&spec), Vec::<String>::new());
    lab.root("echo other >/etc/motd; passwd -l alice >/dev/null; systemctl stop cron")
        .good();
    assert!(
        lab.check(&spec)
            .contains(&"file:/etc/motd/content".to_owned())
    );
    lab.apply(&spec);
    assert_eq!(lab.check(&spec), Vec::<String>::new());
    lab.apply(&lab.spec("dev"));
    assert_eq!(lab.check(&lab.spec("dev")), Vec::<String>::new());
    lab.bed.destroy("lab");
    lab.bed.is_as_before();
}
