//! Jobs from their submission to their outcome, and what lists of nodes have of reports.

use std::time::Duration;

use homestak_server::settings::{Limits, ServerSettings};
use reqwest::Client;
use serde_json::{Value, json};

use crate::site::{DB, TestSite, WEB, at, credential, enrol, uuid, v2};

fn id(nth: usize) -> String {
    format!("{nth:032x}")
}

async fn send(request: reqwest::RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    (status, answer.json().await.expect("JSON"))
}

async fn get(client: &Client, url: &str) -> (u16, Value) {
    send(client.get(url)).await
}

async fn post(client: &Client, url: &str, body: &Value) -> (u16, Value) {
    send(client.post(url).json(body)).await
}

/// Queues a job of `web`.
async fn queue(site: &TestSite, operator: &Client, nth: usize) -> (u16, Value) {
    let statement = site.sign_job(&site.job(WEB, "web", &id(nth)));
    let url = format!("{}/v1/nodes/{WEB}/jobs", site.url);
    post(operator, &url, &json!({ "statement": statement })).await
}

#[tokio::test]
async fn a_job_is_queued_offered_taken_once_and_reported() {
    let site = TestSite::start().await;
    let (operator, web) = (site.operator(), site.enrol(WEB, "web").await);
    let db = site.enrol(DB, "db").await;
    let job = site.job(WEB, "web", &id(1));
    let statement = site.sign_job(&job);
    let body = json!({ "statement": statement });
    let url = format!("{}/v1/nodes/{WEB}/jobs", site.url);
    let (status, queued) = post(&operator, &url, &body).await;
    assert_eq!(status, 201);
    let expected = json!({
        "id": id(1), "node": "web", "uuid": WEB, "kind": "check", "origin": "someone",
        "state": "queued", "issued": job.issued, "expires": job.expires, "time_limit": 600,
        "taken": null, "ended": null,
    });
    assert_eq!(queued, expected);
    // The answer may have been lost.
    assert_eq!(post(&operator, &url, &body).await, (200, expected));

    let offers = format!("{}/v1/offers", site.url);
    let offered = json!({ "jobs": [{ "id": id(1), "statement": statement }] });
    assert_eq!(get(&web, &offers).await, (200, offered));
    assert_eq!(get(&db, &offers).await, (200, json!({ "jobs": [] })));

    let of_job = format!("{}/v1/jobs/{}", site.url, id(1));
    site.clock.set(at(5));
    let (status, taken) = post(&web, &format!("{of_job}/take"), &json!({})).await;
    assert_eq!((status, &taken["state"]), (200, &json!("taken")));
    assert_eq!(taken["taken"], at(5).as_second());
    let (status, again) = post(&web, &format!("{of_job}/take"), &json!({})).await;
    assert_eq!((status, &again["code"]), (409, &json!("E202")));
    assert_eq!(get(&web, &offers).await.1, json!({ "jobs": [] }));

    let report = format!("{of_job}/report");
    for (offset, output) in [(0, "one\n"), (0, "one\n"), (4, "two\n")] {
        let body = json!({ "offset": offset, "output": output });
        assert_eq!(post(&web, &report, &body).await, (200, json!({})));
    }
    let (_, detail) = get(&operator, &format!("{of_job}?after=4")).await;
    assert_eq!(detail["output"], "two\n");
    assert_eq!(
        (&detail["next"], &detail["truncated"]),
        (&json!(8), &json!(false))
    );
    assert_eq!(detail["state"], "taken");

    let outcome = json!({
        "state": "failed", "message": "it differs",
        "result": { "differences": ["motd"], "later": 1 },
    });
    let last = json!({ "offset": 8, "outcome": outcome, "later": true });
    assert_eq!(post(&web, &report, &last).await.0, 200);
    assert_eq!(post(&web, &report, &last).await.0, 200, "repeated");
    let (_, detail) = get(&operator, &of_job).await;
    assert_eq!(detail["state"], "failed");
    assert_eq!(detail["outcome"]["result"]["differences"], json!(["motd"]));
    assert_eq!(detail["output"], "one\ntwo\n");
    // Lists are without results.
    for list in [format!("{}/v1/jobs", site.url), url] {
        let (_, list) = get(&operator, &list).await;
        let outcome = json!({ "state": "failed", "message": "it differs", "result": {} });
        assert_eq!(list["jobs"][0]["outcome"], outcome);
        assert_eq!(list["jobs"].as_array().map(Vec::len), Some(1));
    }
    let of_db = format!("{}/v1/nodes/{DB}/jobs", site.url);
    assert_eq!(get(&operator, &of_db).await.1, json!({ "jobs": [] }));
}

