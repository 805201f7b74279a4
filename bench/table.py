# SPDX-License-Identifier: BSD-3-Clause
"""The table: one line a target."""

from collections import Counter

HEADER = ("what; compared with", "Lockstep", "peer", "ratio", "target", "result")
UNITS = {"time_us_median": "us", "us_median": "us", "percent_of_bound": "%",
         "ms": "ms", "peak_mb": "MB"}
MET, MISSED, NOT_MEASURED = "met", "MISSED", "not measured"


def lines(targets, measurements, programs):
    return [_line(target, measurements, programs) for target in targets]


def _line(target, measurements, programs):
    own = measurements.median(target.own)
    peer = measurements.median(target.peer)
    cells = [target.what, _cell(target.own, own, programs), _cell(target.peer, peer, programs)]
    # A peer may be there only to be seen beside a limit.
    measured = own is not None and (peer is not None or not target.rule.compares)
    ratio = target.rule.ratio(own, peer) if measured else ""
    return (*cells, ratio, str(target.rule), _result(target.rule, own, peer, measured))


def _result(rule, own, peer, measured):
    if not rule.limits:
        return ""
    if not measured:
        return NOT_MEASURED
    return MET if rule.met(own, peer) else MISSED


def _cell(figure, value, programs):
    if figure is None:
        return ""
    if value is None:
        return "not installed" if programs[figure.command.program].missing else "failed"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f} {UNITS[figure.field]}"


def summary(table):
    results = Counter(line[-1] for line in table)
    return ", ".join(f"{results[result]} {result.lower()}" for result in
                     (MET, MISSED, NOT_MEASURED) if results[result] or result != NOT_MEASURED)


def as_text(table):
    widths = [max(map(len, column)) for column in zip(HEADER, *table)]
    return "\n".join("  ".join(
        cell.rjust(width) if 1 <= index <= 3 else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(line, widths))).rstrip()
        for line in (HEADER, *table))


def as_markdown(table):
    rows = [HEADER, ("---", "--:", "--:", "--:", "---", "---"), *table]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
