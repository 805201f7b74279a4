#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs a command as ranks on hosts that are network namespaces of this machine, each of which sends
a limited number of megabits a second, and prints what rank 0 prints. Needs root and iproute2."""

import argparse
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PORT = 29400
LIMIT = 30  # seconds for the other ranks, once one has ended


def why_not():
    if os.geteuid() != 0:
        return "root, for network namespaces"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "apt-get install iproute2"
    probe = subprocess.run(["unshare", "-n", "true"], capture_output=True)
    return "" if probe.returncode == 0 else "a machine that allows network namespaces"


class Hosts:
    """Hosts that a bridge connects, which has a namespace of its own."""

    _numbers = itertools.count()

    def __init__(self):
        self._name = f"lsb{os.getpid()}.{next(self._numbers)}"
        self._spaces = []
        self._bridge = f"{self._name}n"

    def make(self, count, megabits):
        self._spaces = [f"{self._name}h{host}" for host in range(count)]
        self._run(f"ip netns add {self._bridge}",
                  f"ip -n {self._bridge} link add bridge type bridge",
                  f"ip -n {self._bridge} link set bridge up")
        for host, space in enumerate(self._spaces):
            self._run(f"ip netns add {space}", f"ip -n {space} link set lo up",
                      f"ip -n {space} link add eth0 type veth peer name port{host} "
                      f"netns {self._bridge}",
                      f"ip -n {space} address add {self.address(host)}/24 dev eth0",
                      f"ip -n {space} link set eth0 up",
                      f"ip -n {self._bridge} link set port{host} master bridge up",
                      f"ip netns exec {space} tc qdisc add dev eth0 root tbf "
                      f"rate {megabits}mbit burst 256kb latency 50ms")

    @staticmethod
    def _run(*commands):
        for command in commands:
            subprocess.run(command.split(), check=True)

    @staticmethod
    def address(host):
        return f"10.78.0.{host + 1}"

    def in_shell(self, host):
        """The beginning of a shell's command line that runs on that host."""
        return f"ip netns exec {self._spaces[host]} unshare -u sh -c"

    def on(self, host, command):
        """The arguments that run a command on the host, under a host name by which MPI knows it."""
        return [*self.in_shell(host).split(), f'hostname host{host} && exec "$@"', "sh", *command]

    def cut(self, host):
        self._run(f"ip -n {self._spaces[host]} link set eth0 down")

    def limit(self, host, discipline):
        """Limits the host's sending from now on, by a discipline in tc's words."""
        self._run(f"ip netns exec {self._spaces[host]} tc qdisc replace dev eth0 root {discipline}")

    def packets_dropped(self, host):
        """The number of packets that the host's discipline has dropped."""
        told = subprocess.run(["ip", "netns", "exec", self._spaces[host], "tc", "-s", "-j", "qdisc",
                               "show", "dev", "eth0"], check=True, capture_output=True)
        return sum(discipline["drops"] for discipline in json.loads(told.stdout))

    def remove(self):
        for space in (*self._spaces, self._bridge):
            subprocess.run(["ip", "netns", "del", space], check=False, stderr=subprocess.DEVNULL)


def by_lockstep(hosts, options, _folder):
    """Yields the command of a launcher for each host."""
    program, *arguments = options.command
    for host in range(options.hosts):
        yield hosts.on(host, [
            program, "run", "-n", str(options.ranks), "--nnodes", str(options.hosts),
            "--node-rank", str(host), "--rdzv-endpoint", f"{hosts.address(0)}:{PORT}",
            "--threads", "1", "--no-prefix", "--", program, *arguments]), {}


def by_themselves(hosts, options, folder):
    """Yields the commands of ranks that bench/peers/torch_ranks.py joins."""
    for rank in range(options.hosts * options.ranks):
        yield hosts.on(rank // options.ranks, options.command), {
            "RANK": str(rank), "WORLD_SIZE": str(options.hosts * options.ranks),
            "BENCH_STORE": f"{folder}/store", "GLOO_SOCKET_IFNAME": "eth0"}


def by_mpirun(hosts, options, folder):
    """Yields the command of mpirun on the first host, with an agent that replaces ssh."""
    agent = pathlib.Path(folder) / "agent"
    cases = "\n".join(f'  {hosts.address(host)}) exec {hosts.in_shell(host)} "hostname host{host}; '
                      f'$*" ;;' for host in range(options.hosts))
    agent.write_text(f"#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}\nesac\n")
    agent.chmod(0o755)
    where = ",".join(f"{hosts.address(host)}:{options.ranks}" for host in range(options.hosts))
    mpirun, *command = options.command
    yield hosts.on(0, [
        mpirun, "-n", str(options.hosts * options.ranks), "--host", where, "--bind-to", "none",
        "--mca", "plm_rsh_agent", str(agent), "--mca", "btl", "tcp,self",
        "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0",
        *command]), {}


WAYS = {"lockstep": by_lockstep, "themselves": by_themselves, "mpirun": by_mpirun}


def end(ranks):
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    for rank in ranks:
        try:
            rank.wait(5)
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def run(hosts, options, folder):
    ranks = []
    try:
        for command, variables in WAYS[options.way](hosts, options, folder):
            first = not ranks
            ranks.append(subprocess.Popen(
                command, stdin=subprocess.DEVNULL,
                stdout=sys.stdout if first else subprocess.DEVNULL,
                env={name: value for name, value in {**os.environ, **variables}.items()
                     if name != "GLOO_SOCKET_IFNAME" or name in variables}))
        codes = [ranks[0].wait()]
        patience = time.monotonic() + LIMIT
        codes += [rank.wait(max(patience - time.monotonic(), 0)) for rank in ranks[1:]]
        return next((code for code in codes if code != 0), 0)
    finally:
        end(ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument("--megabits", type=int, default=1000)
    parser.add_argument("way", choices=WAYS, help="who starts the ranks")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if missing := why_not():
        parser.error(f"this needs {missing}")
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    hosts = Hosts()
    try:
        hosts.make(options.hosts, options.megabits)
        with tempfile.TemporaryDirectory() as folder:
            return run(hosts, options, folder)
    except subprocess.TimeoutExpired:
        print(f"on_hosts.py: a rank did not end within {LIMIT} s of rank 0", file=sys.stderr)
        return 1
    finally:
        hosts.remove()


if __name__ == "__main__":
    sys.exit(main())
