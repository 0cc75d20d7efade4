"""Probes: what a machine says of itself, as facts and gaps. Each runs bounded in time and none raises."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module

from dstune import __version__
from dstune.lang import say
from dstune.model import Evidence, Fact, Gap, Value
from dstune.probes.reading import Item, Options, timed_out
from dstune.redact import redact

__all__ = ["PROBES", "Options", "collect"]


def _lazy(name: str) -> Callable[[Options], Iterable[Item]]:
    """The `probe` of a module here, imported when it is first asked: pynvml and psutil are not paid for by other commands."""

    def probe(options: Options) -> Iterator[Item]:
        yield from import_module(f"dstune.probes.{name}").probe(options)

    return probe


PROBES: dict[str, Callable[[Options], Iterable[Item]]] = {
    name: _lazy(name) for name in ("nvidia", "host", "software", "container", "models", "server")
}
_SUBJECT = {"nvidia": "gpu", "software": "python", "models": "model"}


def collect(
    names: Sequence[str] | None = None,
    *,
    python: str | None = None,
    model_dirs: Sequence[str] = (),
    cache: bool = True,
    deadline_s: float = 8,
    redacted: bool = True,
) -> Evidence:
    """All that the named probes (all without `names`) can read within `deadline_s` each; they run side by side.

    `python`: the interpreter whose packages count first; `model_dirs`: model directories to read; `cache`: read the models in
    the hub caches as well. A probe that does not end becomes a gap, what it had said before stays.
    """
    options = Options(python, tuple(model_dirs), cache, deadline_s)
    started, clock = time.time(), time.monotonic()
    wanted = list(PROBES) if names is None else [n for n in PROBES if n in names]
    runs = [(name, _Run(name, options)) for name in wanted]
    facts: list[Fact] = []
    gaps: list[Gap] = []
    for name, run in runs:
        run.thread.join(max(0.0, clock + deadline_s - time.monotonic()))
        items = list(run.items)
        facts += [i for i in items if isinstance(i, Fact)]
        gaps += [i for i in items if isinstance(i, Gap)]
        if run.thread.is_alive():
            gaps.append(timed_out(_SUBJECT.get(name, name), deadline_s))
    origin: dict[str, Value] = {
        "dstune": __version__,
        "started": round(started, 3),
        "seconds": round(time.monotonic() - clock, 3),
    }
    origin["probes"] = list(wanted)
    if redacted:
        facts = [Fact(f.subject, f.name, _clean(f.value), redact(f.source), f.line, redact(f.text), f.at) for f in facts]
        gaps = [Gap(g.subject, g.name, redact(g.reason), redact(g.hint)) for g in gaps]
    return Evidence(tuple(facts), tuple(gaps), (), origin)


def _clean(value: Value) -> Value:
    if isinstance(value, str):
        return redact(value)
    return [redact(v) if isinstance(v, str) else v for v in value] if isinstance(value, list) else value


class _Run:
    """A probe on its own daemon thread: one that hangs in a network disk ends with the process."""

    def __init__(self, name: str, options: Options) -> None:
        self.items: list[Item] = []
        self.thread = threading.Thread(target=self._run, args=(name, options), name=f"probe-{name}", daemon=True)
        self.thread.start()

    def _run(self, name: str, options: Options) -> None:
        try:
            for item in PROBES[name](options):
                self.items.append(item)
        except Exception as error:  # a bug of ours or a machine nobody foresaw: the other probes still count
            reason = say(f"the probe failed: {type(error).__name__}: {error}", f"探测失败：{type(error).__name__}: {error}")
            hint = say(
                "please report it with the output of `dstune probe --json`", "请附上 `dstune probe --json` 的输出反馈此问题"
            )
            self.items.append(Gap(_SUBJECT.get(name, name), "*", reason, hint))
