"""What can be wrong with a file before its first character is looked at, and how large a text may be."""

import os

import pytest

from attn_dsl.diagnostics import AttnSyntaxError, Source
from attn_dsl.syntax import parse_source, read_source
from attn_dsl.syntax.source import MAX_BYTES, decode_source


def refused(action, *arguments):
    with pytest.raises(AttnSyntaxError) as caught:
        action(*arguments)
    (only,) = caught.value.diagnostics
    return only


def test_a_file_is_read_under_the_name_it_was_given(tmp_path):
    path = tmp_path / "mine.attn"
    path.write_bytes(b"\xef\xbb\xbfmask = true\r\n")
    source = read_source(path)
    assert source == Source(str(path), "mask = true\r\n")
    assert read_source(str(path)) == source


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "no such file or directory"),
        (lambda path: path.mkdir(), "is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_e200_with_the_reason(tmp_path, make, reason):
    path = tmp_path / "spec.attn"
    make(path)
    found = refused(read_source, path)
    assert found.code == "E200"
    assert str(path) in found.message
    assert reason in found.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_e200(tmp_path):
    path = tmp_path / "spec.attn"
    path.write_text("mask = true")
    path.chmod(0)
    assert "permission denied" in refused(read_source, path).message


def test_a_path_with_a_nul_is_e200():
    assert refused(read_source, "a\0b").code == "E200"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"mask = true\0", "byte 11 is zero"),
        (b"\x7fELF\x02\x01\x01\0", "byte 7 is zero"),
        (b"mask = \xff", "byte 7 is 0xff"),
        (b"\xef\xbb\xbfmask = \xff", "byte 10 is 0xff"),
        (b"# caf\xc3", "byte 5 is 0xc3"),
        ("mask = true".encode("utf-16"), "byte 3 is zero"),
    ],
)
def test_what_is_no_text_is_e200_with_the_byte(data, words):
    found = refused(decode_source, "spec.attn", data)
    assert found.code == "E200"
    assert words in found.message


def test_a_file_may_have_256_kib_and_no_more():
    longest = b"# " + b"x" * (MAX_BYTES - 14) + b"\nlet a = b\n"
    assert len(longest) == MAX_BYTES - 1
    assert parse_source(decode_source("spec.attn", longest + b"\n")).statements
    found = refused(decode_source, "spec.attn", longest + b"\n\n")
    assert found.code == "E201"
    assert "262,144" in found.message
    assert refused(parse_source, Source("<text>", longest.decode() + "\n\n")).code == "E201"
    assert refused(parse_source, Source("<text>", "#" + "é" * (MAX_BYTES // 2))).code == "E201"


@pytest.mark.parametrize("text", ["", "\n\n", "  # only a comment\n", "\ufeff", "\r\n\t"])
def test_a_file_without_a_statement_is_e202(text):
    found = refused(parse_source, Source("spec.attn", text))
    assert (found.code, found.span.line, found.span.column) == ("E202", 1, 1)


def test_lone_surrogates_are_characters_without_a_meaning():
    found = refused(parse_source, Source("<text>", "let a = \ud800"))
    assert found.code == "E203"
    assert found.message == "'\\ud800' means nothing here"
