//! Responses of the small Proxmox VE to each call.

use std::collections::BTreeMap;

use homestak_engine::ports::GuestKind;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::world::{Effect, Guest, World};

pub struct Call {
    pub method: String,
    pub path: String,
    pub params: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Call {
    pub fn new(method: &str, uri: &str, body: &[u8]) -> Self {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let text = String::from_utf8_lossy(body);
        let form = if text.starts_with("--") {
            ""
        } else {
            text.as_ref()
        };
        let pairs = query
            .split('&')
            .chain(form.split('&'))
            .filter_map(|pair| pair.split_once('='));
        let decode = |text: &str| {
            percent_decode_str(&text.replace('+', " "))
                .decode_utf8_lossy()
                .into_owned()
        };
        Self {
            method: method.to_owned(),
            path: path.strip_prefix("/api2/json").unwrap_or(path).to_owned(),
            params: pairs
                .map(|(key, value)| (decode(key), decode(value)))
                .collect(),
            body: body.to_vec(),
        }
    }
}

pub struct Reply {
    pub status: u16,
    pub reason: String,
    pub body: Value,
}

impl Reply {
    pub fn error(status: u16, reason: &str) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            body: json!({"data": null, "message": format!("{reason}\n")}),
        }
    }

    fn data(data: Value) -> Self {
        Self {
            status: 200,
            reason: "OK".to_owned(),
            body: json!({"data": data}),
        }
    }
}

fn missing(vmid: u32) -> Reply {
    Reply::error(
        500,
        &format!("Configuration file 'nodes/pve1/qemu-server/{vmid}.conf' does not exist"),
    )
}

pub fn handle(world: &mut World, call: &Call) -> Reply {
    let decoded: Vec<String> = call
        .path
        .split('/')
        .skip(1)
        .map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned())
        .collect();
    let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
    match (call.method.as_str(), parts.as_slice()) {
        ("GET", ["version"]) => Reply::data(json!({"version": "9.1.7", "release": "9.1"})),
        ("POST", ["access", "ticket"]) => {
            world.logins += 1;
            let nth = world.logins;
            Reply::data(json!({
                "ticket": format!("PVE:{nth}"),
                "CSRFPreventionToken": format!("6AFA:{nth}"),
            }))
        }
        ("GET", ["access", "permissions"]) => Reply::data(json!({"/vms": {"VM.Audit": 1}})),
        ("GET", ["cluster", "options"]) => Reply::data(json!({"mac_prefix": "BC:24:11"})),
        ("GET", ["cluster", "status"]) => {
            Reply::data(json!([{"type": "node", "name": "pve1", "online": 1}]))
        }
        ("GET", ["cluster", "resources"]) => Reply::data(resources(world)),
        ("GET", ["nodes", _, "tasks"]) => Reply::data(running(world)),
        ("GET", ["nodes", _, "tasks", upid, "status"]) => task_status(world, upid),
        ("GET", ["nodes", _, "storage", _, "status"]) => {
            Reply::data(json!({"active": 1, "enabled": 1, "avail": 1_u64 << 40}))
        }
        ("GET", ["nodes", _, "tasks", _, "log"]) => Reply {
            body: json!({"total": 1, "data": [{"n": 1, "t": "WARN: a line of the log"}]}),
            ..Reply::data(Value::Null)
        },
        (_, ["nodes", _, "storage", storage, rest @ ..]) => files(world, call, storage, rest),
        ("POST", ["nodes", node, "qemu"]) => create(world, call, node, GuestKind::Vm),
        ("POST", ["nodes", node, "lxc"]) => create(world, call, node, GuestKind::Ct),
        (_, ["nodes", node, kind @ ("qemu" | "lxc"), vmid, rest @ ..]) => {
            let kind = if *kind == "qemu" {
                GuestKind::Vm
            } else {
                GuestKind::Ct
            };
            let vmid = vmid.parse().expect("a vmid");
            if world
                .guests
                .get(&vmid)
                .is_some_and(|guest| guest.node != *node)
            {
                return missing(vmid);
            }
            guest(world, call, kind, vmid, rest)
        }
        _ => Reply::error(
            501,
            &format!("Method '{} {}' not implemented", call.method, call.path),
        ),
    }
}

