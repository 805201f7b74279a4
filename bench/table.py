# SPDX-License-Identifier: BSD-3-Clause
"""The table: one line a target."""

from collections import Counter
from dataclasses import dataclass

HEADER = ("what; compared with", "Lockstep", "peer", "ratio", "target", "result")
UNITS = {"time_us_median": "us", "us_median": "us", "percent_of_bound": "%",
         "ms": "ms", "others_ms": "ms", "all_ms": "ms", "seconds_per_epoch": "s", "peak_mb": "MB"}
MET, MISSED, NOT_MEASURED = "met", "MISSED", "not measured"


@dataclass(frozen=True)
class Line:
    """A target and its measured figures. A figure is a number in `unit`, a text that says why
    there is none, or None if the target has no such figure."""
    part: str
    what: str
    lockstep: float | str
    peer: float | str | None
    unit: str
    ratio: str
    target: str
    result: str

    def cells(self):
        return (self.what, self._cell(self.lockstep), self._cell(self.peer), self.ratio,
                self.target, self.result)

    def _cell(self, figure):
        if figure is None:
            return ""
        if isinstance(figure, str):
            return figure
        digits = 2 if figure < 10 else 1 if figure < 100 else 0
        return f"{figure:,.{digits}f} {self.unit}"


def lines(targets, measurements, programs):
    return [_line(target, measurements, programs) for target in targets]


def _line(target, measurements, programs):
    own = measurements.median(target.own)
    peer = measurements.median(target.peer)
    # A peer may be shown only for comparison with a limit.
    measured = own is not None and (peer is not None or not target.rule.compares)
    ratio = target.rule.ratio(own, peer) if measured else ""
    return Line(target.part, target.what, _figure(target.own, own, programs),
                _figure(target.peer, peer, programs), UNITS[target.own.field], ratio,
                str(target.rule), _result(target.rule, own, peer, measured))


def _result(rule, own, peer, measured):
    if not rule.limits:
        return ""
    if not measured:
        return NOT_MEASURED
    return MET if rule.met(own, peer) else MISSED


def _figure(figure, value, programs):
    if figure is None or value is not None:
        return value
    return "not installed" if programs[figure.command.program].missing else "failed"


def summary(table):
    results = Counter(line.result for line in table)
    return ", ".join(f"{results[result]} {result.lower()}" for result in
                     (MET, MISSED, NOT_MEASURED) if results[result] or result != NOT_MEASURED)


def as_text(table):
    rows = [HEADER, *(line.cells() for line in table)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(
        cell.rjust(width) if 1 <= index <= 3 else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def as_markdown(table):
    rows = [HEADER, ("---", "--:", "--:", "--:", "---", "---"), *(line.cells() for line in table)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
