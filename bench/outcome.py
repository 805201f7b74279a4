# SPDX-License-Identifier: BSD-3-Clause
"""The outcome of a run: where it was made, and its table, as text, Markdown or JSON."""

import json
from dataclasses import asdict, dataclass

import table


@dataclass(frozen=True)
class Outcome:
    machine: str
    date: str  # of the day on which it was made
    libtorch: str  # the version under Lockstep
    peers: tuple
    rounds: int
    quick: bool
    lines: tuple  # of table.Line
    failures: tuple
    note: str = ""  # how the figures came here, if not from bench/run itself

    def as_text(self):
        return "\n\n".join(("\n".join(self._about()), table.as_text(self.lines),
                            "\n".join(self._after())))

    def as_markdown(self):
        return "\n\n".join(("\n".join(f"- {line}" for line in self._about()),
                            table.as_markdown(self.lines), "\n\n".join(self._after())))

    def as_json(self):
        """JSON text, with a row for each line of the table."""
        fields = asdict(self)
        rows = ",\n".join(f"  {json.dumps(line)}" for line in fields.pop("lines"))
        return f'{json.dumps(fields, indent=1)[:-2]},\n "lines": [\n{rows}\n ]\n}}'

    def line(self, what):
        """The line of this target, whose name may end before the peer's version."""
        return next(line for line in self.lines if line.what.startswith(what))

    def _about(self):
        return (self.machine,
                f"libtorch {self.libtorch} under Lockstep; beside it {', '.join(self.peers)}",
                f"2 ranks, one thread per rank; medians of rounds: {self.rounds}"
                + (", far too short to tell (--quick)" if self.quick else ""))

    def _after(self):
        return (table.summary(self.lines),
                *(f"could not be run: {failure}" for failure in self.failures))


def from_json(text):
    fields = json.loads(text)
    fields["lines"] = tuple(table.Line(**line) for line in fields["lines"])
    return Outcome(**fields)
