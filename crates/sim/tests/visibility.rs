//! What a token with few privileges sees, and the usage of storages, as in a real Proxmox VE.

use std::collections::BTreeSet;
use std::time::Duration;

use homestak_sim::{Answer, Boots, Builder, Kind, Pace, Request, World};

const OPS: &str = "ops@pve!t=secret";
const ROOT: &str = "root@pam!t=secret";

/// Returns a World with two storages on one file system, and a token that has, like its user, these
/// privileges on these paths.
async fn world(grants: &[(&str, &[&str])]) -> World {
    let mut builder = base().separated_token(OPS);
    for (at, (path, privileges)) in grants.iter().enumerate() {
        let role = format!("Role{at}");
        builder = builder.role(&role, privileges);
        for subject in ["ops@pve", "ops@pve!t"] {
            builder = builder.grant(subject, path, &role);
        }
    }
    built(builder).await
}

fn base() -> Builder {
    World::builder()
        .pace(Pace::Stepped)
        .storage("local")
        .storage("small")
        .token(ROOT)
        .file("local", "import/a.qcow2", 1 << 20)
        .file("local", "iso/a.iso", 1 << 20)
        .file("local", "snippets/a.yaml", 10)
        .guest("pve1", Kind::Lxc, 402, &[])
}

async fn built(builder: Builder) -> World {
    let world = builder.build();
    let create = Request::post("/nodes/pve1/qemu")
        .with("vmid", 401)
        .with("scsi0", "local:1,format=qcow2");
    assert_eq!(call(&world, create, ROOT).await.status, 200);
    let clock = world.stepped().expect("time is stepped");
    clock.advance(Duration::from_secs(30)).await;
    world
}

/// Makes a call and advances the clock until it is answered.
async fn call(world: &World, request: Request, token: &str) -> Answer {
    let clock = world.stepped().expect("time is stepped").clone();
    tokio::select! {
        biased;
        // Cancel safety: the call completes; only the clock is dropped.
        answer = world.call(request.token(token)) => answer,
        // Cancel safety: as above.
        () = async { loop { clock.advance(Duration::from_millis(5)).await } } => unreachable!(),
    }
}

/// Returns one field of each row, sorted.
async fn listed(world: &World, request: Request, field: &str) -> Vec<String> {
    let answer = call(world, request, OPS).await;
    assert_eq!(answer.status, 200, "{}", answer.reason);
    let rows = answer.data().as_array().expect("a list").clone();
    let found: BTreeSet<String> = rows
        .iter()
        .filter_map(|row| Some(row.get(field)?.as_str()?.to_owned()))
        .collect();
    found.into_iter().collect()
}

async fn resources(world: &World) -> Vec<String> {
    listed(world, Request::get("/cluster/resources"), "id").await
}

async fn content(world: &World) -> Vec<String> {
    let request = Request::get("/nodes/pve1/storage/local/content");
    listed(world, request, "volid").await
}

#[tokio::test]
async fn the_resource_list_shows_a_storage_only_with_the_audit_privilege() {
    for (privilege, in_list, on_host) in [
        ("Datastore.Audit", true, true),
        ("Datastore.AllocateSpace", false, true),
        ("Datastore.AllocateTemplate", false, false),
        ("Datastore.Allocate", false, false),
    ] {
        let world = world(&[("/storage/local", &[privilege])]).await;
        let seen = resources(&world).await;
        assert_eq!(
            seen.contains(&"storage/pve1/local".to_owned()),
            in_list,
            "{privilege}: {seen:?}"
        );
        let request = Request::get("/nodes/pve1/storage");
        let on = listed(&world, request, "storage").await;
        assert_eq!(!on.is_empty(), on_host, "{privilege}: {on:?}");
        let status = Request::get("/nodes/pve1/storage/local/status");
        let answer = call(&world, status, OPS).await;
        assert_eq!(
            answer.status,
            if on_host { 200 } else { 403 },
            "{privilege}"
        );
    }
}

