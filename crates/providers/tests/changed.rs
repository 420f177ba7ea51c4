//! A credential or certificate that is rejected during a run is reported as changed.

mod support;

use std::time::Duration;

use homestak_engine::ports::{ErrorClass, Provider as _};
use homestak_sim::Request;
use support::simulated::{SimulatedHost, simulated_host};

const ROOT: &str = "root@pam!t=secret";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_changes_during_a_run_is_reported() {
    let sim = simulated_host(|builder| builder).await;
    let pve = sim.client();
    let guest = pve.create(&support::vm(1)).await.expect("a guest");
    sim.handle.stop();
    // The same address with another certificate, once the first server has stopped.
    let another = loop {
        match homestak_sim::serve(sim.world.clone(), sim.handle.address).await {
            Ok(another) => break another,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    assert_ne!(another.fingerprint, sim.handle.fingerprint);
    let error = pve.start(&guest).await.expect_err("another certificate");
    assert_eq!(error.class, ErrorClass::Refused, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("the host's certificate changed"), "{text}");
    assert!(text.contains(&another.fingerprint), "{text}");
    assert!(
        error.hint.contains("record the new fingerprint"),
        "{error:?}"
    );
    assert!(
        !sim.world
            .is_running(guest.vmid.and_then(|id| id.number()).expect("an id"))
    );
}

async fn remove_token(sim: &SimulatedHost) {
    let request = Request::delete("/access/users/homestak@pve/token/driver").token(ROOT);
    assert_eq!(sim.world.call(request).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_removed_during_a_run_is_reported() {
    let sim = simulated_host(|builder| builder.token(ROOT)).await;
    let pve = sim.client();
    let guest = pve.create(&support::vm(1)).await.expect("a guest");
    remove_token(&sim).await;
    let error = pve.start(&guest).await.expect_err("no token");
    assert_eq!(error.class, ErrorClass::Refused, "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("rejects the token that it accepted before"),
        "{text}"
    );
    assert!(error.hint.contains("token list"), "{error:?}");
    support::check_secret(&error);
    // A token that was never accepted is reported differently.
    let fresh = sim.client();
    let error = fresh.observe().await.expect_err("no token");
    assert!(!error.to_string().contains("before"), "{error}");
}
