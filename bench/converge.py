"""Measures the same configuration of a node with homestak and with five other tools. Needs root.

`bench/converge.py BINARY [RUNS]` prints the figures; `bench/run` writes them to RESULTS.md.

The configuration: two packages, a user with a key and a sudo rule, sshd settings, a file, the host
name, a service. Each tool has its own new node from the same image, with the packages already in its
cache. The first run and runs without changes are measured, tools in turn.
Ansible and pyinfra run on this machine and reach the node over SSH; puppet, salt and cfengine run on
the node, started over SSH. For comparison: SSH alone, a shell script with the same checks, and apt alone.
Then the agent: its memory while it watches, the CPU time of a check without differences, how soon it
detects a changed file, and ten nodes in parallel.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent / "converge"
POSTURE = """auth: {method: network}
ssh: {port: 22, permit_root_login: prohibit-password, password_authentication: "no"}
sudo: {nopasswd: true}
"""
ON_NODE = {
    "puppet": ("puppet", "puppet apply --detailed-exitcodes /srv/job.pp || [ $? = 2 ]"),
    "cfengine": ("cfengine3", "cf-agent -KIf /srv/job.cf"),
    "salt": (
        "python3-venv",
        "/opt/salt/bin/salt-call --local --file-root=/srv --retcode-passthrough state.apply job",
    ),
}


class Bench:
    def __init__(self, binary, directory, root):
        self.binary, self.directory = str(binary), Path(directory)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "HOMESTAK_LOCAL_ROOT": str(root),
            "HOMESTAK_STATE": str(self.directory / "state"),
            "HOMESTAK_SITE_CONFIG": str(self.directory / "site"),
        }
        site = self.directory / "site"
        for folder in ("manifests", "specs", "postures", "presets"):
            (site / folder).mkdir(parents=True)
        (site / "site.yaml").write_text("schema_version: 1\ndefaults: {image: debian-12, preset: small}\n")
        (site / "presets/small.yaml").write_text("cores: 2\nmemory: 1024\ndisk: 8\n")
        (site / "postures/bench.yaml").write_text(POSTURE)
        shutil.copy(HERE / "spec.yaml", site / "specs/bench.yaml")
        key = self.directory / "people"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        public = Path(f"{key}.pub").read_text().strip()
        (site / "secrets.yaml").write_text(f"ssh_keys:\n  people: {json.dumps(public)}\n")
        (site / "secrets.yaml").chmod(0o600)
        self.work = self.directory / "job"
        shutil.copytree(HERE, self.work)
        (self.work / "key.pub").write_text(public + "\n")

    def run(self, *words):
        done = subprocess.run([self.binary, *words], env=self.environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def manifest(self, name, nodes):
        text = "".join(f"  - {node}\n" for node in nodes)
        path = self.directory / f"site/manifests/{name}.yaml"
        path.write_text(f"schema_version: 2\nname: {name}\nnodes:\n{text}")

    def apply(self, name):
        self.run("manifest", "apply", "-M", name, "-H", "local", "--yes", "--skip-preflight")

    def nodes(self):
        shown = json.loads(self.run("local", "show", "--json-output"))["nodes"]
        return {node["name"]: node for node in shown}

    def ssh_words(self, node, shared=False):
        keys = self.directory / "state/ssh"
        options = [
            "BatchMode=yes", "LogLevel=ERROR", f"UserKnownHostsFile={keys}/known_hosts",
            f"HostKeyAlias={node['uuid']}", f"IdentityFile={keys}/id_ed25519",
        ]
        options += [f"ControlPath={self.directory}/{node['name']}.s", "ControlMaster=auto"] if shared else ["ControlPath=none"]
        options += ["ControlPersist=60"] if shared else []
        words = ["ssh", "-F", "/dev/null"]
        for option in options:
            words += ["-o", option]
        return [*words, f"homestak@{node['address']}"]

    def ssh(self, node, line, shared=False, stdin=None):
        return subprocess.run(
            [*self.ssh_words(node, shared), line], check=True, capture_output=True, stdin=stdin
        ).stdout

    def close_shared(self):
        """Closes connections that homestak keeps open."""
        for socket in (self.directory / "state/ssh/shared").glob("*"):
            subprocess.run(["ssh", "-F", "/dev/null", "-O", "exit", "-S", socket, "node"], capture_output=True)


def log(text):
    print(text, file=sys.stderr, flush=True)


def timed(call, *words):
    begun = time.monotonic()
    call(*words)
    return time.monotonic() - begun


def environment():
    """Returns the virtual environment of the tools written in Python."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or HERE.parent.parent / "target") / "bench-converge"
    if not (target / "bin/pyinfra").exists():
        venv.create(target, with_pip=True)
        subprocess.run([target / "bin/pip", "install", "-q", "-r", HERE / "requirements.txt", "wheel"], check=True)
    return target


