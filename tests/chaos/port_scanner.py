# SPDX-License-Identifier: BSD-3-Clause
"""Processes that know nothing of a job and connect to it."""

import contextlib
import os
import pathlib
import socket
import struct


def visit(job, stop):
    """Connects to all ports at which the job listens, until the event is set. Returns how often it
    was let in."""
    visits = 0
    while not stop.is_set():
        for address in _listeners(job.remains()):
            with contextlib.suppress(OSError), socket.create_connection(address, 0.2) as visitor:
                visits += 1
                if visits % 3 == 0:
                    visitor.send(os.urandom(200))
                if visits % 3 == 1:  # an RST instead of a FIN
                    visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stop.wait(0.01)
    return visits


def _listeners(pids):
    """The addresses at which these processes listen."""
    sockets = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets.add(os.readlink(entry))
    found = []
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            host, port = fields[1].split(":")
            found.append((socket.inet_ntoa(struct.pack("<I", int(host, 16))), int(port, 16)))
    return found