fn resources(world: &World) -> Value {
    let mut rows: Vec<Value> = vec![
        json!({"type": "node", "node": "pve1", "status": "online", "maxcpu": 8, "maxmem": 1_u64 << 36}),
        json!({"type": "storage", "node": "pve1", "storage": "local", "status": "available", "shared": 0,
               "content": "iso,import,images,vztmpl,rootdir", "maxdisk": 1_u64 << 40, "disk": 0}),
    ];
    rows.extend(world.guests.iter().map(|(vmid, guest)| {
        let mut row = json!({"type": if guest.kind == GuestKind::Vm { "qemu" } else { "lxc" },
            "vmid": vmid, "node": guest.node, "status": if guest.running { "running" } else { "stopped" }});
        for field in ["name", "tags", "lock", "template"] {
            if let Some(value) = guest.config.get(field) {
                row[field] = json!(value);
            }
        }
        row
    }));
    Value::Array(rows)
}

fn running(world: &World) -> Value {
    let tasks = world.tasks.iter().filter(|task| task.effect.is_some());
    tasks
        .map(|task| json!({"upid": task.upid, "status": "RUNNING"}))
        .collect()
}

fn task_status(world: &World, upid: &str) -> Reply {
    match world.tasks.iter().find(|task| task.upid == upid) {
        Some(task) if task.effect.is_some() => {
            Reply::data(json!({"status": "running", "upid": upid}))
        }
        Some(task) => Reply::data(json!({"status": "stopped", "exitstatus": task.exit})),
        None => Reply::error(400, "Parameter verification failed."),
    }
}