def tools(bench, nodes):
    """Returns a function for each tool that runs it."""
    target = environment()
    sshd = (HERE / "sshd.conf").read_text()
    variables = json.dumps({"key": (bench.work / "key.pub").read_text().strip(), "sshd": sshd})
    keys = bench.directory / "state/ssh"

    def on_node(name):
        def call():
            bench.ssh(nodes[name], f"sudo sh -c '{ON_NODE[name][1]}'")
        return call

    def ansible():
        options = f"-o UserKnownHostsFile={keys}/known_hosts -o HostKeyAlias={nodes['ansible']['uuid']}"
        environment = {**os.environ, "ANSIBLE_PIPELINING": "True", "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3", "HOME": str(bench.directory)}
        words = [
            target / "bin/ansible-playbook", "-i", f"{nodes['ansible']['address']},", "-u", "homestak",
            "--private-key", keys / "id_ed25519", "--ssh-common-args", options, "-e", variables,
            bench.work / "playbook.yml",
        ]
        subprocess.run(words, check=True, capture_output=True, env=environment)

    def pyinfra():
        words = [
            target / "bin/pyinfra", "-y", "--user", "homestak", "--key", keys / "id_ed25519",
            "--data", "ssh_strict_host_key_checking=off", nodes["pyinfra"]["address"], "deploy.py",
        ]
        subprocess.run(words, check=True, capture_output=True, cwd=bench.work)

    return {"ansible": ansible, "pyinfra": pyinfra, **{name: on_node(name) for name in ON_NODE}}


def prepare_node(bench, name, node):
    """Downloads packages in advance, so that the download is not measured."""
    extra = ON_NODE.get(name, ("", ""))[0]
    line = "sudo sh -ec 'apt-get -q update; apt-get -q -y --download-only --no-install-recommends install tree nginx-light"
    if name == "ansible":
        extra = "python3-apt"
    if extra:
        line += f"; apt-get -q -y --no-install-recommends install {extra}"
    bench.ssh(node, line + "'")
    if name == "salt":
        # Debian has no package for it. It is downloaded here, because nodes may not reach its source.
        wheels = environment() / "wheels"
        if not wheels.exists():
            subprocess.run([environment() / "bin/pip", "wheel", "-q", "-w", wheels, "salt"], check=True)
        packed = subprocess.run(["tar", "-C", wheels, "-c", "."], check=True, capture_output=True).stdout
        with tempfile.TemporaryFile() as file:
            file.write(packed)
            file.seek(0)
            bench.ssh(node, "sudo sh -ec 'mkdir /opt/wheels; tar -C /opt/wheels -x'", stdin=file)
        bench.ssh(node, "sudo sh -ec 'python3 -m venv /opt/salt; /opt/salt/bin/pip install -q --no-index -f /opt/wheels salt'")
    if name in ON_NODE:
        for file in ("job.pp", "job.cf", "job.sls", "sshd.conf", "key.pub"):
            with open(bench.work / file) as text:
                bench.ssh(node, f"sudo tee /srv/{file}", stdin=text)


def figures(binary, runs=5):
    if os.geteuid() != 0 or shutil.which("systemd-nspawn") is None:
        return None
    root = Path(os.environ.get("HOMESTAK_LOCAL_ROOT", "/var/tmp/homestak-bench"))
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        bench = Bench(binary, directory, root)
        names = ["bare", "ansible", "pyinfra", *ON_NODE]
        bench.manifest("others", [f"{{name: {name}}}" for name in names])
        bench.manifest("own", ["{name: bench-node}"])
        try:
            return measured(bench, names, runs)
        finally:
            for name in ("own", "others", "ten"):
                if (bench.directory / f"site/manifests/{name}.yaml").exists():
                    bench.run("manifest", "destroy", "-M", name, "-H", "local", "--yes")


