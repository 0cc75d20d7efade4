"""Recordings of the monitor: a folder with one evidence file a sample, written while it runs and played at its own pace."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from typing import Any

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import Evidence, from_json, parse_json, to_json
from dstune.tui.feed import Feed

LONGEST_WAIT_S = 10.0


class ReplayFeed:
    """A recording (`dstune monitor --record DIR`), or one evidence file; `rate` 0 plays without waiting."""

    live = False

    def __init__(self, folder: str, rate: float = 1.0) -> None:
        try:
            names = [""] if os.path.isfile(folder) else sorted(f for f in os.listdir(folder) if f.endswith(".json"))
        except OSError as error:
            raise DstuneError(f"{folder}: {error.strerror}", "", "dstune monitor --record DIR") from None
        self._files = [os.path.join(folder, n) if n else folder for n in names]
        if not self._files:
            raise DstuneError(say(f"{folder} holds no recording", f"{folder} 中没有录制"), "", "dstune monitor --record DIR")
        self._rate = rate
        self.position = 0
        self.paused = False
        self._last: float | None = None
        self._jumped = False
        self._closed = False
        self._moved = threading.Condition()

    def __len__(self) -> int:
        return len(self._files)

    @property
    def place(self) -> str:
        """`replay 12/60`."""
        words = say("paused", "已暂停") if self.paused else say("replay", "回放")
        return f"{words} {self.position}/{len(self._files)}"

    def pause(self) -> None:
        """Stops, or goes on."""
        with self._moved:
            self.paused = not self.paused
            self._moved.notify_all()

    def seek(self, step: int) -> int:
        """Moves by `step` samples and shows the one that is there, paused or not. Returns by how many it went back or forth."""
        with self._moved:
            before = self.position
            # the sample on the screen is position - 1; after the move the next one read is the one to show
            self.position = min(max(0, self.position - 1 + step), len(self._files) - 1)
            self._last, self._jumped = None, True
            self._moved.notify_all()
            return self.position - before

    def wait_moved(self) -> None:
        """At the end: until someone seeks, or leaves."""
        with self._moved:
            self._moved.wait_for(lambda: self._jumped or self._closed)

    def sample(self) -> Evidence | None:
        """The next file, after the time that lay between the two."""
        with self._moved:
            self._moved.wait_for(lambda: not self.paused or self._jumped or self._closed)
            if self._closed or self.position >= len(self._files):
                return None
            self._jumped = False
            place = self.position
            found = self._read(self._files[place])
            at = found.origin.get("started")
            if isinstance(at, int | float):
                if self._last is not None and self._rate > 0:
                    gap = min(LONGEST_WAIT_S, max(0.0, (at - self._last) / self._rate))
                    self._moved.wait_for(lambda: self._jumped or self._closed or self.paused, gap)
                self._last = float(at)
            if self._jumped:  # moved while it waited: what was read is not what is to be shown
                found = self._read(self._files[self.position])
                self._jumped, self._last = False, None
            self.position += 1
        return found

    def _read(self, path: str) -> Evidence:
        try:
            with open(path, encoding="utf-8") as f:
                data = parse_json(f.read())
            found: Evidence = from_json(Evidence, data.get("evidence", data))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self.position += 1
            raise DstuneError(say(f"{path} is no evidence", f"{path} 不是证据文件"), str(error)) from None
        return found

    def close(self) -> None:
        """Lets a waiting `sample` return."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()


def compact(evidence: Evidence) -> dict[str, Any]:
    """Evidence as JSON without what is empty: half the size, and the same when read."""
    data: dict[str, Any] = to_json(evidence)
    for part in ("facts", "gaps", "hits"):
        data[part] = [{k: v for k, v in item.items() if v not in (None, "", {}) or k == "value"} for item in data[part]]
    return data


class Recorder:
    """Passes a feed on and keeps every sample as a file of 10 to 40 KB."""

    def __init__(self, feed: Feed, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        if any(f.endswith(".json") for f in os.listdir(folder)):
            raise DstuneError(
                say(f"{folder} holds a recording already", f"{folder} 中已有录制"),
                "",
                say("name a new folder", "请指定新的文件夹"),
            )
        self.live, self._feed, self._folder = feed.live, feed, folder
        self._count = 0
        self._trouble = ""

    @property
    def place(self) -> str:
        """Where from, and where to; in its place why nothing is kept when nothing is (80 columns have room for one)."""
        return f"✖ {self._trouble}" if self._trouble else f"{self._feed.place}  ● {self._count}"

    def sample(self) -> Evidence | None:
        """The feed's next sample, kept."""
        found = self._feed.sample()
        if found is not None:
            path = os.path.join(self._folder, f"{self._count:06}.json")
            try:
                with open(path + ".part", "w", encoding="utf-8") as f:
                    json.dump(compact(found), f, ensure_ascii=False, separators=(",", ":"))
                os.replace(path + ".part", path)
            except OSError as error:  # a full disk ends the recording for a while, never the watching
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                self._trouble = say("disk full", "磁盘已满") if full else error.strerror or str(error)
                with contextlib.suppress(OSError):
                    os.unlink(path + ".part")
            else:
                self._trouble = ""
                self._count += 1
        return found

    def close(self) -> None:
        """Ends the feed."""
        self._feed.close()
