"""Measures the server: compared with nginx, with 10,000 agents, and with real nodes that pull.

`bench/server.py BINARY EXAMPLE [SECONDS [AGENTS]]` prints the figures; `bench/run` writes them to RESULTS.md.
With AGENTS, so many connect, a tenth of them stay, and everything is shorter: to try it.
EXAMPLE is the program of `crates/server/examples/agents/`.

Load: `homestak server` and nginx serve the same spec with the same headers over TLS 1.3, with
certificates of the same issuer, on core 0; the clients run on core 1. wrk cannot have a certificate,
so it has a provisioning token, which nginx ignores; on new connections it resumes sessions. EXAMPLE
is the client with a node's certificate, and for full handshakes. nginx logs every request, homestak
20 uses of tokens in a minute. Servers are measured in turn, by requests per second and by CPU time per request.
Agents: each has its own certificate and address, asks for its spec and the agent and reports, on two
connections with a full handshake each, all within a minute; then it requests jobs on the first one, as
homestak-agent does, or closes both, or leaves both open. The server's memory is its maximum (VmHWM).
Steady load: 1,000 such agents that do this every minute for several minutes; CPU time and memory (VmRSS)
of the server are measured after the first minute, in which they connect.
Nodes: `homestak manifest apply` with a node that pulls, by phase, and with ten nodes that pull,
compared with ten that the driver configures over SSH. Needs root.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import converge

PROGRAMS = {"nginx": "nginx-light", "wrk": "wrk", "taskset": "util-linux", "openssl": "openssl"}
# Connections that wrk keeps busy.
CONNECTIONS = 32
ROUNDS = 5
AGENTS = 10_000
WITHIN = 60
# Agents that stay: how many, how often each has a pass, in seconds, and for how many passes it is measured.
STAYING = 1_000
EVERY = 60
PASSES = 5
# Tests on real nodes hold it too: servers share a port.
NODES_LOCK = "/run/homestak-tests.lock"

NGINX = """daemon off;
user root;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/nginx-error.log;
events {{ worker_connections 1024; }}
http {{
    access_log {directory}/nginx-access.log;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    tcp_nodelay on;
    open_file_cache max=10;
    keepalive_requests 1000000000;
    default_type application/json;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_protocols TLSv1.3;
        ssl_certificate {site}/other.pem;
        ssl_certificate_key {site}/other.key;
        ssl_verify_client optional_no_ca;
        root {directory}/www;
        add_header Cache-Control "private, no-cache";
        add_header Homestak-Statement "{statement}";
    }}
}}
"""

WRK = """
wrk.headers["Authorization"] = "Bearer %(token)s"
%(more)s
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\\n{"requests": %%d, "seconds": %%f, "p50": %%f, "p99": %%f, "errors": %%d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6,
    latency:percentile(99) / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""

SPEC = """schema_version: 1
access:
  posture: bench
  users:
    - {name: deploy, sudo: true, ssh_keys: [people]}
config:
  timezone: Europe/Berlin
  files:
    - {path: /etc/motd, content: "measured\\n"}
"""


def missing():
    """Returns the Debian packages that are needed and not installed."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    return sorted(package for program, package in PROGRAMS.items() if not shutil.which(program, path=path))


def log(text):
    print(text, file=sys.stderr, flush=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fetch(url, headers=None):
    """Returns status and headers of an answer; any certificate is accepted."""
    request = urllib.request.Request(url, headers=headers or {})
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, context=context, timeout=5) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, b""


class Process:
    """A server that is started, and stopped at the end of the block."""

    def __init__(self, name, command, url, directory, core=None):
        self.name, self.url, self.log = name, url, directory / f"{name}.out"
        words = [] if core is None else ["taskset", "-c", str(core)]
        # As in a login shell; a server that needs more open files sees to it.
        words = ["prlimit", "--nofile=1024:", *words]
        with open(self.log, "w") as out:
            self.child = subprocess.Popen([*words, *map(str, command)], stdout=out, stderr=out)

    def __enter__(self):
        end = time.monotonic() + 60
        while time.monotonic() < end and self.child.poll() is None:
            with contextlib.suppress(OSError):
                fetch(self.url)
                return self
            time.sleep(0.05)
        self.__exit__()
        raise SystemExit(f"{self.name} does not answer:\n{self.log.read_text()[-2000:]}")

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(timeout=20)
            return
        self.child.kill()
        self.child.wait()

    def processes(self):
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text()
        return [self.child.pid, *map(int, children.split())]

    def cpu(self):
        """Returns the CPU seconds that it has used, with its workers."""
        ticks = 0
        for process in self.processes():
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def most_memory(self):
        """Returns the maximum resident set in MB."""
        return self.memory("VmHWM")

    def memory(self, name="VmRSS"):
        """Returns the resident set in MB."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+)", status, re.M)[1]) * 1024 / 1e6


