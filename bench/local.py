"""Measures nodes on this machine, compared with plain systemd-nspawn on the same tree. Needs root.

`figures(binary, runs)` returns a dictionary; `bench/run` writes it to RESULTS.md.

Plain: a script: an overlay over the same tree with the identity written into it, a veth pair on a
bridge, `systemd-nspawn --boot`, and SSH logins until one works.
Ours: `homestak manifest apply` until it returns, then the same SSH login.
"""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

NETNS = "hsbench"
BRIDGE = "hsbench0"
GATEWAY = "10.200.0.1"


def sh(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, **more)


def ssh(key, user, address, *options):
    quiet = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=2", "-o", "LogLevel=ERROR", *options]
    command = ["ssh", "-F", "/dev/null", "-i", key, *quiet, f"{user}@{address}", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


class Plain:
    """Nodes created by a script."""

    def __init__(self, tree, directory):
        self.tree, self.directory = Path(tree), Path(directory)
        self.key = self.directory / "key"
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key)
        sh("ip", "netns", "add", NETNS)
        sh("ip", "-n", NETNS, "link", "add", BRIDGE, "type", "bridge")
        sh("ip", "-n", NETNS, "link", "set", BRIDGE, "up")
        sh("ip", "link", "add", "hsbench-up", "type", "veth", "peer", "name", "up0", "netns", NETNS)
        sh("ip", "-n", NETNS, "link", "set", "up0", "master", BRIDGE, "up")
        sh("ip", "address", "add", f"{GATEWAY}/24", "dev", "hsbench-up")
        sh("ip", "link", "set", "hsbench-up", "up")
        self.started = []

    def close(self):
        subprocess.run(["ip", "link", "delete", "hsbench-up"])
        subprocess.run(["ip", "netns", "delete", NETNS])

    def start(self, at):
        name = f"hsbench-{at}"
        directory = self.directory / name
        for part in ("upper", "work", "root"):
            (directory / part).mkdir(parents=True)
        sh("ip", "netns", "add", name)
        link = ["link", "add", f"b{at}", "type", "veth", "peer", "name", "eth0", "netns", name]
        sh("ip", "-n", NETNS, *link)
        sh("ip", "-n", NETNS, "link", "set", f"b{at}", "master", BRIDGE, "up")
        sh("ip", "-n", name, "link", "set", "lo", "up")
        options = f"lowerdir={self.tree},upperdir={directory}/upper,workdir={directory}/work"
        sh("mount", "-t", "overlay", "overlay", "-o", options, directory / "root")
        root = directory / "root"
        (root / "etc/hostname").write_text(name)
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        (root / "etc/cloud/cloud-init.disabled").write_text("")
        network = f"[Match]\nName=eth0\n[Network]\nAddress={self.address(at)}/24\nGateway={GATEWAY}\n"
        (root / "etc/systemd/network/10.network").write_text(network)
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / "etc/ssh/ssh_host_ed25519_key")
        (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
        shutil.copy(f"{self.key}.pub", root / "root/.ssh/authorized_keys")
        nspawn = ["systemd-nspawn", "--quiet", "--keep-unit", "--register=no", "--boot"]
        nspawn += ["--console=read-only", "--capability=CAP_NET_ADMIN", "--resolv-conf=off"]
        command = ["nsenter", f"--net=/run/netns/{name}", *nspawn, "-M", name, "-D", str(root)]
        with open(directory / "console", "w") as log:
            # Each node has its own control groups; otherwise several nspawn processes conflict.
            start = "for g in $GROUPS_OF; do mkdir -p $g && echo $$ >$g/cgroup.procs; done; exec \"$@\""
            groups = " ".join(f"{top}/{name}" for top in hierarchies())
            process = subprocess.Popen(
                ["setsid", "sh", "-c", start, "sh", *command],
                env={**os.environ, "GROUPS_OF": groups},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
        self.started.append((at, process))

    @staticmethod
    def address(at):
        return f"10.200.0.{10 + at}"

    def wait(self, at):
        options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if ssh(self.key, "root", self.address(at), *options):
                return
            time.sleep(0.02)
        raise SystemExit("a plain node did not start within 120 s")

    def stop(self):
        # `setsid`, the shell and `nsenter` have exec'd nspawn, which shuts the node down.
        for _, process in self.started:
            process.terminate()
        for at, process in self.started:
            process.wait(timeout=60)
            name = f"hsbench-{at}"
            sh("umount", self.directory / name / "root")
            sh("ip", "netns", "delete", name)
            shutil.rmtree(self.directory / name)
            for top in hierarchies():
                subprocess.run(["find", f"{top}/{name}", "-depth", "-type", "d", "-delete"], stderr=subprocess.DEVNULL)
        self.started = []
        # The next node with this IP address has another MAC address.
        sh("ip", "neighbour", "flush", "dev", "hsbench-up")


def hierarchies():
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    found = []
    for line in lines:
        before, after = line.split(" - ", 1)
        kind, _, options = after.split(" ")[:3]
        wanted = {"memory", "pids", "cpu", "name=systemd"}
        if kind == "cgroup2" or (kind == "cgroup" and wanted & set(options.split(","))):
            found.append(before.split(" ")[4])
    return found


class Ours:
    """Nodes created by homestak."""

    def __init__(self, binary, root, directory):
        self.binary, self.directory = binary, Path(directory)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "HOMESTAK_LOCAL_ROOT": str(root),
            "HOMESTAK_STATE": str(self.directory / "state"),
        }

    def run(self, *words):
        done = subprocess.run(
            [self.binary, *words], env=self.environment, cwd=self.directory, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: {done.stderr}")
        return done.stdout

    def manifest(self, count):
        path = self.directory / f"bench-{count}.yaml"
        nodes = "".join(
            f"  - {{name: n{at}, image: debian-12, preset: vm-small}}\n" for at in range(count)
        )
        path.write_text(f"schema_version: 2\nname: bench\nnodes:\n{nodes}")
        return ["--manifest-file", str(path), "-H", "local", "--yes"]

    def apply(self, count):
        self.run("manifest", "apply", *self.manifest(count), "--skip-preflight")

    def logged_in(self):
        shown = json.loads(self.run("local", "show", "--json-output"))
        keys = self.directory / "state/ssh"
        for node in shown["nodes"]:
            known = ["-o", f"UserKnownHostsFile={keys}/known_hosts", "-o", f"HostKeyAlias={node['uuid']}"]
            if not ssh(keys / "id_ed25519", "homestak", node["address"], *known):
                raise SystemExit("SSH login failed on a node that homestak created")

    def memory(self):
        """Returns the mean memory of a node in MiB, from its control group."""
        for top in hierarchies():
            for file in ("memory.usage_in_bytes", "memory.current"):
                found = list(Path(top).glob(f"homestak-*/*/{file}"))
                if found:
                    return statistics.mean(int(path.read_text()) for path in found) / 2**20
        return None

    def destroy(self, count):
        self.run("manifest", "destroy", *self.manifest(count))


def machines(ours, runs):
    """Measures virtual machines: restored from a saved one, compared with a boot from the seed."""
    if shutil.which("qemu-system-x86_64") is None:
        return None
    ours.environment["HOMESTAK_VM_ENGINE"] = "qemu"
    times = {}
    # The first run also saves the machine.
    for name in ("saving", "restored", "cold"):
        ours.environment["HOMESTAK_FIRST_BOOT"] = "cloud-init" if name == "cold" else "direct"
        taken = []
        for _ in range(1 if name == "saving" else runs):
            taken.append(timed(ours.apply, 1))
            ours.logged_in()
            ours.destroy(1)
        times[name] = statistics.median(taken)
    return times


def timed(call, *words):
    begun = time.monotonic()
    call(*words)
    return time.monotonic() - begun


def figures(binary, runs=5):
    if os.geteuid() != 0 or shutil.which("systemd-nspawn") is None:
        return None
    root = Path(os.environ.get("HOMESTAK_LOCAL_ROOT", "/var/tmp/homestak-bench"))
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        ours_directory = Path(directory) / "ours"
        ours_directory.mkdir()
        ours = Ours(binary, root, ours_directory)
        ours.run("image", "build", "debian-12")
        images = json.loads(ours.run("image", "list", "--json-output"))["images"]
        tree = next(image["path"] for image in images if image["name"] == "debian-12" and image["current"])
        plain = Plain(Path(tree) / "root", directory)
        result = {}
        try:
            for count in (1, 10):
                times = {"plain": [], "ours": [], "destroy": []}
                memory = None
                for _ in range(runs):
                    begun = time.monotonic()
                    for at in range(count):
                        plain.start(at)
                    for at in range(count):
                        plain.wait(at)
                    times["plain"].append(time.monotonic() - begun)
                    plain.stop()
                    begun = time.monotonic()
                    ours.apply(count)
                    ours.logged_in()
                    times["ours"].append(time.monotonic() - begun)
                    memory = ours.memory()
                    times["destroy"].append(timed(ours.destroy, count))
                result[count] = {name: statistics.median(values) for name, values in times.items()}
                result[count]["memory"] = memory
        finally:
            plain.stop()
            plain.close()
        result["machines"] = machines(ours, max(1, runs // 2))
        return result


if __name__ == "__main__":
    import sys

    print(json.dumps(figures(*sys.argv[1:2], runs=int(sys.argv[2]) if len(sys.argv) > 2 else 5), indent=2))
