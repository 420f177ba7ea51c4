//! Each edit is checked to have the expected result, and to change nothing when applied again.

use super::*;

fn names() -> Vec<String> {
    vec!["web.lab".to_owned(), "web".to_owned()]
}

#[test]
fn the_own_line_of_hosts_is_corrected_and_others_stay() {
    let text = "127.0.0.1 localhost\n127.0.1.1 old\n::1 localhost\n192.0.2.9 other # kept\n";
    let right =
        "127.0.0.1 localhost\n127.0.1.1 web.lab web\n::1 localhost\n192.0.2.9 other # kept\n";
    assert_eq!(hosts(text, "127.0.1.1", &names()), right);
    assert_eq!(hosts(right, "127.0.1.1", &names()), right);
}

#[test]
fn a_missing_own_line_of_hosts_is_added_and_duplicates_are_merged() {
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
fn the_loopback_line_is_replaced_by_the_address_of_a_hypervisor() {
    let text = "127.0.0.1 localhost\n127.0.1.1 web\n";
    let right = "127.0.0.1 localhost\n10.0.0.5 web.lab web\n";
    assert_eq!(hosts(text, "10.0.0.5", &names()), right);
    assert_eq!(hosts(right, "10.0.0.5", &names()), right);
}

#[test]
fn rules_of_a_user_are_removed_and_others_stay() {
    let ops = |subject: &str, _: bool| subject == "ops";
    let text = "# written at first boot\nops ALL=(ALL) NOPASSWD:ALL\nbob ALL=(ALL) ALL\n";
    let left = "# written at first boot\nbob ALL=(ALL) ALL\n";
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
fn a_rule_may_span_two_lines() {
    let text = "ops ALL=(ALL) \\\n    NOPASSWD: ALL\nbob ALL=ALL\n";
    let left = without_rules(text, |subject, nopasswd| subject == "ops" && nopasswd);
    assert_eq!(left.as_deref(), Some("bob ALL=ALL\n"));
}

#[test]
fn differing_sshd_settings_outside_match_blocks_are_commented_out() {
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
fn the_sshd_directory_is_included_once() {
    let with = "Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes\n";
    assert_eq!(sshd_include("UsePAM yes\n"), with);
    assert_eq!(sshd_include(with), with);
}

#[test]
fn a_key_is_identified_by_type_and_body() {
    let key = Some("ssh-ed25519 AAAA".to_owned());
    assert_eq!(key_body("ssh-ed25519 AAAA me@here"), key);
    assert_eq!(key_body("from=\"10.0.0.1\",no-pty ssh-ed25519 AAAA"), key);
    assert_eq!(key_body("# ssh-ed25519 AAAA"), None);
    assert_eq!(key_body(""), None);
}

#[test]
fn a_key_is_parsed_as_sshd_does() {
    let key = Some("ssh-ed25519 AAAA".to_owned());
    for line in [
        r#"environment="A= ssh-ed25519 SPEC x" ssh-ed25519 AAAA"#,
        r#"command="a \" ssh-ed25519 SPEC \" b",no-pty	ssh-ed25519	AAAA"#,
        // sshd does not close a quote after two backslashes either.
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
fn the_subscription_notice_is_removed_once() {
    let text = "if (res === null || res.data.status.toLowerCase() !== 'active') { Ext.Msg.show(";
    let without = without_subscription_notice(text);
    assert!(!without.contains("!== 'active'"));
    assert_eq!(without_subscription_notice(&without), without);
}

#[test]
fn name_servers_are_replaced_and_options_stay() {
    let text = "options edns0\nnameserver 1.1.1.1\n";
    let dns = ["192.0.2.1".to_owned()];
    let right = "options edns0\nsearch lab\nnameserver 192.0.2.1\n";
    assert_eq!(resolv(text, &dns, Some("lab")), right);
    assert_eq!(resolv(right, &dns, Some("lab")), right);
}
