"""Drives a simulated Proxmox VE with proxmoxer, unmodified.

usage: proxmoxer_lifecycle.py HOST PORT CERTIFICATE PASSWORD TOKEN_NAME TOKEN_SECRET
Prints one line per step and `done` at the end; any surprise is an exception.
"""
import hashlib
import os
import sys
import tempfile
import time

from proxmoxer import AuthenticationError, ProxmoxAPI, ResourceException
from proxmoxer.tools import Tasks

host, port, certificate, password, token_name, token_secret = sys.argv[1:7]
NODE = "pve1"


def connect(**credentials):
    return ProxmoxAPI(host, port=int(port), verify_ssl=certificate, timeout=30, **credentials)


def step(text):
    print(text, flush=True)


def wait(api, upid):
    """Waits for a task with proxmoxer's own helper and returns its exit status."""
    status = Tasks.blocking_status(api, upid, timeout=60, polling_interval=0.05)
    assert status is not None, f"{upid} did not end"
    return status["exitstatus"]


def refused(call, code, *words):
    """Expects a refusal with a status code and a text."""
    try:
        call()
    except ResourceException as error:
        text = f"{error} {error.content} {error.errors}"
        assert error.status_code == code, text
        for word in words:
            assert word in text, f"`{word}` is not in: {text}"
        return
    raise AssertionError(f"{code} {words} was expected")


step("token")
api = connect(user="root@pam", token_name=token_name, token_value=token_secret)
assert api.version.get()["version"].startswith("9.")
assert [node["node"] for node in api.nodes.get()] == [NODE]

step("ticket, CSRF and a wrong password")
login = connect(user="root@pam", password=password)
login.pools.post(poolid="lifecycle")
assert [pool["poolid"] for pool in login.pools.get()] == ["lifecycle"]
try:
    connect(user="root@pam", password="wrong")
    raise AssertionError("a wrong password was accepted")
except AuthenticationError:
    pass

node = api.nodes(NODE)

step("upload")
seed = os.urandom(70_000)
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "seed.iso")
    with open(path, "wb") as file:
        file.write(seed)
    with open(path, "rb") as file:
        upid = node.storage("local").upload.post(content="iso", filename=file)
    assert wait(api, upid) == "OK"
    with open(path, "rb") as file:
        upid = node.storage("local").upload.post(**{
            "content": "iso",
            "checksum-algorithm": "sha256",
            "checksum": hashlib.sha256(seed).hexdigest(),
            "filename": file,
        })
    assert wait(api, upid) == "OK"
    os.rename(path, os.path.join(directory, "seed.txt"))
    with open(os.path.join(directory, "seed.txt"), "rb") as file:
        refused(lambda: node.storage("local").upload.post(content="iso", filename=file), 400, "wrong file extension")
volumes = {entry["volid"]: entry for entry in node.storage("local").content.get(content="iso")}
assert volumes["local:iso/seed.iso"]["size"] == 70_000

step("errors")
refused(lambda: node.qemu(999).config.get(), 500, "does not exist")
refused(lambda: node.qemu.post(vmid=5), 400, "value does not look like a valid VM ID")
refused(lambda: node.qemu.post(vmid=300, name="under_score", memory="x"), 400, "name", "memory")
refused(lambda: node.qemu.post(vmid=300, scsi0="nosuch:1"), 500, "storage 'nosuch' does not exist")
refused(lambda: api("nope").get(), 501, "not implemented")

step("virtual machine")
vmid = int(api.cluster.nextid.get())
upid = node.qemu.post(
    vmid=vmid, name="web", memory=512, cores=2, ostype="l26", scsihw="virtio-scsi-single",
    scsi0="local:0,import-from=local:import/debian.qcow2,format=qcow2", boot="order=scsi0",
    net0="virtio,bridge=vmbr0", ide2="local:iso/seed.iso,media=cdrom", agent="1",
    smbios1="uuid=7d444840-9dc0-11d1-b245-5ffdce74fad2", serial0="socket", tags="b;a",
)
assert wait(api, upid) == "OK"
refused(lambda: node.qemu.post(vmid=vmid), 500, f"VM {vmid} already exists")
vm = node.qemu(vmid)
config = vm.config.get()
assert config["smbios1"] == "uuid=7d444840-9dc0-11d1-b245-5ffdce74fad2"
assert config["memory"] == "512" and config["cores"] == 2
refused(lambda: vm.config.put(description="late", digest="0" * 40), 500, "checksum mismatch")
vm.config.put(description="in time", digest=config["digest"])
assert wait(api, vm.resize.put(disk="scsi0", size="+1G")) == "OK"
assert wait(api, vm.status.start.post()) == "OK"
assert wait(api, vm.status.start.post()) == f"VM {vmid} already running"
assert vm.status.current.get()["status"] == "running"
refused(vm.delete, 500, "is running - destroy failed")
for _ in range(200):
    try:
        interfaces = vm.agent("network-get-interfaces").get()["result"]
        break
    except ResourceException as error:
        assert "QEMU guest agent is not running" in str(error)
        time.sleep(0.05)
