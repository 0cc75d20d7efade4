"""Who holds the memory of a card: our servers, others, or nobody that can be seen."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dstune.lang import say
from dstune.model import Fact, Gap
from dstune.probes.processes import Process, engine_of_process
from dstune.probes.reading import Item, facts, numbered
from dstune.redact import redact


@dataclass(frozen=True, slots=True)
class Used:
    """A process on a card as NVML lists it; `mib` is None where the driver does not say (WSL, Windows), `instance` without MIG."""

    pid: int
    kind: str
    mib: int | None
    instance: int | None = None


def shares(subject: str, index: int, used: Sequence[Used | Gap], total_used: int | None, first: int) -> Iterator[Item]:
    """Facts per process (`process<first>`…) and the sums of the card.

    `memory_used_by_others_mib` counts what is neither a server of this user nor dstune itself, and what no listed process
    accounts for where all of them can be seen.
    """
    yield from (u for u in used if isinstance(u, Gap))
    if any(isinstance(u, Gap) and u.name == "processes" for u in used):
        yield Gap(subject, "memory_used_by_others_mib", say("the processes on the card are not readable", "读不到该卡上的进程"))
        return
    listed = [u for u in used if isinstance(u, Used)]
    contained = own_pid_namespace()
    servers = others = 0
    hidden = unsized = False
    for number, use in enumerate(listed, first):
        process = Process(use.pid)
        engine = engine_of_process(process) if process.readable else None
        ours = engine is not None and process.uid == os.getuid()
        hidden = hidden or (not process.readable and contained)
        unsized = unsized or use.mib is None
        servers, others = (servers + (use.mib or 0), others) if ours else (servers, others + (use.mib or 0))
        where = numbered("process", number)
        yield from facts(
            where,
            "nvml: RunningProcesses, /proc",
            pid=use.pid,
            gpu=index,
            kind=use.kind,
            name=process.name or None,
            command=redact(" ".join(process.argv))[:300] or None,
            engine=engine,
            ours=ours,
            mig_instance=use.instance,
        )
        if use.mib is None:
            yield Gap(where, "memory_mib", say("the driver does not say (WSL or Windows)", "驱动不提供此项(WSL 或 Windows)"))
        else:
            yield Fact(where, "memory_mib", use.mib, "nvml: RunningProcesses")
    yield Fact(subject, "processes", len(listed), "nvml: RunningProcesses")
    yield Fact(subject, "memory_used_by_servers_mib", servers, "nvml: RunningProcesses, /proc")
    unlisted = None if total_used is None or unsized else max(0, total_used - servers - others)
    if unlisted is not None:
        yield Fact(subject, "memory_unattributed_mib", unlisted, "nvml: MemoryInfo − RunningProcesses")
    if unsized or hidden or (contained and unlisted is not None and unlisted > 64):
        yield Gap(
            subject,
            "memory_used_by_others_mib",
            say(
                "memory of processes outside this PID namespace cannot be told apart",
                "无法区分本 PID 命名空间之外的进程所占的显存",
            ),
            say(
                "run `nvidia-smi` on the host, or the container with `--pid=host`",
                "在宿主机上运行 `nvidia-smi`，或用 `--pid=host` 启动容器",
            ),
        )
    else:
        yield Fact(subject, "memory_used_by_others_mib", others, "nvml: RunningProcesses, /proc")


def own_pid_namespace() -> bool:
    """In a PID namespace that is not the machine's first: then pid 2 is no kernel thread."""
    return Process(2).name != "kthreadd"
