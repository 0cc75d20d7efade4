"""The kernel's log: Xid errors of the GPU and processes that the OOM killer ended."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping

from dstune.lang import say
from dstune.model import Fact, Gap
from dstune.probes.reading import Item, Options, run, text_of

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")
_OOM_KILL = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (\d+) \(([^)]*)\)")


def xids(text: str) -> list[tuple[str, int]]:
    """(PCI address, code) of every Xid line, oldest first: `0000:01:00`, 79."""
    return [(m.group(1).lower(), int(m.group(2))) for m in _XID.finditer(text)]


def oom_kills(text: str) -> list[str]:
    """Names of processes the OOM killer ended, oldest first."""
    return [m.group(2) for m in _OOM_KILL.finditer(text)]


def read(options: Options) -> tuple[str, str] | None:
    """(text, source) of this boot's kernel log from the first place that lets us; None where none does."""
    text = _ring(options.at("/dev/kmsg")) if options.root == "/" else text_of(options.at("/dev/kmsg"))
    if text:
        return text, "/dev/kmsg"
    if options.root == "/":
        text = run(("journalctl", "-k", "-b", "-q", "-o", "cat", "--no-pager", "-n", "20000"), 2.0)
        if text:
            return text, "journalctl -k -b"
    for path in ("/var/log/kern.log", "/var/log/dmesg"):
        text = text_of(options.at(path), 8 << 20)
        if text:
            return text, path
    return None


def _ring(path: str) -> str | None:
    """The kernel's ring buffer without waiting for new lines; at most one second."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    parts: list[bytes] = []
    end = time.monotonic() + 1.0
    try:
        while time.monotonic() < end:
            try:
                parts.append(os.read(handle, 8192))
            except BrokenPipeError:  # a record was overwritten while we read: go on with the next
                continue
            except OSError:
                break
    finally:
        os.close(handle)
    return b"".join(parts).decode("utf-8", "replace") or None


def gpu_errors(log: tuple[str, str] | None, cards: Mapping[str, str], lost: list[str]) -> Iterator[Item]:
    """Xid facts per card. `cards`: subject → PCI bus id; `lost`: cards whose id could not be read."""
    subjects = [*cards, *(s for s in lost if s not in cards)]
    if log is None:
        for subject in subjects:
            yield Gap(
                subject,
                "xid",
                say("the kernel log is not readable for this user", "当前用户无权读取内核日志"),
                say("sudo dmesg | grep -i xid", "执行 sudo dmesg | grep -i xid"),
            )
        return
    text, source = log
    found = xids(text)
    known = {pci.rpartition(".")[0]: subject for subject, pci in cards.items()}
    by_subject: dict[str, list[int]] = {s: [] for s in subjects}
    for address, code in found:
        short = address.rpartition(".")[0] if "." in address else address
        owner = known.get(short[-10:]) or next((s for s in lost if s not in cards), None)
        if owner is not None:
            by_subject[owner].append(code)
    for subject, codes in by_subject.items():
        yield Fact(subject, "xid", codes[-1] if codes else 0, source)
        yield Fact(subject, "xid_count", len(codes), source)