assert {entry["name"] for entry in interfaces} == {"lo", "eth0"}

step("pending changes")
vm.config.put(memory=1024)
waiting = {entry["key"]: entry for entry in vm.pending.get()}
assert waiting["memory"]["value"] == "512" and waiting["memory"]["pending"] == "1024"
vm.config.put(ide2="none,media=cdrom", boot="order=scsi0")
assert wait(api, node.storage("local").content("local:iso/seed.iso").delete()) == "OK"
assert wait(api, vm.status.shutdown.post(timeout=30)) == "OK"
assert vm.status.current.get()["status"] == "stopped"
assert vm.config.get()["memory"] == "1024"

step("snapshot, template, clone")
assert wait(api, vm.snapshot.post(snapname="before")) == "OK"
assert {entry["name"] for entry in vm.snapshot.get()} == {"before", "current"}
assert wait(api, vm.snapshot("before").rollback.post()) == "OK"
assert wait(api, vm.snapshot("before").delete()) == "OK"
assert wait(api, vm.template.post()) == "OK"
assert wait(api, vm.clone.post(newid=vmid + 1, name="linked")) == "OK"
assert node.qemu(vmid + 1).config.get()["smbios1"] != config["smbios1"]
assert "still in use" in wait(api, vm.delete())
assert wait(api, node.qemu(vmid + 1).delete(purge=1)) == "OK"
assert wait(api, vm.delete(**{"purge": 1, "destroy-unreferenced-disks": 1})) == "OK"
refused(lambda: vm.status.current.get(), 500, "does not exist")

step("container")
upid = node.lxc.post(
    vmid=200, ostemplate="local:vztmpl/debian-13.tar.zst", rootfs="local:0", hostname="ct", memory=256,
    unprivileged=1, features="nesting=1", net0="name=eth0,bridge=vmbr0,ip=10.77.0.9/24",
    **{"ssh-public-keys": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 ops@lab"},
)
assert wait(api, upid) == "OK"
container = node.lxc(200)
refused(lambda: container.status.stop.post(), 500, "CT 200 not running")
assert wait(api, container.status.start.post()) == "OK"
refused(lambda: container.status.start.post(), 500, "CT 200 already running")
container.config.put(memory=300, hostname="renamed")
assert container.config.get()["hostname"] == "renamed"
time.sleep(0.2)
addresses = {entry["name"]: entry for entry in container.interfaces.get()}
assert addresses["eth0"]["inet"] == "10.77.0.9/24"
assert wait(api, container.status.shutdown.post(timeout=20)) == "OK"
assert wait(api, container.delete(purge=1)) == "OK"

step("users, roles, tokens and what they may not do")
api.access.users.post(userid="ops@pve")
api.access.roles.post(roleid="Watcher", privs="VM.Audit")
secret = api.access.users("ops@pve").token("watch").post(privsep=1)["value"]
watcher = connect(user="ops@pve", token_name="watch", token_value=secret)
assert wait(api, node.qemu.post(vmid=400, name="seen")) == "OK"
refused(lambda: watcher.nodes(NODE).qemu(400).config.get(), 403, "Permission check failed (/vms/400, VM.Audit)")
api.access.acl.put(path="/vms", roles="Watcher", users="ops@pve", tokens="ops@pve!watch")
assert watcher.nodes(NODE).qemu(400).config.get()["name"] == "seen"
refused(lambda: watcher.nodes(NODE).qemu(400).delete(), 403)
refused(lambda: watcher.nodes(NODE).qemu.post(vmid=401), 403, "Permission check failed")
api.access.users("ops@pve").delete()
assert wait(api, node.qemu(400).delete()) == "OK"

step("done")
