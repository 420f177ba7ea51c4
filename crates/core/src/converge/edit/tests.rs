//! Texts as they are found, and as they should be.
//!
//! In: small texts. Out: what becomes of them, once and twice.
//! Never: whole files of a machine.

use super::*;

fn names() -> Vec<String> {
    vec!["web.lab".to_owned(), "web".to_owned()]
}

#[test]
fn the_own_line_of_hosts_is_put_right_and_others_stay() {
    let text = "127.0.0.1 localhost\n127.0.1.1 old\n::1 localhost\n192.0.2.9 other # kept\n";
    let right =
        "127.0.0.1 localhost\n127.0.1.1 web.lab web\n::1 localhost\n192.0.2.9 other # kept\n";
    assert_eq!(hosts(text, "127.0.1.1", &names()), right);
    assert_eq!(hosts(right, "127.0.1.1", &names()), right);
}

#[test]
fn hosts_without_an_own_line_gets_one_and_two_become_one() {
    let right = "127.0.1.1 web.lab web\n127.0.0.1 localhost\n";
    assert_eq!(hosts("127.0.0.1 localhost\n", "127.0.1.1", &names()), right);
    assert_eq!(
        hosts("127.0.0.1 localhost web\n", "127.0.1.1", &names()),
        right
    );
    let twice = "127.0.1.1 a\n127.0.1.1 b\n127.0.0.1 localhost\n";
    assert_eq!(hosts(twice, "127.0.1.1", &names()), right);
    assert_eq!(hosts("", "127.0.1.1", &names()), "127.0.1.1 web.lab web\n");
}

#[test]
fn a_hypervisor_leaves_its_loopback_name() {
    let text = "127.0.0.1 localhost\n127.0.1.1 web\n";
    let right = "127.0.0.1 localhost\n10.0.0.5 web.lab web\n";
    assert_eq!(hosts(text, "10.0.0.5", &names()), right);
    assert_eq!(hosts(right, "10.0.0.5", &names()), right);
}

#[test]
fn rules_of_a_user_go_and_rules_of_others_stay() {
    let ops = |subject: &str, _: bool| subject == "ops";
    let text = "# made at first boot\nops ALL=(ALL) NOPASSWD:ALL\nbob ALL=(ALL) ALL\n";
    let left = "# made at first boot\nbob ALL=(ALL) ALL\n";
    assert_eq!(without_rules(text, ops).as_deref(), Some(left));
    assert_eq!(without_rules(left, ops), None);
    let shared = without_rules("bob, ops ALL = (ALL) \\\n  NOPASSWD: ALL\n", ops);
    assert_eq!(shared.map(|text| text.starts_with("bob ")), Some(true));
    assert_eq!(
        without_rules("Defaults:ops env_reset=1\n#ops ALL=ALL\n", ops),
        None
    );
}

#[test]
fn a_rule_over_two_lines_is_one() {
    let text = "ops ALL=(ALL) \\\n    NOPASSWD: ALL\nbob ALL=ALL\n";
    let left = without_rules(text, |subject, nopasswd| subject == "ops" && nopasswd);
    assert_eq!(left.as_deref(), Some("bob ALL=ALL\n"));
}

#[test]
fn sshd_settings_that_say_otherwise_are_commented_out_but_for_matches() {
    let settings = BTreeMap::from([
        ("Port".to_owned(), "22".to_owned()),
        ("PermitRootLogin".to_owned(), "prohibit-password".to_owned()),
    ]);
    let text = "Port 2222\npermitrootlogin=yes\nPermitRootLogin without-password\n#Port 1\nUsePAM yes\nMatch User x\n  PermitRootLogin yes\n";
    let right = "#homestak: Port 2222\n#homestak: permitrootlogin=yes\nPermitRootLogin without-password\n#Port 1\nUsePAM yes\nMatch User x\n  PermitRootLogin yes\n";
    assert_eq!(sshd(text, &settings), right);
    assert_eq!(sshd(right, &settings), right);
}

#[test]
fn the_directory_of_the_ssh_server_is_read_once() {
    let with = "Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes\n";
    assert_eq!(sshd_include("UsePAM yes\n"), with);
    assert_eq!(sshd_include(with), with);
}

#[test]
fn a_key_is_known_by_type_and_body() {
    let key = Some("ssh-ed25519 AAAA".to_owned());
    assert_eq!(key_body("ssh-ed25519 AAAA me@here"), key);
    assert_eq!(key_body("from=\"10.0.0.1\",no-pty ssh-ed25519 AAAA"), key);
    assert_eq!(key_body("# ssh-ed25519 AAAA"), None);
    assert_eq!(key_body(""), None);
}

#[test]
fn a_key_is_read_as_the_ssh_server_reads_it() {
    let key = Some("ssh-ed25519 AAAA".to_owned());
    for line in [
        r#"environment="A= ssh-ed25519 SPEC x" ssh-ed25519 AAAA"#,
        r#"command="a \" ssh-ed25519 SPEC \" b",no-pty	ssh-ed25519	AAAA"#,
        // A quote behind two backslashes ends nothing either.
        r#"command="\\" ssh-ed25519 SPEC" ssh-ed25519 AAAA"#,
        "ssh-ed25519 AAAA\0more",
        "ssh-ed25519 AA\u{b}AA x",
    ] {
        assert_eq!(key_body(line), key, "{line}");
    }
    let rsa = Some("ssh-rsa AAAA".to_owned());
    assert_eq!(key_body("rsa-sha2-512 AAAA"), rsa);
    assert_eq!(key_body(r#"command="open ssh-ed25519 AAAA"#), None);
    assert_eq!(key_body("two words ssh-ed25519 AAAA"), None);
}

#[test]
fn the_notice_is_taken_out_once() {
    let text = "if (res === null || res.data.status.toLowerCase() !== 'active') { Ext.Msg.show(";
    let without = notice(text);
    assert!(!without.contains("!== 'active'"));
    assert_eq!(notice(&without), without);
}

#[test]
fn name_servers_are_exactly_those_and_options_stay() {
    let text = "options edns0\nnameserver 1.1.1.1\n";
    let dns = ["192.0.2.1".to_owned()];
    let right = "options edns0\nsearch lab\nnameserver 192.0.2.1\n";
    assert_eq!(resolv(text, &dns, Some("lab")), right);
    assert_eq!(resolv(right, &dns, Some("lab")), right);
}