def measured(bench, names, runs):
    bench.apply("others")
    bench.apply("own")
    nodes = bench.nodes()
    failed = {}
    for name in [*names, "bench-node"]:
        try:
            prepare_node(bench, name, nodes[name])
        except subprocess.CalledProcessError as error:
            failed[name] = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
    bench.manifest("own", ["{name: bench-node, spec: bench}"])
    bare = nodes["bare"]
    install = "sudo apt-get -q -y --no-install-recommends install tree nginx-light"
    first = {"apt alone": timed(bench.ssh, bare, install)}
    bench.close_shared()
    first["homestak"] = timed(bench.apply, "own")
    others = {name: call for name, call in tools(bench, nodes).items() if name not in failed}
    for name in list(others):
        try:
            first[name] = timed(others[name])
        except subprocess.CalledProcessError as error:
            output = (error.stderr or error.stdout or b"").decode(errors="replace").strip()
            failed[name] = output.splitlines()[-3:]
            del others[name]
    log(f"first runs: {first}, failed: {failed}")
    own = nodes["bench-node"]

    configured = next(iter(others), None)
    if configured is None:
        raise SystemExit(f"no other tool could be measured: {failed}")

    # On a node that another tool configured: the script checks the file names of that tool.
    def shell_script(shared):
        with open(HERE / "check.sh") as text:
            bench.ssh(nodes[configured], "sudo sh", shared, stdin=text)

    def cold(*words):
        def call():
            bench.run(*words)
        return call

    no_op = {
        "ssh alone": lambda: bench.ssh(own, "true"),
        "shell script": lambda: shell_script(False),
        "homestak spec diff": cold("spec", "diff", "bench-node"),
        "homestak manifest apply": lambda: bench.apply("own"),
        **others,
        "shell script, open connection": lambda: shell_script(True),
        "homestak spec diff, open connection": cold("spec", "diff", "bench-node"),
    }
    times = {name: [] for name in no_op}
    for _ in range(runs):
        for name, call in no_op.items():
            if "open connection" not in name:
                bench.close_shared()
            else:
                call()
            times[name].append(timed(call))
    again = {name: statistics.median(taken) for name, taken in times.items()}
    log(f"again: {again}")
    watching = watched(bench, own, runs)
    log(f"watching: {watching}")
    bench.manifest("ten", [f"{{name: ten-{at}}}" for at in range(10)])
    bench.apply("ten")
    line = "sudo sh -ec 'apt-get -q update; apt-get -q -y --download-only --no-install-recommends install tree nginx-light'"
    for name, node in bench.nodes().items():
        if name.startswith("ten-"):
            bench.ssh(node, line)
    bench.manifest("ten", [f"{{name: ten-{at}, spec: bench}}" for at in range(10)])
    ten_first = timed(bench.apply, "ten")
    ten_again = statistics.median(timed(bench.apply, "ten") for _ in range(3))
    return {
        "first": first, "again": again, "failed": failed, "watching": watching,
        "ten": {"first": ten_first, "again": ten_again},
    }


def watched(bench, node, runs):
    """Measures the agent while it watches a node."""
    agent = "/usr/local/bin/homestak-agent"
    root = lambda line: bench.ssh(node, f"sudo bash -ec '{line}'", shared=True).decode().strip()
    check = f'TIMEFORMAT="%U %S"; time {agent} config check >/dev/null 2>&1'
    processor = [sum(map(float, root(f"{{ {check}; }} 2>&1").split())) for _ in range(runs)]
    root(f"systemd-run -q --unit bench-watch {agent} run --daemon")
    time.sleep(3)
    status = root("grep -E \"^(VmRSS|RssAnon)\" /proc/$(systemctl show -P MainPID bench-watch)/status")
    resident, own = (int(line.split()[1]) / 1024 for line in status.splitlines())
    delays = []
    for at in range(runs):
        begun = float(root(f"date +%s.%N; echo {at} >/etc/motd"))
        time.sleep(2)
        lines = root("journalctl -q -u bench-watch -o short-unix --no-pager | grep motd/content | tail -n 1")
        after = float(lines.split()[0]) - begun
        if after < 0:
            raise SystemExit(f"the agent did not detect a change within 2 s: {lines}")
        delays.append(after)
    root("systemctl stop bench-watch")
    return {
        "resident_mb": resident, "own_mb": own,
        "check_cpu": statistics.median(processor), "detected": statistics.median(delays),
    }


if __name__ == "__main__":
    print(json.dumps(figures(sys.argv[1], runs=int(sys.argv[2]) if len(sys.argv) > 2 else 5), indent=2))
