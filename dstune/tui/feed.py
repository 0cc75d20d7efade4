"""Where the monitor's evidence comes from: this machine, a recording, or a list. To the screens they are the same."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import Evidence, Fact, Gap, from_json, to_json

STILL_EVERY = 30
"""Samples between two readings of what hardly moves (driver, disks, containers): they cost 0.1 CPU s."""


class Feed(Protocol):
    """Gives one sample after the other; `sample` may block and is called on a worker thread only."""

    live: bool

    def sample(self) -> Evidence | None:
        """The next evidence, None at the end of a recording."""
        ...

    def close(self) -> None:
        """Ends what the feed started."""
        ...


class LiveFeed:
    """This machine, and a server by URL. `url` "" takes the first server found by its process."""

    live = True

    def __init__(self, url: str = "", interval_s: float = 1.0) -> None:
        from dstune.probes.host_watch import HostWatch
        from dstune.probes.nvidia_watch import GpuWatch, Names

        self._url, self._interval = url, interval_s
        self._gpus, self._host, self._names = GpuWatch(interval_s), HostWatch(), Names()
        self._still = Evidence()
        self._count = 0
        self._due = time.monotonic()

    def sample(self) -> Evidence | None:
        """Waits for its time, then reads."""
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = max(self._due + self._interval, time.monotonic())
        if self._count % STILL_EVERY == 0:
            from dstune.probes import collect

            self._still = collect(["nvidia", "host", "container", "server"], cache=False, deadline_s=4)
        self._count += 1
        moving = self._gpus.latest()
        facts = [i for i in moving if isinstance(i, Fact)]
        gaps = [i for i in moving if isinstance(i, Gap)]
        facts += [*self._processes(facts), *self._host.sample()]
        server = self._server()
        taken = {(f.subject, f.name) for f in (*facts, *server.facts)}
        fresh_gpu = bool(facts and any(f.subject.startswith("gpu") for f in facts))
        still = [
            f
            for f in self._still.facts
            if (f.subject, f.name) not in taken and not (fresh_gpu and f.subject.startswith("process"))
        ]
        silent = not facts or all(g.name != "*" or g.subject != "gpu" for g in gaps)
        kept = [g for g in self._still.gaps if silent or g.subject != "gpu"]
        return Evidence((*facts, *server.facts, *still), (*gaps, *server.gaps, *kept), (), {"started": time.time()})

    def _processes(self, facts: Sequence[Fact]) -> list[Fact]:
        pids = {f.subject: int(f.value) for f in facts if f.name == "pid" and isinstance(f.value, int)}
        known = self._names.of(list(pids.values()))
        found = []
        for subject, pid in pids.items():
            name, command, container = known[pid]
            found.append(Fact(subject, "name", name, "/proc"))
            found.append(Fact(subject, "command", command, "/proc"))
            if container:
                found.append(Fact(subject, "container", container, "/proc"))
        return found

    def _server(self) -> Evidence:
        url = self._url or self._found()
        if not url:
            return Evidence()
        from dstune.probes.server import read_endpoint

        return read_endpoint(url, timeout_s=1.0)

    def _found(self) -> str:
        engine = self._still.first("server", "engine")
        port = self._still.first("server", "port")
        return f"http://127.0.0.1:{port}" if engine and port else ""

    def close(self) -> None:
        """Ends the GPU child."""
        self._gpus.close()


class ReplayFeed:
    """A recording (`dstune monitor --record DIR`, or evidence files) at its own pace; `rate` 0 plays without waiting."""

    live = False

    def __init__(self, folder: str, rate: float = 1.0) -> None:
        self._files = (
            [folder]
            if os.path.isfile(folder)
            else sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".json"))
        )
        if not self._files:
            raise DstuneError(say(f"{folder} holds no recording", f"{folder} 中没有录制"), "", "dstune monitor --record DIR")
        self._rate = rate
        self.position = 0
        self.paused = False
        self._last: float | None = None

    def __len__(self) -> int:
        return len(self._files)

    def seek(self, step: int) -> None:
        """Moves by `step` samples."""
        self.position = min(max(0, self.position + step), len(self._files) - 1)
        self._last = None

    def sample(self) -> Evidence | None:
        """The next file, after the time that lay between the two."""
        while self.paused:
            time.sleep(0.1)
        if self.position >= len(self._files):
            return None
        try:
            with open(self._files[self.position], encoding="utf-8") as f:
                found: Evidence = from_json(Evidence, json.load(f))
        except (ValueError, TypeError, KeyError) as error:
            raise DstuneError(
                say(f"{self._files[self.position]} is no evidence", f"{self._files[self.position]} 不是证据文件"), str(error)
            ) from None
        self.position += 1
        at = found.origin.get("started")
        if isinstance(at, int | float):
            if self._last is not None and self._rate > 0:
                time.sleep(min(10.0, max(0.0, (at - self._last) / self._rate)))
            self._last = float(at)
        return found

    def close(self) -> None:
        """Nothing to end."""


class CannedFeed:
    """Samples out of a list, for tests and screenshots."""

    live = False

    def __init__(self, samples: Iterable[Evidence]) -> None:
        self._samples = iter(samples)

    def sample(self) -> Evidence | None:
        """The next one."""
        return next(self._samples, None)

    def close(self) -> None:
        """Nothing to end."""


class Recorder:
    """Passes a feed on and keeps every sample as a file."""

    def __init__(self, feed: Feed, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self.live, self._feed, self._folder = feed.live, feed, folder
        self._count = 0

    def sample(self) -> Evidence | None:
        """The feed's next sample, kept."""
        found = self._feed.sample()
        if found is not None:
            path = os.path.join(self._folder, f"{self._count:06}.json")
            with open(path + ".part", "w", encoding="utf-8") as f:
                json.dump(to_json(found), f, ensure_ascii=False)
            os.replace(path + ".part", path)
            self._count += 1
        return found

    def close(self) -> None:
        """Ends the feed."""
        self._feed.close()
