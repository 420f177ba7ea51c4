//! Measures a large World: 100 hosts and 50,000 guests.
//!
//! In: optionally, how many hosts and guests. Out: memory and times, on standard output.
//! Never: network.

use std::io::Write as _;

use homestak_api::runtime::{Clock as _, WallClock};
use homestak_sim::{Pace, Request, World};

const TOKEN: &str = "root@pam!t=secret";

fn main() -> std::io::Result<()> {
    let mut numbers = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse::<u32>().ok());
    let hosts = numbers.next().unwrap_or(100);
    let guests = numbers.next().unwrap_or(50_000);
    let started = WallClock.now();
    let builder = World::builder()
        .pace(Pace::Accelerated(1000.0))
        .token(TOKEN);
    let world = World::fleet(builder, hosts, guests);
    let built = WallClock.now().duration_since(started);
    say(&format!(
        "{hosts} hosts, {guests} guests: built in {:.2} s",
        built.as_secs_f64()
    ));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let list = Request::get("/cluster/resources")
            .with("type", "vm")
            .token(TOKEN);
        let mut best = f64::MAX;
        let mut bytes = 0;
        for _ in 0..5 {
            let before = WallClock.now();
            let answer = world.call(list.clone()).await;
            bytes = answer.body.map_or(0, |body| body.to_string().len());
            best = best.min(WallClock.now().duration_since(before).as_secs_f64());
        }
        say(&format!(
            "list of all guests: {:.0} ms, {:.1} MB",
            best * 1e3,
            bytes as f64 / 1e6
        ));
        let before = WallClock.now();
        let calls = 2_000;
        for at in 0..calls {
            let vmid = 100 + at * (guests / calls).max(1);
            let host = (vmid - 100) % hosts + 1;
            let path = format!("/nodes/pve{host:03}/qemu/{vmid}/config");
            let answer = world.call(Request::get(&path).token(TOKEN)).await;
            assert_eq!(answer.status, 200, "{}", answer.reason);
        }
        let each = WallClock.now().duration_since(before).as_secs_f64() / f64::from(calls);
        say(&format!("one config: {:.2} ms", each * 1e3));
    });
    let status = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(line) = status.lines().find(|line| line.starts_with("VmHWM")) {
        say(&format!(
            "memory: {}",
            line.trim_start_matches("VmHWM:").trim()
        ));
    }
    Ok(())
}

fn say(line: &str) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}
