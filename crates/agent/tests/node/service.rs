//! A configuration file that its service rejects is restored, and the service's own message is shown.

use serde_json::{Value, json};

use crate::test_host::text;
use crate::test_node::TestNode;

const UNIT: &str =
    "[Service]\nExecStart=/usr/local/bin/app\n[Install]\nWantedBy=multi-user.target\n";
const APP: &str = "#!/bin/sh\ngrep -q good /etc/app.conf || { echo \"app: no good in /etc/app.conf\" >&2; exit 1; }\nexec sleep infinity\n";

fn spec(node: &TestNode, content: &str) -> Value {
    let mut spec = node.spec("dev");
    spec["config"]["files"] = json!([
        { "path": "/usr/local/bin/app", "content": APP, "mode": "0755" },
        { "path": "/etc/systemd/system/app.service", "content": UNIT },
        { "path": "/etc/app.conf", "content": content, "restart": ["app"] },
    ]);
    spec["platform"]["services"]["enable"] = json!(["app"]);
    spec
}

#[test]
fn a_file_that_its_service_rejects_is_restored_and_the_error_is_shown() {
    let Some(node) = TestNode::new() else { return };
    node.apply(&spec(&node, "good\n"));
    let run = node.agent("config apply --json-output", &spec(&node, "bad\n"));
    assert_ne!(run.code, 0, "{}", run.out);
    let result: Value = serde_json::from_str(&run.out).unwrap();
    let message = text(&result["message"]);
    assert_eq!(result["error"], "rejected", "{message}");
    assert!(
        message.contains("app: no good in /etc/app.conf"),
        "{message}"
    );
    assert!(
        message.contains("`/etc/app.conf` was restored"),
        "{message}"
    );
    assert_eq!(node.root("cat /etc/app.conf").good(), "good\n");
    let state = node.root("systemctl is-active app.service").good();
    assert_eq!(state, "active\n");

    // A service with a configuration check is checked before the first change.
    node.root("printf '#!/bin/sh\\ngrep -q good /etc/nginx/nginx.conf || { echo \"nginx: no good\" >&2; exit 1; }\\n' >/usr/sbin/nginx; chmod +x /usr/sbin/nginx; mkdir -p /etc/nginx; echo good >/etc/nginx/nginx.conf").good();
    let mut checked = spec(&node, "good\n");
    let bad = json!({ "path": "/etc/nginx/nginx.conf", "content": "bad\n" });
    checked["config"]["files"].as_array_mut().unwrap().push(bad);
    let run = node.agent("config check --json-output", &checked);
    let result: Value = serde_json::from_str(&run.out).unwrap();
    let refusals = result["refusals"].to_string();
    assert!(refusals.contains("nginx: no good"), "{result:#}");
    assert_eq!(node.root("cat /etc/nginx/nginx.conf").good(), "good\n");
    node.host.destroy("lab");
}
