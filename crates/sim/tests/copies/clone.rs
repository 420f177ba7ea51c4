//! Clones and templates.

use super::*;

#[tokio::test]
async fn a_clone_of_a_vm_keeps_tags_and_notes_and_gets_a_new_identity() {
    let world = world();
    make_vm(&world).await;
    let source = config(&world, "pve1/qemu/411").await;
    let snapshot = Request::post("/nodes/pve1/qemu/411/snapshot")
        .with("snapname", "s1")
        .with("description", "before");
    assert_eq!(outcome(&world, snapshot).await, "task OK");
    let identity: &[(&str, Expected)] = &[
        ("smbios1.uuid", New),
        ("vmgenid", New),
        ("net0.virtio", New),
        ("net1.virtio", New),
    ];
    let cases: &[(Request, &[(&str, Expected)])] = &[
        (
            clone("qemu", 411, 412).with("full", 1),
            &[
                ("description", Kept),
                ("name", Is("Copy-of-VM-src-vm")),
                ("scsi1.volume", Is("local:412/vm-412-disk-0.qcow2")),
            ],
        ),
        (
            clone("qemu", 411, 413)
                .with("full", 1)
                .with("name", "copy-vm")
                .with("description", "my own notes")
                .with("storage", "small")
                .with("format", "raw"),
            &[
                ("description", Is("my own notes")),
                ("name", Is("copy-vm")),
                ("scsi1.volume", Is("small:413/vm-413-disk-0.raw")),
            ],
        ),
        (
            clone("qemu", 411, 414)
                .with("full", 1)
                .with("snapname", "s1"),
            &[
                ("description", Is("before")),
                ("name", Is("Copy-of-VM-src-vm")),
                ("scsi1.volume", Is("local:414/vm-414-disk-0.qcow2")),
            ],
        ),
    ];
    for (request, table) in cases {
        let target = request.parameters["newid"].clone();
        assert_eq!(outcome(&world, request.clone()).await, "task OK");
        let copy = config(&world, &format!("pve1/qemu/{target}")).await;
        check(&target, &source, &copy, VM_KEPT);
        check(&target, &source, &copy, identity);
        check(&target, &source, &copy, table);
    }
}

#[tokio::test]
async fn a_clone_of_a_container_keeps_its_host_name_tags_and_notes() {
    let world = world();
    make_ct(&world).await;
    let source = config(&world, "pve1/lxc/421").await;
    assert_eq!(
        part(&source, "description").as_deref(),
        Some("marker: uuid 2222\nsecond line\n"),
        "notes of a container end in a newline"
    );
    let cases: &[(Request, &[(&str, Expected)])] = &[
        (
            clone("lxc", 421, 422).with("full", 1),
            &[
                ("description", Kept),
                ("hostname", Is("src-ct")),
                ("rootfs.volume", Is("local:422/vm-422-disk-0.raw")),
            ],
        ),
        (
            clone("lxc", 421, 423)
                .with("full", 1)
                .with("hostname", "copy-ct")
                .with("description", "own notes"),
            &[
                ("description", Is("own notes\n")),
                ("hostname", Is("copy-ct")),
                ("rootfs.volume", Is("local:423/vm-423-disk-0.raw")),
            ],
        ),
    ];
    for (request, table) in cases {
        let target = request.parameters["newid"].clone();
        assert_eq!(outcome(&world, request.clone()).await, "task OK");
        let copy = config(&world, &format!("pve1/lxc/{target}")).await;
        check(&target, &source, &copy, CT_KEPT);
        check(&target, &source, &copy, &[("net0.hwaddr", New)]);
        check(&target, &source, &copy, table);
    }
}

#[tokio::test]
async fn linked_clones_need_a_template() {
    let world = world();
    make_vm(&world).await;
    make_ct(&world).await;
    let refused = |kind: &str, from: u32| clone(kind, from, 499);
    assert_eq!(
        outcome(&world, refused("qemu", 411).with("full", 0)).await,
        "500 Linked clone feature is not supported for 'local:411/vm-411-disk-0.qcow2' (scsi1)"
    );
    assert_eq!(
        outcome(&world, refused("lxc", 421).with("full", 0)).await,
        "500 Linked clone feature for 'local:421/vm-421-disk-0.raw' is not available"
    );
    assert_eq!(
        outcome(&world, refused("qemu", 411).with("snapname", "none")).await,
        "500 snapshot 'none' does not exist"
    );
    let template = |path: &str| Request::post(&format!("/nodes/pve1/{path}/template"));
    assert_eq!(outcome(&world, template("qemu/411")).await, "task OK");
    let source = config(&world, "pve1/qemu/411").await;
    let base = "local:411/base-411-disk-0.qcow2";
    check(
        "template",
        &source,
        &source,
        &[("scsi1.volume", Is(base)), ("template", Is("1"))],
    );
    assert_eq!(
        outcome(&world, template("qemu/411")).await,
        "500 you can't convert a template to a template"
    );
    // The answer for a container has no UPID, and the task is still running.
    let answer = call(&world, template("lxc/421")).await;
    assert!(answer.is_ok() && answer.data().is_null());
    let before = config(&world, "pve1/lxc/421").await;
    assert_eq!(part(&before, "template"), None);
    advance(&world, 10).await;
    let after = config(&world, "pve1/lxc/421").await;
    assert_eq!(part(&after, "template").as_deref(), Some("1"));
    assert_eq!(
        outcome(&world, refused("lxc", 421)).await,
        "500 Linked clone feature for 'local:421/base-421-disk-0.raw' is not available"
    );
    for name in ["storage", "format"] {
        let value = if name == "storage" { "small" } else { "raw" };
        assert_eq!(
            outcome(&world, refused("qemu", 411).with(name, value)).await,
            format!("500 parameter '{name}' not allowed for linked clones")
        );
    }
    assert_eq!(outcome(&world, clone("qemu", 411, 415)).await, "task OK");
    let mut linked = config(&world, "pve1/qemu/415").await;
    assert_eq!(linked.insert("template".to_owned(), 1.into()), None);
    check("linked", &source, &linked, VM_KEPT);
    check(
        "linked",
        &source,
        &linked,
        &[
            (
                "scsi1.volume",
                Is("local:411/base-411-disk-0.qcow2/415/vm-415-disk-0.qcow2"),
            ),
            ("smbios1.uuid", New),
            ("description", Kept),
        ],
    );
    assert_eq!(
        outcome(&world, Request::post("/nodes/pve1/qemu/411/status/start")).await,
        "task you can't start a vm if it's a template"
    );
    let destroy = || Request::delete("/nodes/pve1/qemu/411");
    assert_eq!(
        outcome(&world, destroy()).await,
        "500 can't remove VM 411 - protection mode enabled"
    );
    world.change_guest(411, &[("protection", "0")]).unwrap();
    assert_eq!(
        outcome(&world, destroy()).await,
        format!("task base volume '{base}' is still in use by linked cloned")
    );
    config(&world, "pve1/qemu/411").await;
}