def ours(binary, site, directory, port, core=None):
    command = [
        binary, "--log-file", directory / "server.log", "server", "start", "--foreground",
        "--bind", "127.0.0.1", "--port", port,
        "--published", site / "published", "--state", directory / "state",
    ]
    return Process("homestak", command, f"https://127.0.0.1:{port}/health", directory, core)


def make_site(example, n_nodes, memory, directory):
    """Writes a site with enrolled nodes: to memory, because it is thousands of files that are synced.
    What the server writes is moved to the disk."""
    site = Path(memory) / f"site-{n_nodes}"
    body = Path(memory) / "body"
    body.write_text(json.dumps(RENDERED, indent=2) + "\n")
    made = subprocess.run([example, "site", site, str(n_nodes), body], check=True, capture_output=True, text=True)
    shutil.copytree(site / "state", directory / "state", dirs_exist_ok=True)
    return site, json.loads(made.stdout)


# A spec as it is served, of a usual size.
RENDERED = {
    "schema_version": 1,
    "identity": {"hostname": "first", "domain": "lab.example"},
    "access": {
        "posture": {
            "auth": {"method": "network"},
            "ssh": {"port": 22, "permit_root_login": "prohibit-password", "password_authentication": "no"},
            "sudo": {"nopasswd": True},
        },
        "users": [
            {"name": name, "sudo": True, "ssh_keys": [f"ssh-ed25519 {name[0] * 68} {name}@lab.example"]}
            for name in ("alice", "bob", "carol")
        ],
    },
    "platform": {
        "packages": ["curl", "git", "htop", "nftables", "rsync", "tmux", "unattended-upgrades", "vim"],
        "services": {"enable": ["nftables", "unattended-upgrades"], "disable": ["rpcbind"]},
    },
    "config": {
        "timezone": "Europe/Berlin",
        "files": [{"path": "/etc/motd", "content": "Managed. Local changes are corrected.\n"}],
        "sysctl": {"net.ipv4.ip_forward": 0, "vm.swappiness": 10},
    },
    "run": {"trigger": "schedule", "interval": "5m"},
}


def load(binary, example, seconds, memory, directory):
    """Measures homestak and nginx in turn."""
    site, tokens = make_site(example, 1, memory, directory)
    own_port, other_port = free_port(), free_port()
    token = {"Authorization": f"Bearer {tokens['version_2']}"}
    (directory / "www/spec").mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(ours(binary, site, directory, own_port, core=0))
        urls = {"homestak": f"https://127.0.0.1:{own_port}{tokens['path']}"}
        status, headers, body = fetch(urls["homestak"], token)
        if status != 200:
            raise SystemExit(f"the spec is not served: {status}\n{own.log.read_text()}")
        served = directory / "www" / tokens["path"].lstrip("/")
        served.write_bytes(body)
        # The same file, and so the same entity tag.
        served.with_name("node-1").hardlink_to(served)
        config = directory / "nginx.conf"
        values = {"directory": directory, "site": site, "port": other_port}
        config.write_text(NGINX.format(**values, statement=headers["Homestak-Statement"]))
        urls["nginx"] = f"https://127.0.0.1:{other_port}{tokens['path']}"
        nginx = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        command = [nginx, "-c", config, "-e", directory / "nginx-error.log", "-p", directory]
        other = stack.enter_context(Process("nginx", command, urls["nginx"], directory, core=0))
        processes = {"homestak": own, "nginx": other}
        scripts = {}
        for name, url in urls.items():
            _, headers, found = fetch(url, token)
            if found != body:
                raise SystemExit(f"{name} serves something else")
            condition = {"If-None-Match": headers["ETag"]}
            if fetch(url, token | condition)[0] != 304:
                raise SystemExit(f"{name} does not answer 304")
            for answer, more in (("200", {}), ("304", condition)):
                for connection in ("certificate", "full"):
                    request = {"headers": more, "status": int(answer), "keep": connection == "certificate"}
                    if connection == "certificate":
                        request["credential"] = str(site / "agents.jsonl")
                    else:
                        request["headers"] = token | more
                    script = directory / f"{name}-{answer}-{connection}.json"
                    script.write_text(json.dumps(request))
                    scripts[connection, answer, name] = script
                for connection in ("keep-alive", "close"):
                    lines = more | {"Connection": connection}
                    lines = "\n".join(f"wrk.headers[{json.dumps(key)}] = {json.dumps(value)}" for key, value in lines.items())
                    script = directory / f"{name}-{answer}-{connection}.lua"
                    script.write_text(WRK % {"token": tokens["version_2"], "more": lines})
                    scripts[connection, answer, name] = script
        pins = {"homestak": pin(own_port), "nginx": pin(other_port)}
        taken = {case: [] for case in scripts}
        # The first round warms up.
        for nth in range(ROUNDS + 1):
            for case, script in scripts.items():
                connection, _, name = case
                process = processes[name]
                lasting = seconds if nth else 1
                before = process.cpu()
                if connection in ("certificate", "full"):
                    url = urls[name].replace("/first", "/node-1") if connection == "certificate" else urls[name]
                    words = [example, "repeat", url, pins[name], script, str(lasting)]
                else:
                    words = ["wrk", "-t", "1", "-c", str(CONNECTIONS), "-d", f"{lasting}s", "-s", script, urls[name]]
                found = client(words)
                found["cpu"] = (process.cpu() - before) / max(1, found["requests"])
                if nth:
                    taken[case].append(found)
        rows = {}
        for connection in ("certificate", "keep-alive", "close", "full"):
            for answer in ("200", "304"):
                row = rows[f"{connection} {answer}"] = {}
                for name in urls:
                    all_ = taken[connection, answer, name]
                    middle = lambda key: statistics.median(one[key] for one in all_)
                    row[name] = {
                        "per_second": statistics.median(one["requests"] / one["seconds"] for one in all_),
                        "p99": middle("p99"), "cpu": middle("cpu"),
                        "errors": sum(one["errors"] for one in all_),
                    }
        return {"body_bytes": len(body), "rows": rows}