#[tokio::test]
async fn a_token_has_only_privileges_that_its_user_has() {
    let audit: &[&str] = &["Datastore.Audit", "VM.Audit"];
    for subject in ["ops@pve", "ops@pve!t"] {
        let builder = base().separated_token(OPS).role("Audit", audit);
        let world = built(builder.grant(subject, "/", "Audit")).await;
        assert_eq!(resources(&world).await, ["node/pve1"], "{subject} alone");
    }
    let both = world(&[("/", audit)]).await;
    assert_eq!(
        resources(&both).await,
        [
            "lxc/402",
            "node/pve1",
            "qemu/401",
            "storage/pve1/local",
            "storage/pve1/small"
        ]
    );
}

#[tokio::test]
async fn a_host_shows_few_fields_without_the_audit_privilege() {
    let row = |answer: &Answer| answer.data()[0].as_object().expect("a row").clone();
    let nodes = || Request::get("/cluster/resources").with("type", "node");
    let poor = row(&call(&world(&[]).await, nodes(), OPS).await);
    let names: BTreeSet<&str> = poor.keys().map(String::as_str).collect();
    let few = ["cgroup-mode", "id", "level", "node", "status", "type"];
    assert_eq!(names, BTreeSet::from(few));
    let audit: &[(&str, &[&str])] = &[("/nodes/pve1", &["Sys.Audit"])];
    let rich = row(&call(&world(audit).await, nodes(), OPS).await);
    assert!(rich.len() == 13 && rich.contains_key("maxmem"), "{rich:?}");
}

#[tokio::test]
async fn volumes_without_read_access_are_omitted_without_an_error() {
    let disk = "local:401/vm-401-disk-0.qcow2";
    let files = ["local:import/a.qcow2", "local:iso/a.iso"];
    let storage = "/storage/local";
    let seen = world(&[
        (storage, &["Datastore.AllocateSpace"]),
        ("/vms", &["VM.Config.Disk"]),
    ])
    .await;
    assert_eq!(
        content(&seen).await,
        files,
        "AllocateSpace does not show disks"
    );
    let seen = world(&[(storage, &["Datastore.Audit"])]).await;
    assert_eq!(
        content(&seen).await,
        files,
        "Audit alone does not show disks"
    );
    let seen = world(&[
        (storage, &["Datastore.Audit"]),
        ("/vms/401", &["VM.Config.Disk"]),
    ])
    .await;
    assert_eq!(content(&seen).await, [&[disk][..], &files].concat());
    let seen = world(&[(storage, &["Datastore.Audit", "Datastore.Allocate"])]).await;
    let all = [&[disk][..], &files, &["local:snippets/a.yaml"]].concat();
    assert_eq!(content(&seen).await, all);
    let volume = Request::get(&format!("/nodes/pve1/storage/local/content/{disk}"));
    let seen = world(&[(storage, &["Datastore.AllocateSpace"])]).await;
    let answer = call(&seen, volume, OPS).await;
    assert_eq!(answer.status, 403);
    assert!(
        answer.reason.ends_with("(/storage/local, Datastore.Audit)"),
        "{}",
        answer.reason
    );
}

#[tokio::test]
async fn a_list_of_the_volumes_of_a_guest_also_contains_shared_files() {
    let request = Request::get("/nodes/pve1/storage/local/content").with("vmid", 401);
    let answer = call(&world(&[]).await, request, ROOT).await;
    let rows = answer.data().as_array().expect("a list").clone();
    let own = |row: &&serde_json::Value| row["vmid"] == 401;
    assert_eq!(rows.iter().filter(own).count(), 1);
    let others: Vec<_> = rows
        .iter()
        .filter(|row| !own(row))
        .map(|row| row["volid"].clone())
        .collect();
    assert_eq!(others, ["local:import/a.qcow2", "local:snippets/a.yaml"]);
}

#[tokio::test]
async fn a_bridge_is_listed_only_with_an_sdn_privilege() {
    let zone = "/sdn/zones/localnetwork";
    let bridges = |answer: &Answer| -> usize {
        let rows = answer.data().as_array().expect("a list").clone();
        rows.iter().filter(|row| row["type"] == "bridge").count()
    };
    for (privilege, shown, row) in [
        ("SDN.Use", 1, false),
        ("SDN.Audit", 1, true),
        ("VM.Audit", 0, false),
    ] {
        let world = world(&[(zone, &[privilege])]).await;
        let answer = call(&world, Request::get("/nodes/pve1/network"), OPS).await;
        assert_eq!(bridges(&answer), shown, "{privilege}");
        let zone_row = "network/pve1/zone/localnetwork".to_owned();
        assert_eq!(
            resources(&world).await.contains(&zone_row),
            row,
            "{privilege}"
        );
    }
}

