"""What a kernel launch costs on this host, from a measured eager loop (`dstune bench --local … -o run.json`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dstune.catalog.models import ModelSpec
from dstune.errors import DstuneError
from dstune.lang import say
from dstune.plan.speed import host_launches

LEAST, MOST = 2.0, 200.0
"""Microseconds that a launch through Python may cost; outside them the run was no launch-bound loop."""


def launch_us(run: Mapping[str, Any], spec: ModelSpec, known: Mapping[int, ModelSpec]) -> float:
    """Microseconds a launch: the time between tokens of the run's single stream over the launches of its model.

    The model is the one of `known` (by parameter count) that the run counted, else `spec`, the one that is asked about. Raises
    `DstuneError` where the run has no eager transformers stream.
    """
    for trial in _trials(run):
        settings, itl = trial.get("settings") or {}, trial.get("itl_ms") or {}
        alone = (trial.get("workload") or {}).get("concurrency") == 1
        if alone and "transformers" in str(settings.get("server")) and itl.get("p50") and settings.get("device") != "cpu":
            model = known.get(int(settings.get("parameters") or 0), spec)
            cost = float(itl["p50"]) * 1e3 / host_launches(model, str(settings.get("attention") or ""))
            if LEAST <= cost <= MOST:
                return cost
    raise DstuneError(
        say("no eager loop in this run", "该结果里没有 eager 循环"),
        say("a single stream of transformers on a GPU is needed", "需要 transformers 在显卡上的单路结果"),
        "dstune bench --local DIR -c 1 -o run.json",
    )


def _trials(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = run.get("trials") or run.get("trial") or []
    listed = found if isinstance(found, list) else [found]
    return [t for t in listed if isinstance(t, Mapping)]
