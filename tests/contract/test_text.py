"""What commands print: plain characters where the encoding lacks others, no control characters, no error of a codec."""

import io
import os
import sys

import pytest

from pejax._process.text import HANDLER, complain, discard, plain, plain_output, printable, run


@pytest.mark.parametrize(
    ("text", "encoding", "written"),
    [
        ("64 px · 85.3 ±0.4 · 2 × cpu", "ascii", "64 px - 85.3 +-0.4 - 2 x cpu"),
        ("max |Δ| “a” … → π µ", "ascii", 'max |delta| "a" ... -> pi u'),
        ("é 漢 \U0001f600", "ascii", "? ? ?"),
        ("64 px · 85.3 ±0.4 é …", "latin-1", "64 px · 85.3 ±0.4 é ..."),
        ("a \udcff b", "utf-8", "a ? b"),
    ],
)
def test_characters_that_an_encoding_lacks_become_plain(text, encoding, written):
    assert plain(text, encoding) == written


def test_control_characters_are_written_as_escapes():
    assert printable("a\x1b[31m\x07\r\x9b0m\x7f\u202e\u2028\udcff") == (
        "a\\x1b[31m\\x07\\r\\x9b0m\\x7f\\u202e\\u2028\\udcff"
    )
    assert printable("two\nlines\tof é · 漢") == "two\nlines\tof é · 漢"


def test_standard_streams_never_fail_on_a_character(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", None)
    plain_output()
    print("± é", flush=True)
    print("nowhere", file=sys.stderr, flush=True)
    assert written.getvalue() == b"+- ?\n"
    assert sys.stdout.errors == HANDLER
    sys.stderr.close()


def test_a_closed_pipe_takes_what_is_written_after_it_was_noticed(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        stream.write("lost")
        with pytest.raises(BrokenPipeError):
            stream.flush()
        discard(stream)
        stream.write("more")
        stream.flush()


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        (None, None, ""),
        (BrokenPipeError(), 141, ""),
        (KeyboardInterrupt(), 130, "stopped\n"),
        (OSError(28, "No space left on device"), 2, "error: [Errno 28] No space left on device\n"),
    ],
)
def test_a_command_ends_in_one_line_at_most(raised, status, line, capfd, tmp_path, monkeypatch):
    def command():
        if raised is not None:
            raise raised

    with (tmp_path / "out").open("w", encoding="utf-8") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        if status is None:
            run(command)
        else:
            with pytest.raises(SystemExit) as ended:
                run(command)
            assert ended.value.code == status
    assert capfd.readouterr().err == line


def test_a_last_line_reaches_the_descriptor_in_its_encoding(capfd, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    complain("stopped; --out='a\x1b\udcff ·'")
    assert capfd.readouterr().err == "stopped; --out='a\\x1b\\udcff -'\n"