#[tokio::test]
async fn a_node_that_waits_is_offered_a_job_and_an_operator_that_waits_sees_every_change() {
    let site = TestSite::start().await;
    let (operator, web) = (site.operator(), site.enrol(WEB, "web").await);
    let offers = format!("{}/v1/offers?wait=20", site.url);
    let (offered, (status, _)) = tokio::join!(get(&web, &offers), queue(&site, &operator, 1));
    assert_eq!(status, 201);
    assert_eq!(offered.1["jobs"][0]["id"], id(1));

    let of_job = format!("{}/v1/jobs/{}", site.url, id(1));
    let follow = |after: usize, wait: u32| {
        let url = format!("{of_job}?wait={wait}&after={after}");
        let operator = operator.clone();
        async move { get(&operator, &url).await.1 }
    };
    let take = format!("{of_job}/take");
    let empty = json!({});
    let (seen, (status, _)) = tokio::join!(follow(0, 1), post(&web, &take, &empty));
    // The request may have arrived after the change, and then waits for another one.
    assert_eq!(status, 200);
    assert!(
        seen["state"] == "taken" || seen["state"] == "queued",
        "{seen}"
    );

    let report = format!("{of_job}/report");
    let body = json!({ "offset": 0, "output": "live\n" });
    let (seen, (status, _)) = tokio::join!(follow(0, 20), post(&web, &report, &body));
    assert_eq!((status, &seen["output"]), (200, &json!("live\n")));
    assert_eq!(seen["next"], 5);
    let end = json!({ "offset": 5, "outcome": { "state": "succeeded", "result": {} } });
    let (seen, (status, _)) = tokio::join!(follow(5, 20), post(&web, &report, &end));
    assert_eq!((status, &seen["state"]), (200, &json!("succeeded")));
    assert_eq!(seen["output"], "");
    // It has ended, so that nobody waits.
    assert_eq!(follow(5, 20).await["state"], "succeeded");
}

#[tokio::test]
async fn waits_end_before_the_time_limit_of_a_request() {
    let limits = Limits {
        request: 1,
        ..Limits::default()
    };
    let settings = ServerSettings {
        limits,
        ..ServerSettings::default()
    };
    let site = TestSite::start_with(settings, |_| ()).await;
    let (operator, web) = (site.operator(), site.enrol(WEB, "web").await);
    let offers = format!("{}/v1/offers?wait=18446744073709551615", site.url);
    assert_eq!(get(&web, &offers).await, (200, json!({ "jobs": [] })));
    queue(&site, &operator, 1).await;
    let of_job = format!("{}/v1/jobs/{}?wait=3600&after=9", site.url, id(1));
    let (status, detail) = get(&operator, &of_job).await;
    assert_eq!((status, &detail["state"]), (200, &json!("queued")));
}

#[tokio::test]
async fn a_node_that_is_revoked_while_it_waits_is_refused_and_its_jobs_are_cancelled() {
    let site = TestSite::start().await;
    let (operator, web) = (site.operator(), site.enrol(WEB, "web").await);
    let waiting = {
        let url = format!("{}/v1/offers?wait=20", site.url);
        tokio::spawn(async move { get(&web, &url).await })
    };
    let revoke = format!("{}/v1/nodes/{WEB}/revoke", site.url);
    assert_eq!(post(&operator, &revoke, &json!({})).await.0, 200);
    let (status, answer) = waiting.await.expect("an answer");
    assert_eq!((status, &answer["code"]), (401, &json!("E301")));
    let (status, answer) = queue(&site, &operator, 1).await;
    assert_eq!((status, &answer["code"]), (409, &json!("E202")));
}

#[tokio::test]
async fn jobs_of_a_guest_that_lost_its_certificate_are_not_offered_to_the_next_one() {
    let site = TestSite::start().await;
    let (operator, _) = (site.operator(), site.enrol(WEB, "web").await);
    queue(&site, &operator, 1).await;
    site.publish(WEB, "web", |spec| {
        spec.token.as_mut().expect("a token").id = "t-again".to_owned();
    });
    (site.reload)();
    let (_, detail) = get(&operator, &format!("{}/v1/jobs/{}", site.url, id(1))).await;
    assert_eq!(detail["state"], "cancelled");
}

