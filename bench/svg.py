# SPDX-License-Identifier: BSD-3-Clause
"""An SVG picture in Lockstep's colours, for light and dark pages."""

from html import escape

STYLE = """
.paper { fill: #ffffff } .ink { fill: #1c2330 } .muted { fill: #5b6575 }
.grid { stroke: #e3e6eb } .axis { stroke: #8a93a0 } .mark { stroke: #1c2330; stroke-width: 2 }
.own { fill: #2f6fb3 } .peer { fill: #c3c9d2 }
.missed { fill: #ffffff; stroke: #d0642a; stroke-width: 2 }
.own-line { stroke: #2f6fb3; stroke-width: 3 } .peer-line { stroke: #5b6575; stroke-width: 2 }
.other-line { stroke: #c98a2b; stroke-width: 2 } .other { fill: #9a6413 }
.own-text { fill: #255a94 }
@media (prefers-color-scheme: dark) {
.paper { fill: #161b22 } .ink { fill: #e6e9ee } .muted { fill: #a3adb9 }
.grid { stroke: #2c333d } .axis { stroke: #77818e } .mark { stroke: #e6e9ee }
.own { fill: #4f97e0 } .peer { fill: #4a535f } .missed { fill: #161b22; stroke: #f08a4b }
.own-line { stroke: #4f97e0 } .peer-line { stroke: #a3adb9 }
.other-line { stroke: #d9a145 } .other { fill: #e0ae5b } .own-text { fill: #7db7ee }
}"""


class Picture:
    def __init__(self, width, height, title, subtitle):
        self._size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        self._title = title
        self._parts = [f'<rect class="paper" width="{width}" height="{height}" rx="8"/>']
        self.text(20, 30, title, size=16, weight=600)
        self.text(20, 50, subtitle, "muted")

    def text(self, x, y, words, style="ink", anchor="start", size=13, weight=400):
        more = "" if anchor == "start" else f' text-anchor="{anchor}"'
        more += "" if size == 13 else f' font-size="{size}"'
        more += "" if weight == 400 else f' font-weight="{weight}"'
        self._parts.append(f'<text class="{style}" x="{_number(x)}" y="{_number(y)}"{more}>'
                           f"{escape(words)}</text>")

    def line(self, x1, y1, x2, y2, style):
        self._parts.append(f'<line class="{style}" x1="{_number(x1)}" y1="{_number(y1)}" '
                           f'x2="{_number(x2)}" y2="{_number(y2)}"/>')

    def bar(self, x, y, width, height, style):
        self._parts.append(f'<rect class="{style}" x="{_number(x)}" y="{_number(y)}" '
                           f'width="{_number(width)}" height="{_number(height)}" rx="2"/>')

    def dot(self, x, y, radius, style):
        self._parts.append(f'<circle class="{style}" cx="{_number(x)}" cy="{_number(y)}" '
                           f'r="{_number(radius)}"/>')

    def path(self, points, style):
        places = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._parts.append(f'<polyline class="{style}" fill="none" stroke-linejoin="round" '
                           f'points="{places}"/>')

    def __str__(self):
        title = escape(self._title)
        return "\n".join((
            f'<svg xmlns="http://www.w3.org/2000/svg" {self._size} role="img" '
            f'aria-label="{title}" font-family="system-ui, sans-serif" font-size="13">',
            f"<title>{title}</title>", f"<style>{STYLE}", "</style>", *self._parts, "</svg>\n"))


def _number(value):
    return f"{value:.1f}".removesuffix(".0")