#[tokio::test]
async fn privileges_on_a_pool_apply_to_its_members() {
    for (privilege, expected) in [
        ("Pool.Audit", "/pool/p1"),
        ("VM.Audit", "qemu/401"),
        ("Datastore.Audit", "storage/pve1/small"),
    ] {
        let world = world(&[("/pool/p1", &[privilege])]).await;
        for request in [
            Request::post("/pools").with("poolid", "p1"),
            Request::put("/pools")
                .with("poolid", "p1")
                .with("vms", 401)
                .with("storage", "small"),
        ] {
            let answer = call(&world, request, ROOT).await;
            assert_eq!(answer.status, 200, "{}", answer.reason);
        }
        assert!(
            resources(&world).await.contains(&expected.to_owned()),
            "{privilege}"
        );
        let permissions = call(&world, Request::get("/access/permissions"), OPS).await;
        let paths: BTreeSet<String> = permissions
            .data()
            .as_object()
            .expect("paths")
            .keys()
            .cloned()
            .collect();
        let expected = ["/pool/p1", "/storage/small", "/vms/401"].map(str::to_owned);
        assert_eq!(paths, BTreeSet::from(expected));
    }
}

/// Returns total, used and available bytes of a storage.
async fn usage(world: &World, storage: &str) -> [u64; 3] {
    let request = Request::get(&format!("/nodes/pve1/storage/{storage}/status"));
    let answer = call(world, request, ROOT).await;
    ["total", "used", "avail"].map(|key| answer.data()[key].as_u64().expect("a number"))
}

#[tokio::test]
async fn available_space_excludes_reserved_blocks_and_is_shared_by_a_file_system() {
    let world = world(&[]).await;
    let [total, used, available] = usage(&world, "local").await;
    assert!(used + available < total, "{used} {available} {total}");
    assert_eq!(usage(&world, "small").await, [total, used, available]);
    world.put_file("pve1", "small", "iso/b.iso", 1 << 30, Boots::Nothing);
    let [_, more, less] = usage(&world, "local").await;
    assert_eq!((more - used, available - less), (1 << 30, 1 << 30));
    let alone = base().storage("cap").storage_size(4 << 30).build();
    assert_eq!(usage(&alone, "cap").await[0], 4 << 30);
    assert_eq!(usage(&alone, "local").await[0], total);
}

#[tokio::test]
async fn a_storage_that_is_disabled_or_not_mounted_has_no_usage() {
    let world = world(&[]).await;
    let content = || Request::get("/nodes/pve1/storage/small/content");
    world.set_mounted("small", false);
    assert_eq!(usage(&world, "small").await, [0, 0, 0]);
    let answer = call(&world, content(), ROOT).await;
    assert!(
        answer.reason.contains("is not mounted: '/mnt/pve/small'"),
        "{}",
        answer.reason
    );
    world.set_mounted("small", true);
    let disable = Request::put("/storage/small").with("disable", 1);
    assert_eq!(call(&world, disable, ROOT).await.status, 200);
    let list = call(&world, Request::get("/nodes/pve1/storage"), ROOT).await;
    let row = list
        .data()
        .as_array()
        .expect("a list")
        .iter()
        .find(|row| row["storage"] == "small");
    let row = row.expect("it is listed").clone();
    assert!(row["enabled"] == 0 && row["active"] == 0 && row.get("used_fraction").is_none());
    let answer = call(&world, content(), ROOT).await;
    assert_eq!(answer.reason, "storage 'small' is disabled");
    let all = call(&world, Request::get("/cluster/resources"), ROOT).await;
    let rows = all.data().as_array().expect("a list").clone();
    assert!(!rows.iter().any(|row| row["storage"] == "small"));
}