#[tokio::test]
async fn a_job_is_cancelled_before_it_is_taken_and_never_after() {
    let site = TestSite::start().await;
    let (operator, web) = (site.operator(), site.enrol(WEB, "web").await);
    for nth in [1, 2] {
        queue(&site, &operator, nth).await;
    }
    let url = |nth, what: &str| format!("{}/v1/jobs/{}/{what}", site.url, id(nth));
    let (status, cancelled) = post(&operator, &url(1, "cancel"), &json!({})).await;
    assert_eq!((status, &cancelled["state"]), (200, &json!("cancelled")));
    assert_eq!(cancelled["ended"], at(0).as_second());
    assert_eq!(post(&operator, &url(1, "cancel"), &json!({})).await.0, 200);
    let (status, answer) = post(&web, &url(1, "take"), &json!({})).await;
    assert_eq!(
        (status, &answer["detail"]),
        (409, &json!("the job is cancelled"))
    );
    assert_eq!(post(&web, &url(2, "take"), &json!({})).await.0, 200);
    let (status, answer) = post(&operator, &url(2, "cancel"), &json!({})).await;
    assert_eq!(
        (status, &answer["detail"]),
        (409, &json!("the job is taken"))
    );
}

#[tokio::test]
async fn jobs_expire_and_get_lost_with_time_and_a_late_outcome_still_counts() {
    let site = TestSite::start().await;
    let (operator, web) = (site.operator(), site.enrol(WEB, "web").await);
    for nth in [1, 2] {
        queue(&site, &operator, nth).await;
    }
    let url = |nth, what: &str| format!("{}/v1/jobs/{}{what}", site.url, id(nth));
    let state = async |nth| get(&operator, &url(nth, "")).await.1["state"].clone();
    assert_eq!(post(&web, &url(2, "/take"), &json!({})).await.0, 200);
    site.clock.set(at(600 + 120));
    assert_eq!(state(2).await, "taken");
    site.clock.set(at(600 + 121));
    assert_eq!(state(2).await, "lost");
    let end = json!({ "offset": 0, "outcome": { "state": "succeeded", "result": {} } });
    assert_eq!(post(&web, &url(2, "/report"), &end).await.0, 200);
    assert_eq!(state(2).await, "succeeded");
    assert_eq!(state(1).await, "queued");
    site.clock.set(at(3600));
    assert_eq!(state(1).await, "expired");
    let offers = format!("{}/v1/offers", site.url);
    assert_eq!(get(&web, &offers).await.1, json!({ "jobs": [] }));
    let (status, answer) = post(&web, &url(1, "/take"), &json!({})).await;
    assert_eq!(
        (status, &answer["detail"]),
        (409, &json!("the job is expired"))
    );
}

#[tokio::test]
async fn jobs_survive_a_server_that_is_killed_at_every_step() {
    let mut site = TestSite::start().await;
    let (credential, _) = site.enrolled(WEB, "web").await;
    let clients = |site: &TestSite| {
        let (chain, key) = &credential;
        let web = site.client(Some((chain.clone(), key.clone_key())));
        (site.operator(), web)
    };
    let (operator, _) = clients(&site);
    assert_eq!(queue(&site, &operator, 1).await.0, 201);
    site.kill_and_start_again().await;

    let (operator, web) = clients(&site);
    assert_eq!(
        queue(&site, &operator, 1).await.0,
        200,
        "the same statement"
    );
    let offers = get(&web, &format!("{}/v1/offers", site.url)).await.1;
    assert_eq!(offers["jobs"][0]["id"], id(1));
    let take = format!("/v1/jobs/{}/take", id(1));
    assert_eq!(
        post(&web, &format!("{}{take}", site.url), &json!({}))
            .await
            .0,
        200
    );
    site.kill_and_start_again().await;

    let (_, web) = clients(&site);
    assert_eq!(
        post(&web, &format!("{}{take}", site.url), &json!({}))
            .await
            .0,
        409
    );
    let report = format!("/v1/jobs/{}/report", id(1));
    let body = json!({ "offset": 0, "output": "one " });
    assert_eq!(
        post(&web, &format!("{}{report}", site.url), &body).await.0,
        200
    );
    site.kill_and_start_again().await;

    let (_, web) = clients(&site);
    let body = json!({
        "offset": 0, "output": "one two", "outcome": { "state": "succeeded", "result": {} },
    });
    assert_eq!(
        post(&web, &format!("{}{report}", site.url), &body).await.0,
        200
    );
    site.kill_and_start_again().await;
    let (operator, _) = clients(&site);
    let detail = get(&operator, &format!("{}/v1/jobs/{}", site.url, id(1)))
        .await
        .1;
    assert_eq!(
        (&detail["state"], &detail["output"]),
        (&json!("succeeded"), &json!("one two"))
    );
}

