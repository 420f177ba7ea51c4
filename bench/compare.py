#!/usr/bin/env python3
"""Compares two builds of homestak in one run. Needs root for nodes on this machine.

    bench/compare.py BEFORE AFTER [RUNS]    two directories with the programs of a release build

Measures in turn, so that other load on the machine affects both equally: start-up, checking and
resolving a manifest of 10,000 nodes, ten nodes on this machine from start until SSH login works (and
plain systemd-nspawn on the same tree), the first configuration of a node (and apt alone), and one
without changes. Prints medians and the ratio of the two builds.
"""

import importlib.machinery
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import converge
import local

LOADER = importlib.machinery.SourceFileLoader("run", str(Path(__file__).with_name("run")))
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", LOADER))
LOADER.exec_module(run)

N_NODES = 10_000
N_LOCAL = 10


def commands(builds, runs):
    """Measures commands that need no nodes."""
    run.generate(N_NODES)
    site = ["--site", str(run.OUT / "site")]
    measured = {
        "`--help`": ["--help"],
        f"`manifest validate`, {N_NODES:,} nodes": [*site, "manifest", "validate", "large"],
        f"`manifest show --json-output`, {N_NODES:,} nodes": [*site, "--json-output", "manifest", "show", "large"],
    }
    for title, words in measured.items():
        times = run.measure({name: [str(binary), *words] for name, binary in builds.items()}, runs)
        yield title, {name: wall for name, (wall, _, _) in times.items()}


def ten_nodes(builds, directory, runs):
    """Measures ten nodes of this machine, until an SSH login works on each."""
    ours = {}
    for name, binary in builds.items():
        root, own = directory / f"{name}-root", directory / f"{name}-nodes"
        root.mkdir()
        own.mkdir()
        ours[name] = local.Ours(binary, root, own)
        ours[name].run("image", "build", "debian-12")
    images = json.loads(ours["after"].run("image", "list", "--json-output"))["images"]
    tree = next(image["path"] for image in images if image["name"] == "debian-12" and image["current"])
    plain = local.Plain(Path(tree) / "root", directory)

    def plain_nodes():
        for at in range(N_LOCAL):
            plain.start(at)
        for at in range(N_LOCAL):
            plain.wait(at)

    def own_nodes(one):
        one.apply(N_LOCAL)
        one.logged_in()

    times = {name: [] for name in ("plain nspawn", *ours)}
    try:
        for _ in range(runs):
            times["plain nspawn"].append(local.timed(plain_nodes))
            plain.stop()
            for name, one in ours.items():
                times[name].append(local.timed(own_nodes, one))
                one.destroy(N_LOCAL)
    finally:
        plain.stop()
        plain.close()
    return {name: statistics.median(taken) for name, taken in times.items()}


def configuration(builds, directory, runs):
    """Measures the first configuration of a new node and one without changes."""
    first, again = {"apt alone": []}, {}
    benches = {}
    for name, binary in builds.items():
        own = directory / f"{name}-converge"
        own.mkdir()
        benches[name] = converge.Bench(binary, own, directory / f"{name}-root")
        first[name], again[name] = [], []
    for _ in range(runs):
        for name, bench in benches.items():
            bench.manifest("own", ["{name: bench-node}", "{name: bare}"])
            bench.apply("own")
            nodes = bench.nodes()
            for node in ("bench-node", "bare"):
                converge.prepare_node(bench, node, nodes[node])
            bench.manifest("own", ["{name: bench-node, spec: bench}", "{name: bare}"])
            bench.close_shared()
            install = "sudo apt-get -q -y --no-install-recommends install tree nginx-light"
            first["apt alone"].append(converge.timed(bench.ssh, nodes["bare"], install))
            first[name].append(converge.timed(bench.apply, "own"))
            bench.close_shared()
            again[name].append(converge.timed(bench.apply, "own"))
            bench.run("manifest", "destroy", "-M", "own", "-H", "local", "--yes")
    medians = lambda times: {name: statistics.median(taken) for name, taken in times.items()}
    return medians(first), medians(again)


def main():
    before, after, *rest = sys.argv[1:]
    runs = int(rest[0]) if rest else 5
    builds = {"before": Path(before) / "homestak", "after": Path(after) / "homestak"}
    rows = dict(commands(builds, 2 * runs + 1))
    if os.geteuid() == 0:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as text:
            directory = Path(text)
            rows[f"{N_LOCAL} nodes on this machine"] = ten_nodes(builds, directory, runs)
            first, again = configuration(builds, directory, runs)
            rows["first configuration"], rows["configuration without changes"] = first, again
    print("| measured | before | after | after / before | compared with |\n|---|---:|---:|---:|---|")
    for title, times in rows.items():
        others = [f"{name} {seconds:.3f} s" for name, seconds in times.items() if name not in builds]
        ratio = times["after"] / times["before"]
        print(f"| {title} | {times['before']:.3f} s | {times['after']:.3f} s | {ratio:.2f} | {', '.join(others)} |")


if __name__ == "__main__":
    main()
