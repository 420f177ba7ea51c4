//! Measures memory, times and request rates of a large World: `scale [--json] [HOSTS [GUESTS]]`.
//! The default is 100 hosts and 50,000 guests.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use homestak_api::runtime::{Clock as _, Spawner, WallClock};
use homestak_api::trust::{Fingerprint, Trust, client_config};
use homestak_sim::{Handle, Pace, Request, Timing, World, serve};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const TOKEN: &str = "root@pam!t=secret";
/// Number of concurrent connections.
const CONNECTIONS: u32 = 8;
/// Number of requests per measurement.
const REQUESTS: u32 = 16_000;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut numbers = arguments.iter().filter_map(|text| text.parse().ok());
    let hosts: u32 = numbers.next().unwrap_or(100);
    let guests: u32 = numbers.next().unwrap_or(50_000);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let figures = runtime.block_on(measure(hosts, guests))?;
    let mut out = std::io::stdout();
    if arguments.iter().any(|text| text == "--json") {
        writeln!(out, "{figures}")?;
    } else {
        for (name, figure) in figures.as_object().into_iter().flatten() {
            writeln!(out, "{name:<24} {figure}")?;
        }
    }
    Ok(())
}

async fn measure(hosts: u32, guests: u32) -> Outcome<Value> {
    let before = WallClock.now();
    // No simulated delays: only the work itself is measured.
    let timing = Timing {
        read: Duration::ZERO,
        write: Duration::ZERO,
        ..Timing::default()
    };
    let builder = World::builder()
        .pace(Pace::Accelerated(1000.0))
        .timing(timing)
        .token(TOKEN);
    let world = World::fleet(builder, hosts, guests);
    let built = seconds_since(before);
    let resident = memory("VmRSS");
    let mut best = f64::MAX;
    let mut bytes = 0;
    for _ in 0..5 {
        let before = WallClock.now();
        let answer = world
            .call(Request::get("/cluster/resources").token(TOKEN))
            .await;
        bytes = answer.into_text().map_or(0, |text| text.len());
        best = best.min(seconds_since(before));
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let handle = serve(world, address).await?;
    let guest = move |at: u32| {
        let vmid = 100 + at.wrapping_mul(7919) % guests.max(1);
        let host = (vmid - 100) % hosts.max(1) + 1;
        format!("/nodes/pve{host:03}/qemu/{vmid}")
    };
    let config = rate(&handle, REQUESTS, move |at| format!("{}/config", guest(at))).await?;
    let status = rate(&handle, REQUESTS, move |at| {
        format!("{}/status/current", guest(at))
    })
    .await?;
    let list = rate(&handle, 400, move |at| {
        format!("/nodes/pve{:03}/qemu", at % hosts + 1)
    })
    .await?;
    let whole = rate(&handle, 8, |_| "/cluster/resources".to_owned()).await?;
    Ok(json!({
        "hosts": hosts,
        "guests": guests,
        "build_s": rounded(built, 3),
        "resident_mb": resident,
        "peak_mb": memory("VmHWM"),
        "full_list_s": rounded(best, 3),
        "full_list_mb": rounded(bytes as f64 / 1e6, 1),
        "config_per_s": rounded(config, 0),
        "status_per_s": rounded(status, 0),
        "host_list_per_s": rounded(list, 1),
        "full_list_per_s": rounded(whole, 2),
        "connections": CONNECTIONS,
    }))
}

/// Sends requests over persistent TLS connections and returns requests per second.
async fn rate(
    handle: &Handle,
    requests: u32,
    path: impl Fn(u32) -> String + Clone + Send + 'static,
) -> Outcome<f64> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(connect(handle).await?);
    }
    let spawner = Spawner::default();
    let before = WallClock.now();
    for (number, mut client) in (0..).zip(clients) {
        let path = path.clone();
        // Cancel safety: awaited below.
        spawner.spawn("client", async move {
            for at in (number..requests).step_by(CONNECTIONS as usize) {
                let asked = ask(&mut client, &path(at)).await;
                assert!(asked.is_ok(), "{asked:?}");
            }
        });
    }
    spawner.wait().await;
    Ok(f64::from(requests) / seconds_since(before))
}

type Client = BufStream<TlsStream<TcpStream>>;

async fn connect(handle: &Handle) -> Outcome<Client> {
    let pin = Fingerprint::parse(&handle.fingerprint).ok_or("a fingerprint")?;
    let connector = TlsConnector::from(Arc::new(client_config(&Trust::Pinned(pin))?));
    let stream = TcpStream::connect(handle.address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from("localhost")?;
    Ok(BufStream::new(connector.connect(name, stream).await?))
}

async fn ask(client: &mut Client, path: &str) -> Outcome<()> {
    let text = format!(
        "GET /api2/json{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: PVEAPIToken={TOKEN}\r\n\r\n"
    );
    client.write_all(text.as_bytes()).await?;
    client.flush().await?;
    let mut line = String::new();
    client.read_line(&mut line).await?;
    if !line.starts_with("HTTP/1.1 200") {
        return Err(line.into());
    }
    let mut length = 0;
    while line != "\r\n" {
        line.clear();
        client.read_line(&mut line).await?;
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    client.read_exact(&mut body).await?;
    Ok(())
}

fn seconds_since(before: jiff::Timestamp) -> f64 {
    WallClock.now().duration_since(before).as_secs_f64()
}

fn rounded(number: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (number * scale).round() / scale
}

/// Returns a memory figure of this process from `/proc`, in megabytes.
fn memory(what: &str) -> Option<u64> {
    let status = fs_err::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(what))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes / 1024)
}
