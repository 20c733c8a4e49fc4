"""A bar chart of times as a PNG file: a group of bars for each size, on a logarithmic axis. Needs Pillow."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .console import UsageError

_COLOURS = ((47, 129, 247), (219, 109, 40), (46, 160, 67), (163, 113, 247), (125, 133, 144))
_INK = (125, 133, 144, 255)  # reads on light and on dark pages; the background is transparent
_BAR, _GAP, _GROUP = 18, 4, 22  # pixels: height of a bar, between bars, between groups
_LEFT, _WIDTH, _RIGHT, _TOP = 110, 460, 110, 34  # pixels: labels, longest bar, times, legend


@dataclass(frozen=True)
class Bar:
    """One time; None for what took no part."""

    name: str
    seconds: float | None


def chart(title: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> bytes:
    """The PNG file. A bar twice as long is no time twice as long: the axis is logarithmic, and each bar has its number.

    Raises UsageError if Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise UsageError.say("--png needs Pillow", "pip install 'attn-dsl[png]'") from None
    names = list(dict.fromkeys(bar.name for _, bars in groups for bar in bars))
    times = [bar.seconds for _, bars in groups for bar in bars if bar.seconds]
    low, high = math.log10(min(times)) - 0.3, math.log10(max(times))
    rows = sum(len(bars) for _, bars in groups)
    height = _TOP + 24 + rows * (_BAR + _GAP) + len(groups) * _GROUP
    image = Image.new("RGBA", (_LEFT + _WIDTH + _RIGHT, height))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    draw.text((8, 6), title, _INK, font)
    across = _LEFT
    for number, name in enumerate(names):
        draw.rectangle((across, _TOP - 6, across + 10, _TOP + 4), _COLOURS[number % len(_COLOURS)])
        draw.text((across + 15, _TOP - 9), name, _INK, font)
        across += 30 + int(draw.textlength(name, font))
    down = _TOP + 22
    for label, bars in groups:
        draw.text((8, down), label, _INK, font)
        for bar in bars:
            if bar.seconds is None:
                draw.text((_LEFT + 4, down), f"no {bar.name}", _INK, font)
            else:
                length = _WIDTH * (math.log10(bar.seconds) - low) / max(high - low, 1e-9)
                colour = _COLOURS[names.index(bar.name) % len(_COLOURS)]
                draw.rectangle((_LEFT, down, _LEFT + max(2, round(length)), down + _BAR - 2), colour)
                draw.text((_LEFT + length + 6, down), duration(bar.seconds), _INK, font)
            down += _BAR + _GAP
        down += _GROUP
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def duration(seconds: float) -> str:
    """A time in the unit that fits: `3.21 ms`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1.0 or unit == "us":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError("microseconds fit everything")
