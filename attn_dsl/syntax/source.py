"""Files to texts: what can be wrong with a file before its first character is looked at."""

from __future__ import annotations

from pathlib import Path

from ..diagnostics import AttnSyntaxError, Source, Span

MAX_BYTES = 256 * 1024  # of UTF-8 text


def read_source(path: str | Path) -> Source:
    """The text of a file, named as the caller named it; a byte-order mark is dropped.

    Raises:
        AttnSyntaxError: E200 if the file cannot be read or is no UTF-8 text, E201 if it is too large.
    """
    name = str(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise AttnSyntaxError.of("E200", f"cannot read {name!r}: {reason[0].lower()}{reason[1:]}") from error
    return decode_source(name, data)


def decode_source(name: str, data: bytes) -> Source:
    """The text of the bytes of a file called `name`; a byte-order mark is dropped. Raises as `read_source`."""
    if len(data) > MAX_BYTES:
        raise AttnSyntaxError.of("E201", f"{name!r} is larger than {MAX_BYTES:,} bytes", hint=_SPLIT)
    zero = data.find(b"\0")
    if zero >= 0:
        raise AttnSyntaxError.of("E200", f"{name!r} is not text: byte {zero} is zero")
    try:
        return Source(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        offset = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        message = f"{name!r} is not UTF-8 text: byte {offset} is 0x{data[offset]:02x}, {error.reason}"
        raise AttnSyntaxError.of("E200", message) from None


_SPLIT = "definitions can move to a library file and be imported"


def check_text(source: Source) -> None:
    """The limit on size again, for texts that do not come from a file."""
    text = source.text
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise AttnSyntaxError.of(
            "E201", f"the text is larger than {MAX_BYTES:,} bytes", span=Span(source, 0, 0), hint=_SPLIT
        )