#[tokio::test]
async fn the_last_jobs_of_a_node_are_kept() {
    let settings = ServerSettings {
        jobs_per_node: 3,
        ..ServerSettings::default()
    };
    let site = TestSite::start_with(settings, |_| ()).await;
    let (operator, web) = (site.operator(), site.enrol(WEB, "web").await);
    for nth in 0..8 {
        assert_eq!(queue(&site, &operator, nth).await.0, 201);
        let url = |what: &str| format!("{}/v1/jobs/{}/{what}", site.url, id(nth));
        // Those that are queued or taken are kept.
        if nth > 1 {
            assert_eq!(post(&web, &url("take"), &json!({})).await.0, 200);
        }
        if nth > 2 {
            let end = json!({ "offset": 0, "outcome": { "state": "succeeded", "result": {} } });
            assert_eq!(post(&web, &url("report"), &end).await.0, 200);
        }
    }
    let (_, list) = get(&operator, &format!("{}/v1/jobs", site.url)).await;
    let ids = list["jobs"].as_array().expect("jobs").iter();
    let ids: Vec<&str> = ids.filter_map(|job| job["id"].as_str()).collect();
    assert_eq!(ids, [7, 6, 5, 2, 1, 0].map(id));
    assert_eq!(queue(&site, &operator, 3).await.0, 409, "its id was used");
}

#[tokio::test]
async fn lists_of_nodes_have_what_each_last_reported() {
    let mut site = TestSite::start().await;
    let web = site.enrol(WEB, "web").await;
    site.enrol(DB, "db").await;
    let report = |state: &str, more: Value| {
        let mut body = json!({ "run": "1", "state": state, "agent": "0.2.0" });
        let all = body.as_object_mut().expect("an object");
        all.extend(more.as_object().expect("an object").clone());
        body
    };
    let url = format!("{}/v1/reports", site.url);
    site.clock.set(at(50));
    let failed = report(
        "failed",
        json!({ "generation": 7, "error": "x".repeat(600), "drift": ["a", "b"] }),
    );
    assert_eq!(post(&web, &url, &failed).await.0, 201);
    site.clock.set(at(60));
    assert_eq!(
        post(&web, &url, &report("fetching", json!({}))).await.0,
        201
    );
    for is_restarted in [false, true] {
        if is_restarted {
            site.kill_and_start_again().await;
        }
        let (_, list) = get(&site.operator(), &format!("{}/v1/nodes", site.url)).await;
        let web = &list["nodes"][1];
        assert_eq!(web["name"], "web");
        assert_eq!(web["reported"], at(60).as_second());
        assert_eq!(web["last_contact"], at(60).as_second());
        assert_eq!(web["result"], "fetching");
        assert_eq!(web["reported_generation"], 7);
        assert_eq!(web["drift"], 2);
        assert_eq!(web["error"].as_str().map(str::len), Some(500));
        assert_eq!(web["agent"], "0.2.0");
        let db = &list["nodes"][0];
        assert_eq!(db["last_contact"], at(0).as_second());
        assert!(
            db.get("reported").is_none() && db.get("drift").is_none(),
            "{db}"
        );
        let one = format!("{}/v1/nodes/{WEB}", site.url);
        assert_eq!(get(&site.operator(), &one).await.1, *web);
    }
}

