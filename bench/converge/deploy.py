"""The job for pyinfra."""

from io import StringIO
from pathlib import Path

from pyinfra.operations import apt, files, server, systemd

HERE = Path(__file__).parent
KEY = (HERE / "key.pub").read_text().strip()
SSHD = (HERE / "sshd.conf").read_text()


def put(text, path, mode):
    return files.put(src=StringIO(text), dest=path, mode=mode, _sudo=True)


apt.packages(packages=["tree", "nginx-light"], no_recommends=True, _sudo=True)
server.user(user="deploy", shell="/bin/bash", home="/home/deploy", public_keys=[KEY], _sudo=True)
put("deploy ALL=(ALL:ALL) NOPASSWD: ALL\n", "/etc/sudoers.d/deploy", "440")
changed = put(SSHD, "/etc/ssh/sshd_config.d/10-bench.conf", "644")
put("measured\n", "/etc/motd", "644")
server.hostname(hostname="bench-node", _sudo=True)
systemd.service(service="nginx", running=True, enabled=True, _sudo=True)
systemd.service(service="ssh", reloaded=True, _if=changed.did_change, _sudo=True)