fn files(world: &mut World, call: &Call, storage: &str, rest: &[&str]) -> Reply {
    match (call.method.as_str(), rest) {
        ("GET", ["content"]) => {
            let kind = call.params.get("content").cloned().unwrap_or_default();
            let start = format!("{storage}:{kind}/");
            let files = world
                .files
                .iter()
                .filter(|volume| volume.starts_with(&start));
            Reply::data(
                files
                    .map(|volume| json!({"volid": volume, "ctime": 1_000}))
                    .collect(),
            )
        }
        ("POST", ["upload"]) => {
            let text = String::from_utf8_lossy(&call.body).into_owned();
            let names: Vec<&str> = text
                .split("name=\"")
                .skip(1)
                .filter_map(|rest| rest.split('"').next())
                .collect();
            let order = ["content", "checksum-algorithm", "checksum", "filename"];
            let sorted: Vec<&str> = order
                .into_iter()
                .filter(|name| names.contains(name))
                .collect();
            let sent: Vec<&str> = names
                .iter()
                .copied()
                .filter(|name| order.contains(name))
                .collect();
            if sent != sorted {
                return Reply {
                    body: Value::Null,
                    ..Reply::error(400, "Bad Request")
                };
            }
            let file = text
                .split("filename=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next())
                .expect("a file");
            let content = text
                .split("name=\"content\"\r\n\r\n")
                .nth(1)
                .and_then(|rest| rest.split('\r').next())
                .expect("content");
            let effect = Effect::AddFile(format!("{storage}:{content}/{file}"));
            Reply::data(json!(world.task("imgcopy", "", effect)))
        }
        ("POST", ["download-url"]) => {
            let (content, file) = (&call.params["content"], &call.params["filename"]);
            let effect = Effect::AddFile(format!("{storage}:{content}/{file}"));
            Reply::data(json!(world.task("download", file, effect)))
        }
        ("DELETE", ["content", volume]) => {
            let effect = Effect::RemoveFile((*volume).to_owned());
            Reply::data(json!(world.task("imgdel", storage, effect)))
        }
        _ => Reply::error(501, "not implemented"),
    }
}

fn create(world: &mut World, call: &Call, node: &str, kind: GuestKind) -> Reply {
    let vmid: u32 = call.params["vmid"].parse().expect("a vmid");
    if world.guests.contains_key(&vmid) {
        return Reply::error(
            500,
            &format!("unable to create VM {vmid} - VM {vmid} already exists on node 'pve1'"),
        );
    }
    let mut config = call.params.clone();
    config.remove("vmid");
    if kind == GuestKind::Vm {
        config.insert(
            "scsi0".to_owned(),
            format!("local:{vmid}/vm-{vmid}-disk-0.qcow2,size=1500M"),
        );
    } else {
        let size = config["rootfs"].split(':').nth(1).unwrap_or("0").to_owned();
        config.insert(
            "rootfs".to_owned(),
            format!("local:{vmid}/vm-{vmid}-disk-0.raw,size={size}G"),
        );
    }
    let lock = BTreeMap::from([("lock".to_owned(), "create".to_owned())]);
    world.guests.insert(
        vmid,
        Guest {
            kind,
            node: node.to_owned(),
            config: lock,
            running: false,
        },
    );
    let name = if kind == GuestKind::Vm {
        "qmcreate"
    } else {
        "vzcreate"
    };
    let upid = world.task(name, &vmid.to_string(), Effect::Configure(vmid, config));
    Reply::data(json!(upid))
}

fn guest(world: &mut World, call: &Call, kind: GuestKind, vmid: u32, rest: &[&str]) -> Reply {
    let Some(found) = world
        .guests
        .get(&vmid)
        .filter(|guest| guest.kind == kind)
        .cloned()
    else {
        return missing(vmid);
    };
    let id = vmid.to_string();
    let prefix = if kind == GuestKind::Vm { "qm" } else { "vz" };
    let digest = digest(&found);
    if let Some(sent) = call.params.get("digest")
        && *sent != digest
    {
        return Reply::error(500, "checksum mismatch (file change by other user?)");
    }
    let effect = match (call.method.as_str(), rest) {
        ("GET", ["config"]) => {
            let mut config = json!(found.config);
            config["digest"] = json!(digest);
            return Reply::data(config);
        }
        ("GET", ["status", "current"]) => {
            let status = if found.running { "running" } else { "stopped" };
            return Reply::data(json!({"status": status, "vmid": vmid}));
        }
        ("GET", ["agent", _]) => return Reply::error(500, "QEMU guest agent is not running"),
        ("POST" | "PUT", ["config"]) => {
            let mut config = call.params.clone();
            config.remove("digest");
            if kind == GuestKind::Ct {
                world
                    .guests
                    .get_mut(&vmid)
                    .expect("a guest")
                    .config
                    .extend(config);
                return Reply::data(Value::Null);
            }
            Effect::Configure(vmid, config)
        }
        ("PUT", ["resize"]) => Effect::Resize(
            vmid,
            call.params["disk"].clone(),
            call.params["size"].clone(),
        ),
        ("POST", ["status", "start"]) if kind == GuestKind::Ct && found.running => {
            return Reply::error(500, &format!("CT {vmid} already running"));
        }
        ("POST", ["status", "start"]) => Effect::Power(vmid, true),
        ("POST", ["status", "stop" | "shutdown"]) if kind == GuestKind::Ct && !found.running => {
            return Reply::error(500, &format!("CT {vmid} not running"));
        }
        ("POST", ["status", "stop" | "shutdown"]) => Effect::Power(vmid, false),
        ("DELETE", []) if found.running => {
            return Reply::error(500, &format!("VM {vmid} is running - destroy failed"));
        }
        ("DELETE", []) => Effect::Destroy(vmid),
        _ => return Reply::error(501, "not implemented"),
    };
    let name = match &effect {
        Effect::Destroy(_) => format!("{prefix}destroy"),
        Effect::Power(_, true) => format!("{prefix}start"),
        Effect::Power(_, false) => format!("{prefix}stop"),
        _ => format!("{prefix}config"),
    };
    Reply::data(json!(world.task(&name, &id, effect)))
}

fn digest(guest: &Guest) -> String {
    let text: String = guest
        .config
        .iter()
        .map(|(key, value)| format!("{key}={value};"))
        .collect();
    let sum = text.bytes().fold(7_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    format!("{sum:040x}")
}
