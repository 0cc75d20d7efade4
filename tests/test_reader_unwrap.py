"""Messages that a console broke at its width are read as one line; nothing else moves."""

import time

import pytest

from dstune.model import Document
from dstune.readers import read_document
from dstune.readers.unwrap import unwrapped

RICH = """ERROR    2024-11-28 13:24:44,248 server ERROR: CUDA   batch_handler.py:574
         out of memory. Tried to allocate 3.88 GiB. GPU 0
         has a total capacity of 44.42 GiB of which 920.81
         MiB is free. Process 248104 has 37.55 GiB memory in
         use. Of the allocated memory 5.44 GiB is allocated by
         PyTorch, and 6.72 MiB is reserved by PyTorch but
         unallocated.
         Traceback (most recent call last):
INFO     next line                                     server.py:12
"""


def test_the_message_of_richs_log_handler_is_one_line() -> None:
    lines = unwrapped(RICH).split("\n")
    assert len(lines) == len(RICH.split("\n"))
    assert "CUDA out of memory. Tried to allocate 3.88 GiB. GPU 0 has a total" in lines[0]
    assert lines[0].endswith("unallocated.")
    assert not any(lines[1:7])
    assert lines[7].strip() == "Traceback (most recent call last):"
    assert lines[8].startswith("INFO ")


def test_its_figures_are_read_and_keep_their_line() -> None:
    found = {f.name: f for f in read_document(Document("server.log", "log", "first line\n" + RICH)).facts}
    assert found["oom_total_mib"].value == 44.42 * 1024
    assert found["oom_total_mib"].line == 2
    assert found["oom_reserved_free_mib"].value == 6.72


def test_a_message_below_richs_box() -> None:
    text = (
        "╭─ Traceback ─╮\n│ softmax(dim=-1) │\n╰─────────────╯\n"
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB (GPU 0; 8.00 GiB total capacity; 12.19 GiB already\n"
        "allocated; 0 bytes free; 12.68 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting\n"
        "max_split_size_mb to avoid fragmentation.\n$ next"
    )
    lines = unwrapped(text).split("\n")
    assert "12.19 GiB already allocated; 0 bytes free; 12.68 GiB reserved in total by PyTorch)" in lines[3]
    assert lines[4:] == ["", "", "$ next"]


def test_torchs_message_broken_by_a_terminal() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total\n"
        "capacity of 23.68 GiB of which 1.05 GiB is free. Of the allocated memory 15.10 GiB is allocated\n"
        " by PyTorch, and 7.05 GiB is reserved by PyTorch but unallocated.\nafter\n"
    )
    lines = unwrapped(text).split("\n")
    assert lines[0].endswith("7.05 GiB is reserved by PyTorch but unallocated.")
    assert lines[3] == "after"


def test_lines_of_other_messages_stay() -> None:
    for text in (
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nValueError: no\n',
        "INFO 06-19 07:42:56 [importing.py:43] Triton is installed\n      more\n",
        "out of memory. Tried to allocate 2.00 GiB\nINFO 10:00:00 next\nreserved in total by PyTorch)\n",
        "done   server.py:12\nnot indented\n",
    ):
        assert unwrapped(text) == text


@pytest.mark.parametrize(
    "after",
    ["INFO 9173 fine\n" * 5000, "INFO " + "word " * 200_000, " " * 1_000_000, ("x " * 500 + "\n") * 900],
    ids=["log", "one line", "spaces", "wide"],
)
def test_what_is_none_is_passed_quickly(after: str) -> None:
    """A message whose end is not there is not looked for in every way in which lines can be cut."""
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total\nin web.py:31 \n" + after
    began = time.process_time()
    assert unwrapped(text) == text
    assert time.process_time() - began < 2
