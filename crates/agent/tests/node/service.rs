//! A configuration that its service rejects does not stay, and the service's own message is shown.

use serde_json::{Value, json};

use crate::bed::text;
use crate::lab::Lab;

const UNIT: &str =
    "[Service]\nExecStart=/usr/local/bin/app\n[Install]\nWantedBy=multi-user.target\n";
const APP: &str = "#!/bin/sh\ngrep -q good /etc/app.conf || { echo \"app: no good in /etc/app.conf\" >&2; exit 1; }\nexec sleep infinity\n";

fn spec(lab: &Lab, content: &str) -> Value {
    let mut spec = lab.spec("dev");
    spec["config"]["files"] = json!([
        { "path": "/usr/local/bin/app", "content": APP, "mode": "0755" },
        { "path": "/etc/systemd/system/app.service", "content": UNIT },
        { "path": "/etc/app.conf", "content": content, "restart": ["app"] },
    ]);
    spec["platform"]["services"]["enable"] = json!(["app"]);
    spec
}

#[test]
fn a_file_that_its_service_rejects_is_put_back_and_its_own_error_is_shown() {
    let Some(lab) = Lab::new() else { return };
    lab.apply(&spec(&lab, "good\n"));
    let run = lab.agent("config apply --json-output", &spec(&lab, "bad\n"));
    assert_ne!(run.code, 0, "{}", run.out);
    let result: Value = serde_json::from_str(&run.out).unwrap();
    let said = text(&result["message"]);
    assert_eq!(result["error"], "rejected", "{said}");
    assert!(said.contains("app: no good in /etc/app.conf"), "{said}");
    assert!(said.contains("`/etc/app.conf` was put back"), "{said}");
    assert_eq!(lab.root("cat /etc/app.conf").good(), "good\n");
    let state = lab.root("systemctl is-active app.service").good();
    assert_eq!(state, "active\n");

    // A server with a check of its own is asked before the first change.
    lab.root("printf '#!/bin/sh\\ngrep -q good /etc/nginx/nginx.conf || { echo \"nginx: no good\" >&2; exit 1; }\\n' >/usr/sbin/nginx; chmod +x /usr/sbin/nginx; mkdir -p /etc/nginx; echo good >/etc/nginx/nginx.conf").good();
    let mut checked = spec(&lab, "good\n");
    let bad = json!({ "path": "/etc/nginx/nginx.conf", "content": "bad\n" });
    checked["config"]["files"].as_array_mut().unwrap().push(bad);
    let run = lab.agent("config check --json-output", &checked);
    let result: Value = serde_json::from_str(&run.out).unwrap();
    let refusals = result["refusals"].to_string();
    assert!(refusals.contains("nginx: no good"), "{result:#}");
    assert_eq!(lab.root("cat /etc/nginx/nginx.conf").good(), "good\n");
    lab.bed.destroy("lab");
}
