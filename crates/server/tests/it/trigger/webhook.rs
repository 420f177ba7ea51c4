//! Webhooks that start runs, also with the script of the guide.

use std::process::{Command, Stdio};

use homestak_core::resolve::trigger::ServerTrigger;
use homestak_server::settings::ServerSettings;
use serde_json::Value;

use crate::site::{DB, TestSite, WEB};

#[tokio::test]
async fn a_webhook_starts_runs_of_those_who_name_it() {
    let site = TestSite::start_now(ServerSettings::default()).await;
    let name = "deploy".to_owned();
    site.publish(WEB, "web", |spec| {
        spec.trigger = Some(ServerTrigger::Webhook { name });
    });
    (site.reload)();
    let web = site.enrol(WEB, "web").await;
    _ = site.enrolled(DB, "db").await;
    let now = homestak_api::runtime::Clock::now(&*site.clock)
        .as_second()
        .to_string();
    let secret = crate::site::WEBHOOKS[0].1.as_bytes();
    let send = async |id: &str| {
        let signature = crate::attack::hooks::signature(secret, id, &now, "{}");
        let request = site
            .client(None)
            .post(format!("{}/v1/hooks/deploy", site.url));
        let request = request
            .header("webhook-id", id)
            .header("webhook-timestamp", &now);
        let answer = request
            .header("webhook-signature", signature)
            .body("{}")
            .send();
        let answer = answer.await.expect("an answer");
        (
            answer.status().as_u16(),
            answer.json::<Value>().await.expect("JSON"),
        )
    };
    assert_eq!(send("one").await, (202, serde_json::json!({ "jobs": 1 })));
    assert_eq!(send("two").await, (202, serde_json::json!({ "jobs": 0 })));
    let offers: Value = web
        .get(format!("{}/v1/offers", site.url))
        .send()
        .await
        .expect("sent")
        .json()
        .await
        .expect("JSON");
    let offer = &offers["jobs"][0];
    assert_eq!(
        (&offer["trigger"], &offer["statement"]),
        (&"webhook deploy".into(), &Value::Null)
    );
    let triggers: Value = site
        .operator()
        .get(format!("{}/v1/triggers", site.url))
        .send()
        .await
        .expect("sent")
        .json()
        .await
        .expect("JSON");
    assert_eq!(triggers["webhooks"][0]["name"], "deploy");
    assert_eq!(triggers["webhooks"][0]["nodes"], 1);
    assert_eq!(triggers["webhooks"][0]["accepted"].to_string(), now);
    assert!(!triggers.to_string().contains("secret-of"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_of_the_guide_sends_a_valid_request() {
    let guide = include_str!("../../../../../docs/guides/triggers.md");
    let (_, script) = guide.split_once("```text\n#!/bin/sh\n").expect("a script");
    let (script, _) = script.split_once("```").expect("its end");
    let site = TestSite::start_now(ServerSettings::default()).await;
    let files = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        fs_err::write(files.path().join(name), text).expect("written");
    };
    write("send", script);
    write("authority", &site.authority.issued().chain);
    write("secret", &format!("{}\n", crate::site::WEBHOOKS[0].1));
    write("wrong", "another-secret-of-a-webhook");
    write("long", &"another-secret-of-a-webhook".repeat(10));
    let url = format!("{}/v1/hooks/deploy", site.url);
    let send = |secret: &str, body: &str| {
        let mut script = Command::new("sh");
        script.args(["send", &url, secret, "authority", body]);
        script
            .current_dir(files.path())
            .env("NO_PROXY", "*")
            .stdin(Stdio::null());
        let output = tokio::task::block_in_place(|| script.output().expect("it runs"));
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    for body in ["", "{}", "a=1&b=%41 \\x \u{e9}"] {
        let answer = send("secret", body);
        assert!(answer.contains("\"jobs\": 0"), "{body:?}: {answer}");
    }
    for secret in ["wrong", "long"] {
        let answer = send(secret, "{}");
        assert!(answer.contains("E301"), "{answer}");
    }
}
