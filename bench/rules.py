# SPDX-License-Identifier: BSD-3-Clause
"""Rules that hold Lockstep's figure against a limit, or against a peer's figure."""

from dataclasses import dataclass


def times(quotient):
    return f"{quotient:.3g}" if quotient < 100 else f"{quotient:,.0f}"


@dataclass(frozen=True)
class Rule:
    limit: float = 0
    unit: str = ""
    compares = True  # needs a peer's figure
    limits = True  # can be missed

    def ratio(self, own, peer):
        """The ratio of the speeds."""
        return times(peer / own)


class TimesAsFast(Rule):
    def __str__(self):
        return "as fast" if self.limit == 1 else f"at least {self.limit:g} times as fast"

    def met(self, own, peer):
        return peer / own >= self.limit


@dataclass(frozen=True)
class Longer(Rule):
    """Allows a figure to exceed another by `microseconds` and `percent` together."""
    microseconds: float = 0
    percent: float = 0

    def __str__(self):
        parts = [f"{self.microseconds:g} us"] if self.microseconds else []
        parts += [f"{self.percent:g} %"] if self.percent else []
        return f"at most {' and '.join(parts)} more"

    def met(self, own, peer):
        return own - peer <= self.microseconds + peer * self.percent / 100

    def ratio(self, own, peer):
        return f"{own - peer:+.2f} us" if self.microseconds else f"{(own / peer - 1) * 100:+.1f} %"


class AtMostOf(Rule):
    def __str__(self):
        return f"at most {self.limit:g} of it"

    def met(self, own, peer):
        return own / peer <= self.limit

    def ratio(self, own, peer):
        return f"{own / peer:.3f}"


class AtMost(Rule):
    compares = False

    def __str__(self):
        return f"at most {self.limit:g} {self.unit}"

    def met(self, own, _peer):
        return own <= self.limit

    def ratio(self, own, peer):
        return super().ratio(own, peer) if peer else ""


class AtLeast(Rule):
    compares = False

    def __str__(self):
        return f"at least {self.limit:g} {self.unit}"

    def met(self, own, _peer):
        return own >= self.limit

    def ratio(self, _own, _peer):
        return ""


class NoTarget(Rule):
    """No limit, for a peer's figure that is only shown."""
    limits = False

    def __str__(self):
        return ""
