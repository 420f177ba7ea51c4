//! Reports about jobs that are malformed or too large, other spellings of ids, and too many jobs.

use homestak_server::settings::{Limits, ServerSettings};
use serde_json::json;

use super::jobs::{
    BAD_REQUEST, Jobs, NOT_NOW, TOO_LARGE, UNKNOWN, Who, cancel, id, of_job, report, submission,
    take,
};
use crate::raw::request;
use crate::site::DB;

#[tokio::test]
async fn reports_that_are_malformed_too_large_or_impossible_are_refused() {
    let mut jobs = Jobs::start().await;
    jobs.queue(1).await;
    jobs.send(&jobs.web, &take(&id(1))).await;
    for body in [
        "",
        "{}",
        r#"{"output":"x"}"#,
        r#"{"offset":-1}"#,
        r#"{"offset":1.5}"#,
        r#"{"offset":"0"}"#,
        r#"{"offset":null}"#,
        r#"{"offset":1e30}"#,
        r#"{"offset":18446744073709551615,"output":"x"}"#,
        r#"{"offset":18446744073709551616}"#,
        r#"{"offset":1099511627777,"output":"x"}"#,
        r#"{"offset":0,"output":7}"#,
        r#"{"offset":0,"output":"\ud800"}"#,
        r#"{"offset":0,"outcome":"succeeded"}"#,
        r#"{"offset":0,"outcome":{}}"#,
        r#"{"offset":0,"outcome":{"state":"queued","result":{}}}"#,
        r#"{"offset":0,"outcome":{"state":"taken","result":{}}}"#,
        r#"{"offset":0,"outcome":{"state":"cancelled","result":{}}}"#,
        r#"{"offset":0,"outcome":{"state":"expired","result":{}}}"#,
        r#"{"offset":0,"outcome":{"state":"lost","result":{}}}"#,
        r#"{"offset":0,"outcome":{"state":"Succeeded","result":{}}}"#,
        r#"{"offset":0,"outcome":{"state":"succeeded","result":{"generation":-1}}}"#,
    ] {
        let bytes = report(&id(1), body);
        jobs.refuse(body, Who::Web, &bytes, BAD_REQUEST).await;
    }
    let large = json!({ "offset": 0, "output": "x".repeat(70_000) }).to_string();
    let bytes = report(&id(1), &large);
    jobs.refuse("70 kB", Who::Web, &bytes, TOO_LARGE).await;
    for query in [
        "after=-1",
        "after=x",
        "after=",
        "after=18446744073709551616",
        "wait=-1",
        "wait=1.5",
        "after=0&wait=x",
    ] {
        let bytes = of_job("GET", &id(1), &format!("?{query}"), "");
        jobs.refuse(query, Who::Operator, &bytes, BAD_REQUEST).await;
    }
    let bytes = request("GET", "/v1/offers?wait=-1", &[], "");
    jobs.refuse("-1", Who::Web, &bytes, BAD_REQUEST).await;
    for wrong in [
        "..",
        "a",
        "%00",
        "'%20or%201=1--",
        "*",
        "%25",
        &id(2),
        &format!("{}%00", id(1)),
        &format!("{}%20", id(1)),
        &id(1).to_uppercase().replace('0', "%30"),
        &format!("%7B{}%7D", id(1)),
    ] {
        let of_operator = [of_job("GET", wrong, "", ""), cancel(wrong)];
        let of_node = [take(wrong), report(wrong, r#"{"offset":0}"#)];
        for bytes in of_operator {
            jobs.refuse(wrong, Who::Operator, &bytes, UNKNOWN).await;
        }
        for bytes in of_node {
            jobs.refuse(wrong, Who::Web, &bytes, UNKNOWN).await;
        }
    }
    for path in ["/v1/jobs//take", "/v1/jobs/a/b/take", "/v1/jobs/a/run"] {
        let bytes = request("POST", path, &[], "{}");
        let code = (404, "E100");
        jobs.refuse(path, Who::Operator, &bytes, code).await;
    }
    // Hours have passed, without a valid report.
    assert_eq!(jobs.states().await, ["lost"]);
    let detail = jobs
        .send(&jobs.operator, &of_job("GET", &id(1), "", ""))
        .await;
    assert_eq!(
        (&detail["output"], &detail["next"]),
        (&json!(""), &json!(0))
    );
    assert_eq!(jobs.target.finish().await, 78);
}

#[tokio::test]
async fn a_node_cannot_fill_the_registry_and_nobody_the_queue() {
    let limits = Limits {
        body_bytes: 1 << 20,
        ..Limits::default()
    };
    let mut jobs = Jobs::start_with(ServerSettings {
        limits,
        ..ServerSettings::default()
    })
    .await;
    for nth in 0..100 {
        jobs.queue(nth).await;
    }
    for nth in 100..103 {
        let statement = jobs.signed(|job| job.id = id(nth));
        jobs.refuse_statement("one more", &statement, NOT_NOW).await;
    }
    let of_db = jobs.signed(|job| {
        job.id = id(200);
        (job.uuid, job.node) = (crate::site::uuid(DB), "db".to_owned());
    });
    jobs.send(&jobs.operator, &submission(DB, &of_db)).await;
    assert_eq!(jobs.states().await.len(), 101);

    jobs.send(&jobs.web, &take(&id(1))).await;
    let mut offset = 0;
    for _ in 0..4 {
        let output = "x".repeat(200_000);
        let body = json!({ "offset": offset, "output": output }).to_string();
        jobs.send(&jobs.web, &report(&id(1), &body)).await;
        offset += output.len();
    }
    let detail = jobs
        .send(&jobs.operator, &of_job("GET", &id(1), "", ""))
        .await;
    assert_eq!(detail["output"].as_str().map(str::len), Some(256 << 10));
    assert_eq!(detail["truncated"], true);
    let state = json!({ "state": "failed", "message": "x".repeat(70_000), "result": {} });
    let bytes = report(
        &id(1),
        &json!({ "offset": 0, "outcome": state }).to_string(),
    );
    jobs.refuse("a large message", Who::Web, &bytes, TOO_LARGE)
        .await;
    let result = json!({ "differences": vec!["x".repeat(1000); 70] });
    let state = json!({ "state": "failed", "result": result });
    let bytes = report(
        &id(1),
        &json!({ "offset": 0, "outcome": state }).to_string(),
    );
    jobs.refuse("a large result", Who::Web, &bytes, TOO_LARGE)
        .await;
    assert_eq!(jobs.target.finish().await, 5);
}
