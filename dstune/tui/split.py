"""A card's memory by what holds it: weights, KV cache and the rest of model servers, other processes, what no process accounts for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.tui.state import State

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Part:
    """`kind` is one of `draw.PART_STYLES`; `estimated` where the size follows from the model's shape and was not read."""

    kind: str
    mib: float
    estimated: bool = False

    @property
    def label(self) -> str:
        """What a person reads."""
        words = {
            "weights": say("weights", "权重"), "kv": "KV", "other": say("engine", "引擎其余"), "others": say("others", "其他进程"),
            "unlisted": say("unlisted", "未列出"), "used": say("used", "已用"),
        }  # fmt: skip
        return ("~" if self.estimated else "") + words[self.kind]


def split(state: State, subject: str) -> list[Part]:
    """Parts that sum to the used memory, largest meaning first. One part `used` where processes are not readable."""
    used = state.number(subject, "memory_used_mib")
    if not used:
        return []
    index = int(subject.removeprefix("gpu") or 0)
    ours = others = 0.0
    server = ""
    for process in state.processes(index):
        size = state.number(process, "memory_mib") or 0.0
        engine = state.value(process, "engine")
        if engine and state.value(process, "ours") is not False:
            ours += size
            server = server or _server_of(state, str(engine))
        else:
            others += size
    if not ours and not others:
        return [Part("used", used)]
    found: list[Part] = []
    rest = ours
    weights, estimated = _weights(state, server)
    if ours and weights and weights <= ours:
        found.append(Part("weights", weights, estimated))
        rest -= weights
        kv, estimated = _kv(state, server)
        kv = min(kv, rest) if kv <= 1.05 * rest else 0.0  # an estimate may be some per cent off
        if kv:
            found.append(Part("kv", kv, estimated))
            rest -= kv
    unlisted = used - ours - others
    found += [Part("other", rest), Part("others", others), Part("unlisted", unlisted if unlisted > 64 else 0.0)]
    return [p for p in found if p.mib >= 1]


def _server_of(state: State, engine: str) -> str:
    servers = state.subjects("server")
    return next((s for s in servers if state.value(s, "engine") == engine), servers[0] if len(servers) == 1 else "")


def _weights(state: State, server: str) -> tuple[float, bool]:
    """MiB on one card, as the engine's log says, else by the model's shape."""
    for family, name in (("vllm", "weights_mib"), ("llamacpp", "gpu_weights_mib")):
        if read := state.number(family, name):
            return read, False
    return state.sizes.get(server, (0.0, 0.0))[0], True


def _kv(state: State, server: str) -> tuple[float, bool]:
    """MiB of the pool (or cache) on one card."""
    for family, name in (("vllm", "kv_available_mib"), ("llamacpp", "kv_mib")):
        if read := state.number(family, name):
            return read, False
    tokens = state.number(server, "kv_tokens")
    return (tokens * state.sizes.get(server, (0.0, 0.0))[1] / MIB if tokens else 0.0), True


def sizes(state: State) -> dict[str, tuple[float, float]]:
    """For each server whose model the catalogue knows: MiB of weights on one card, KV bytes of one token."""
    found = {}
    for server in state.subjects("server"):
        if state.value(server, "engine") in ("llama.cpp", "ollama") or "quantization" in str(
            state.value(server, "command") or ""
        ):
            continue  # the shape alone does not tell how wide these weights are
        models = state.value(server, "models")
        names = [state.value(server, "model_root"), *(models if isinstance(models, list) else [])]
        for name in names:
            known = (
                _known(str(name), str(state.value(server, "engine") or ""), str(state.value(server, "version") or ""))
                if name
                else None
            )
            if known:
                cards = len(
                    {
                        state.value(p, "gpu")
                        for p in state.processes()
                        if state.value(p, "engine") == state.value(server, "engine")
                    }
                )
                found[server] = (known[0] / max(1, cards), known[1] / max(1, cards))
                break
    return found


@lru_cache(maxsize=32)
def _known(name: str, engine: str, version: str) -> tuple[float, float] | None:
    from dstune.catalog import models
    from dstune.plan.memory import kv_per_token
    from dstune.plan.quant import weights
    from dstune.plan.rows import checkpoint_dtype

    try:
        spec = models.get(name)
        return weights(spec, checkpoint_dtype(spec, engine, version), spec.quant).total / MIB, kv_per_token(spec)
    except (DstuneError, KeyError, ValueError):
        return None