def client(words):
    """Runs a client on core 1, and returns the JSON object that it prints last."""
    found = subprocess.run(["taskset", "-c", "1", *words], check=True, capture_output=True, text=True).stdout
    return json.loads(found[found.index("{"):])


def pin(port):
    """Returns the SHA-256 of the certificate of a server on this machine."""
    shown = ssl.get_server_certificate(("127.0.0.1", port))
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(shown)).hexdigest()


def agents(binary, example, n_agents, within, memory, directory):
    """Measures many agents: those that request jobs, and those that close their connections or keep them open."""
    result = {}
    for mode in ("poll", "close", "keep"):
        own = directory / mode
        own.mkdir()
        site, _ = make_site(example, n_agents, memory, own)
        port = free_port()
        with ours(binary, site, own, port) as process:
            idle, before = process.most_memory(), process.cpu()
            words = [example, "run", site, f"https://127.0.0.1:{port}", str(within), mode]
            found = subprocess.run(words, capture_output=True, text=True)
            if found.returncode != 0:
                raise SystemExit(f"agents: {found.stderr}")
            result[mode] = json.loads(found.stdout) | {
                "memory_mb": process.most_memory(), "idle_mb": idle, "cpu": process.cpu() - before,
            }
        shutil.rmtree(site)
        log(f"agents, {mode}: {result[mode]}")
    return result


