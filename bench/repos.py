"""Measures `git clone` of a repository with many files from the server, compared with nginx.

`bench/repos.py BINARY` prints the figures; `bench/run` writes them to RESULTS.md. nginx sends the
files of the copy that homestak published over TLS 1.3, without a token; homestak answers with git's
smart protocol. Clones are made in turn, to
memory, with the same git; most of the time is that of git, which indexes the pack and writes files.
"""

import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import server

FILES = 10_000
ROUNDS = 7

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
    sendfile on;
    default_type text/plain;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_protocols TLSv1.3;
        ssl_certificate {directory}/nginx.pem;
        ssl_certificate_key {directory}/nginx.key;
        root {repos};
    }}
}}
"""

ISOLATED = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(directory, *words):
    subprocess.run(["git", *words], cwd=directory, env={"PATH": os.environ["PATH"]} | ISOLATED, check=True, capture_output=True)


def make_repository(path):
    """Writes a repository whose files do not compress into one another."""
    random.seed(16)
    for nth in range(FILES):
        file = path / f"d{nth % 100}" / f"f{nth}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{random.getrandbits(64):x}\n" for _ in range(60)))
    git(path, "init", "-q", "-b", "main")
    git(path, "add", "-A")
    git(path, "commit", "-qm", "one")
    (path / "d0/f0.txt").write_text("not committed\n")


def missing():
    """Returns the Debian packages that are needed and not installed."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    programs = {"nginx": "nginx-light", "git": "git", "openssl": "openssl"}
    return sorted(package for program, package in programs.items() if not shutil.which(program, path=path))


def figures(binary):
    """Returns the median times of a clone; what cannot be measured here is a list of what is missing."""
    if missing():
        return missing()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        directory = Path(directory)
        make_repository(directory / "repos/tools")
        (directory / "site").mkdir()
        (directory / "site/site.yaml").write_text(f"schema_version: 1\nrepos: {{tools: {directory}/repos/tools}}\n")
        own_port, other_port = server.free_port(), server.free_port()
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(directory), "HOMESTAK_STATE": str(directory / "state"),
            "HOMESTAK_SITE_CONFIG": str(directory / "site"),
        }
        ours = lambda *words: subprocess.run(
            [str(binary), "server", *words, "--port", str(own_port)], env=environment, check=True, capture_output=True, text=True
        ).stdout
        begun = time.monotonic()
        started = json.loads(ours("start", "--repos", "--json", "--bind", "127.0.0.1"))
        prepared = time.monotonic() - begun
        try:
            begun = time.monotonic()
            (directory / "repos/tools/d0/f0.txt").write_text("changed\n")
            ours("reload")
            refreshed = time.monotonic() - begun
            repos = next((directory / "state/server").glob("*/published/repos"))
            words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                     "-keyout", "nginx.key", "-out", "nginx.pem", "-subj", "/CN=nginx", "-addext", "subjectAltName=IP:127.0.0.1"]
            subprocess.run(words, cwd=directory, check=True, capture_output=True)
            (directory / "nginx.conf").write_text(NGINX.format(directory=directory, port=other_port, repos=repos))
            nginx = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
            command = [nginx, "-c", directory / "nginx.conf", "-e", directory / "nginx-error.log", "-p", directory]
            urls = {"homestak": f"https://127.0.0.1:{own_port}", "nginx": f"https://127.0.0.1:{other_port}"}
            authorities = {"homestak": started["authority_file"], "nginx": str(directory / "nginx.pem")}
            token = Path(started["repo_token_file"]).read_text().strip()
            taken = {name: [] for name in urls}
            with server.Process("nginx", command, f"{urls['nginx']}/tools.git/HEAD", directory):
                # The first round warms up.
                for nth in range(ROUNDS + 1):
                    for name, url in urls.items():
                        target = Path(memory) / "clone"
                        begun = time.monotonic()
                        git(memory, "-c", f"http.sslCAInfo={authorities[name]}",
                            "-c", f"http.extraHeader=Authorization: Bearer {token}",
                            "clone", "-q", f"{url}/tools.git", str(target))
                        if nth:
                            taken[name].append(time.monotonic() - begun)
                        if len(list(target.glob("d*/f*.txt"))) != FILES:
                            raise SystemExit(f"{name}: the clone is not complete")
                        shutil.rmtree(target)
            size = sum(file.stat().st_size for file in repos.glob("tools.git/objects/pack/*.pack"))
            medians = {name: statistics.median(times) for name, times in taken.items()}
            return {
                "files": FILES, "bytes": size, "prepared": prepared, "refreshed": refreshed, "clone": medians,
                "ratio": medians["homestak"] / medians["nginx"],
            }
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                ours("stop")


if __name__ == "__main__":
    print(json.dumps(figures(sys.argv[1]), indent=2))