#[tokio::test]
async fn what_a_former_guest_with_the_same_uuid_reported_is_not_shown_of_the_new_one() {
    let mut site = TestSite::start().await;
    let (operator, old) = (site.operator(), site.enrol(WEB, "web").await);
    let reports = format!("{}/v1/reports", site.url);
    site.clock.set(at(50));
    let failed = json!({
        "run": "1", "state": "failed", "agent": "0.2.0", "generation": 7, "error": "e",
        "drift": ["a"],
    });
    assert_eq!(post(&old, &reports, &failed).await.0, 201);
    let one = format!("{}/v1/nodes/{WEB}", site.url);
    let destroyed = json!({ "reason": "destroyed" });
    assert_eq!(
        post(&operator, &format!("{one}/revoke"), &destroyed)
            .await
            .0,
        200
    );
    site.directory.remove_spec(&uuid(WEB)).expect("removed");
    (site.reload)();
    // What is known of a destroyed one stays.
    assert_eq!(get(&operator, &one).await.1["result"], "failed");
    site.clock.set(at(60));
    site.publish(WEB, "web", |spec| {
        spec.token.as_mut().expect("a token").id = "t-new".to_owned();
    });
    (site.reload)();
    let shown = async |site: &TestSite| {
        let of_node = format!("{}/v1/nodes/{WEB}", site.url);
        let (_, node) = get(&site.operator(), &of_node).await;
        let (_, reports) = get(&site.operator(), &format!("{of_node}/reports")).await;
        (node, reports["reports"].clone())
    };
    let mut claims = site.claims(WEB, "web");
    claims.guest.as_mut().expect("version 2").token_id = "t-new".to_owned();
    let key = rcgen::KeyPair::generate().expect("a key");
    for is_enrolled in [false, true] {
        if is_enrolled {
            let token = v2(&claims);
            let answer = enrol(&site.client(None), &site.url, WEB, "web", &key, &token).await;
            assert_eq!(answer.status(), 201);
        }
        for is_restarted in [false, true] {
            if is_restarted {
                site.kill_and_start_again().await;
            }
            let (node, reports) = shown(&site).await;
            for field in [
                "reported",
                "result",
                "reported_generation",
                "drift",
                "error",
            ] {
                assert!(node.get(field).is_none(), "{field}: {node}");
            }
            assert_eq!(reports, json!([]), "{is_enrolled} {is_restarted}");
        }
    }
    // Nor is it mixed with what the new one reports.
    let answer = enrol(
        &site.client(None),
        &site.url,
        WEB,
        "web",
        &key,
        &v2(&claims),
    )
    .await;
    let new = site.client(Some(credential(
        &answer.text().await.expect("a body"),
        &key,
    )));
    let fetching = json!({ "run": "2", "state": "fetching", "agent": "0.3.0" });
    let url = format!("{}/v1/reports", site.url);
    assert_eq!(post(&new, &url, &fetching).await.0, 201);
    let (node, reports) = shown(&site).await;
    assert_eq!(node["result"], "fetching", "{node}");
    assert!(
        node.get("drift").is_none() && node.get("error").is_none(),
        "{node}"
    );
    assert_eq!(reports.as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn reports_and_jobs_of_a_destroyed_guest_are_deleted_after_thirty_days() {
    let site = TestSite::start().await;
    let (operator, web) = (site.operator(), site.enrol(WEB, "web").await);
    assert_eq!(queue(&site, &operator, 1).await.0, 201);
    let report = json!({ "run": "1", "state": "converged", "agent": "0.2.0" });
    assert_eq!(
        post(&web, &format!("{}/v1/reports", site.url), &report)
            .await
            .0,
        201
    );
    let one = format!("{}/v1/nodes/{WEB}", site.url);
    let destroyed = json!({ "reason": "destroyed" });
    assert_eq!(
        post(&operator, &format!("{one}/revoke"), &destroyed)
            .await
            .0,
        200
    );
    let day = 24 * 3600;
    for (is_published, days, kept) in [(true, 31, 1), (false, 29, 1), (false, 31, 0)] {
        site.clock.set(at(days * day));
        site.publish_intermediate(at(days * day));
        if !is_published {
            site.directory.remove_spec(&uuid(WEB)).expect("removed");
        }
        (site.reload)();
        for list in ["reports", "jobs"] {
            let (_, found) = get(&site.operator(), &format!("{one}/{list}")).await;
            assert_eq!(
                found[list].as_array().map(Vec::len),
                Some(kept),
                "{days} {found}"
            );
        }
        assert_eq!(
            get(&site.operator(), &one).await.1["revoke_reason"],
            "destroyed"
        );
    }
}

#[tokio::test]
async fn a_job_wakes_its_own_node_only() {
    let site = TestSite::start().await;
    let (operator, web) = (site.operator(), site.enrol(WEB, "web").await);
    let db = site.enrol(DB, "db").await;
    let offers = format!("{}/v1/offers?wait=20", site.url);
    let other = {
        let url = offers.clone();
        tokio::spawn(async move { get(&db, &url).await })
    };
    for nth in 0..5 {
        let (offered, _) = tokio::join!(get(&web, &offers), queue(&site, &operator, nth));
        assert_eq!(offered.1["jobs"][0]["id"], id(nth));
        let take = format!("{}/v1/jobs/{}/take", site.url, id(nth));
        assert_eq!(post(&web, &take, &json!({})).await.0, 200);
    }
    assert!(!other.is_finished());
    let waited = tokio::time::timeout(Duration::ZERO, other).await;
    assert!(waited.is_err());
}