def staying(binary, example, n_agents, every, passes, memory, directory):
    """Measures agents that do everything that `homestak-agent` does, at an interval."""
    site, _ = make_site(example, n_agents, memory, directory)
    port = free_port()
    with ours(binary, site, directory, port) as process:
        idle = process.memory()
        words = [example, "stay", site, f"https://127.0.0.1:{port}", str((passes + 1) * every), str(every)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            time.sleep(every)
            begun, before, most = time.monotonic(), process.cpu(), 0
            # Not to the end, when they leave.
            while time.monotonic() < begun + passes * every - 1:
                time.sleep(1)
                most = max(most, process.memory())
            cpu = (process.cpu() - before) / (time.monotonic() - begun)
            out, error = child.communicate()
        if child.returncode != 0:
            raise SystemExit(f"agents: {error}")
        found = json.loads(out) | {
            "every": every, "minutes": passes * every / 60, "cpu_per_minute": cpu * 60,
            "memory_mb": most, "idle_mb": idle, "most_mb": process.most_memory(),
        }
    shutil.rmtree(site)
    log(f"staying agents: {found}")
    return found


@contextlib.contextmanager
def nodes_lock():
    with open(NODES_LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Reports(threading.Thread):
    """Notes when the last report of a node arrives in the server's registry."""

    def __init__(self, state):
        super().__init__(daemon=True)
        self.state, self.ended, self.arrived = state, threading.Event(), []

    def run(self):
        last, connection = 0, None
        while not self.ended.wait(0.005):
            with contextlib.suppress(sqlite3.Error, StopIteration):
                if connection is None:
                    path = next(self.state.glob("server/*/state/server.db"))
                    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
                for last, body in connection.execute("SELECT id, body FROM report WHERE id > ? ORDER BY id", [last]):
                    self.arrived.append((time.time(), json.loads(body)["state"]))

    def of(self, state, since):
        return next(at for at, found in self.arrived if found == state and at >= since)


def pull_phases(bench, reports):
    """Creates a node that pulls, and returns how long each phase took."""
    begun = time.time()
    bench.run("manifest", "apply", "-M", "one", "-H", "local", "--yes", "--skip-preflight", "--mode", "pull")
    ended = time.time()
    node = bench.nodes()["one"]
    root = lambda line: bench.ssh(node, f"sudo sh -c '{line}'", shared=True).decode()
    shift = time.time() - time.monotonic()
    shown = root(
        "systemctl show -p UserspaceTimestampMonotonic;"
        " systemctl show -p ExecMainStartTimestampMonotonic homestak-pull"
    )
    booted, started = (shift + int(line.split("=")[1]) / 1e6 for line in shown.split())
    journal = root("journalctl -q -u homestak-pull -o short-unix --no-pager")
    at = lambda words: float(next(line for line in journal.splitlines() if words in line).split()[0])
    marker = float(root("stat -c %.Y /usr/local/etc/homestak/state/config-complete.json"))
    times = [
        ("created", booted), ("boot", started), ("agent obtained", at("installed the agent")),
        ("enrolled", at("enrolled")), ("fetched", at("spec accepted")), ("converged", marker),
        ("reported", reports.of("converged", begun)), ("apply returns", ended),
    ]
    phases, before = {}, begun
    for name, time_ in times:
        phases[name], before = time_ - before, time_
    bench.close_shared()
    bench.run("manifest", "destroy", "-M", "one", "-H", "local", "--yes")
    return phases


def real_nodes(binary, directory, runs):
    """Measures nodes that pull, and those that the driver configures."""
    root = Path(os.environ.get("HOMESTAK_LOCAL_ROOT", "/var/tmp/homestak-bench"))
    root.mkdir(parents=True, exist_ok=True)
    (directory / "nodes").mkdir()
    bench = converge.Bench(binary, directory / "nodes", root)
    (bench.directory / "site/specs/bench.yaml").write_text(SPEC)
    bench.manifest("one", ["{name: one, spec: bench}"])
    bench.manifest("ten", [f"{{name: ten-{at}, spec: bench}}" for at in range(10)])
    bench.run("image", "build", "debian-12")
    reports = Reports(bench.directory / "state")
    apply = lambda mode: bench.run("manifest", "apply", "-M", "ten", "-H", "local", "--yes", "--skip-preflight", "--mode", mode)
    try:
        bench.run("server", "start")
        reports.start()
        # The first node also unpacks the image, and does not count.
        all_ = [pull_phases(bench, reports) for _ in range(runs + 1)][1:]
        phases = {name: statistics.median(one[name] for one in all_) for name in all_[0]}
        log(f"phases: {phases}")
        ten = {"pull": [], "push": []}
        for _ in range(runs):
            for mode, taken in ten.items():
                taken.append(converge.timed(apply, mode))
                bench.close_shared()
                bench.run("manifest", "destroy", "-M", "ten", "-H", "local", "--yes")
        log(f"ten: {ten}")
        return {"phases": phases, "ten": {mode: statistics.median(taken) for mode, taken in ten.items()}}
    finally:
        reports.ended.set()
        for name in ("one", "ten"):
            subprocess.run(
                [binary, "manifest", "destroy", "-M", name, "-H", "local", "--yes"],
                env=bench.environment, capture_output=True,
            )
        bench.run("server", "stop")


def figures(
    binary, example, seconds=4, n_agents=AGENTS, within=WITHIN, n_staying=STAYING, every=EVERY, passes=PASSES, runs=3
):
    """Returns the figures; what cannot be measured here is a list of what is missing."""
    result = {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        directory = Path(directory)
        packages = missing()
        if os.cpu_count() < 2:
            packages.append("a second core")
        if packages:
            result["load"] = packages
        else:
            (directory / "load").mkdir()
            result["load"] = load(binary, example, seconds, memory, directory / "load")
            log(f"load: {result['load']}")
        (directory / "agents").mkdir()
        result["agents"] = agents(binary, example, n_agents, within, memory, directory / "agents")
        (directory / "staying").mkdir()
        result["staying"] = staying(binary, example, n_staying, every, passes, memory, directory / "staying")
        if os.geteuid() != 0 or shutil.which("systemd-nspawn") is None:
            result["nodes"] = ["root", "systemd-container"]
        else:
            with nodes_lock():
                result["nodes"] = real_nodes(binary, directory, runs)
    return result


if __name__ == "__main__":
    more = {} if len(sys.argv) < 4 else {"seconds": int(sys.argv[3])}
    if len(sys.argv) > 4:
        count = int(sys.argv[4])
        more |= {"n_agents": count, "within": 10, "n_staying": max(1, count // 10), "every": 10, "passes": 2, "runs": 1}
    print(json.dumps(figures(sys.argv[1], sys.argv[2], **more), indent=2))
