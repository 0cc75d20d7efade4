"""What is read beside a load: the GPU ten times a second, and the server's own counters before, during and after it."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any

from dstune.errors import UnobservableError

POLL_S = 2.0
"""Seconds between two readings of /metrics during a load: each costs the server some milliseconds of its event loop."""
_GAUGES = {
    "running_max": r"(?:vllm:num_requests_running|sglang[:_]num_running_reqs|llamacpp:requests_processing|tgi_batch_current_size|chat_requests_running)",
    "waiting_max": r"(?:vllm:num_requests_waiting|sglang[:_]num_queue_reqs|llamacpp:requests_deferred|tgi_queue_size|chat_requests_waiting)",
    "kv_usage_max_pct": r"(?:vllm:(?:kv|gpu)_cache_usage_perc|sglang[:_]token_usage|llamacpp:kv_cache_usage_ratio|chat_cache_usage)",
}


class Beside:
    """`begin` when the load begins (after warm-up), `end` when it is over; `end` gives the parts `gpu` and `server` of a trial."""

    def __init__(self, base: str, headers: Sequence[tuple[str, str]], metrics: bool, verify_tls: bool = True) -> None:
        from dstune.probes.nvidia_timeline import Timeline

        self._base, self._headers, self._metrics, self._verify = base, dict(headers), metrics, verify_tls
        self._gpu = Timeline()
        self._texts: list[str] = []
        self._begin = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="metrics", daemon=True)

    def begin(self) -> None:
        """The load begins now."""
        import time

        if self._metrics:
            self._read()
            self._thread.start()
        self._begin = time.perf_counter()

    def end(self) -> dict[str, Any]:
        """The load is over."""
        import time

        from dstune.probes.nvidia_timeline import summary

        end = time.perf_counter()
        found: dict[str, Any] = {}
        cards = self._gpu.rows()
        if cards and (gpus := summary(cards, self._begin, end)):
            found["gpu"] = gpus
        self._over.set()
        if self._thread.ident:
            self._thread.join(5)
            self._read()
            if len(self._texts) > 1:
                found["server"] = counters(self._texts, end - self._begin)
        return found

    def _read(self) -> None:
        from dstune.load.detect import fetch

        try:
            status, _, body = fetch(f"{self._base}/metrics", self._headers, 3.0, self._verify)
        except UnobservableError:
            return
        if status == 200:
            self._texts.append(body.decode("utf-8", "replace"))

    def _poll(self) -> None:
        while not self._over.wait(POLL_S):
            self._read()


def counters(texts: Sequence[str], seconds: float) -> dict[str, Any]:
    """The server's own view of the time between the first and the last text: latencies in ms, tokens, and the highest of its gauges."""
    from dstune.load.evidence import COUNTED
    from dstune.probes.metrics import means, read_metrics

    facts = {f.name: f.value for f in read_metrics(texts[-1], "metrics", before=texts[0], seconds=seconds)}
    out: dict[str, Any] = {}
    for name, mean in means(texts[-1], texts[0]).items():
        out[f"{name}_ms"] = {"mean": mean} | {
            f"p{p}": facts[f"{name}_p{p}_ms"] for p in (50, 95, 99) if f"{name}_p{p}_ms" in facts
        }
    for name in COUNTED:
        if name in facts:
            out[name] = facts[name]
    for name, pattern in _GAUGES.items():
        found = re.compile(rf"^{pattern}(?:\{{[^}}]*\}})? ([\d.eE+-]+)$", re.M)
        read = [[float(v) for v in found.findall(t)] for t in texts]
        if any(read):
            out[name] = (
                round(100 * max(max(r, default=0.0) for r in read), 1) if name.endswith("pct") else round(max(map(sum, read)))
            )
    return out
