"""Recommend: engine x number format x cards, shaped to the memory, ranked for the goal; the choice with what was rejected.

16 bit is kept where it fits: 8 bit and 4 bit formats are tried only when it does not, or when an inter-token limit asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dstune.catalog.gpus import Gpu, rows
from dstune.catalog.models import ModelSpec
from dstune.errors import DstuneError
from dstune.lang import say
from dstune.model import Text
from dstune.model.plan import Plan, Workload
from dstune.plan import physics, quant
from dstune.plan.advice import client_hint, sampling
from dstune.plan.ask import MIB, Ask, visible_mib
from dstune.plan.choices import rejected, settings
from dstune.plan.estimate import predictions
from dstune.plan.fit import (
    HARDWARE_MARGIN_MIB,
    can_compile,
    driver_floor,
    dtype_reason,
    engine_reason,
    fits,
    newest_vllm,
    scheme_reason,
    torch_build,
)
from dstune.plan.launch import gguf_repo, launch, quantised_repo
from dstune.plan.level import levelled, within
from dstune.plan.memory import Memory, graph_bytes, memory
from dstune.plan.pareto import alternatives, beaten
from dstune.plan.speed import Speed, speed

TIERS: tuple[tuple[str, ...], ...] = (("", "F16"), ("fp8", "Q8_0"), ("awq-int4", "bnb-nf4", "Q4_K_M"))
"""Number formats by what they cost: nothing; near nothing; about 6 % of a 1.5B's score."""

PREFERENCE = ("vllm", "llama.cpp", "transformers", "sglang")
CLOSE = 0.75
"""An engine earlier in `PREFERENCE` is taken when it reaches this part of the best score: it batches, streams and is served."""

FP8_WEIGHTS = (8, 0)
"""Compute capability from which vLLM quantises to fp8 on load (weight-only Marlin kernels before Ada; compat.toml)."""

MAX_UTILIZATION, UNIFIED_UTILIZATION = 0.92, 0.8
DEFAULT_CONTEXT = {True: 8192, False: 4096}
SHORT = 2048


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asks for. `others_mib`: memory that is already taken; `limit_mib`: the most that the plan may take (0: all);
    `tiers`: rows of `TIERS` that may be chosen."""

    gpu: Gpu
    model: ModelSpec
    gpus: int = 1
    engine: str = "auto"
    context: int = 0
    limit_mib: float = 0.0
    others_mib: float = 0.0
    version: str = ""
    name: str = ""
    driver_cuda: str = ""
    asked_concurrency: bool = False
    tiers: tuple[int, ...] = (0, 1, 2)
    workload: Workload = field(default_factory=Workload)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shaped configuration with its memory, speed and quality tier."""

    ask: Ask
    memory: Memory
    speed: Speed
    tier: int
    meets: bool


def recommend(wish: Wish) -> Plan:
    """The plan for a wish. Raises `DstuneError` when nothing fits, with what would."""
    found = list(candidates(wish))
    if not found:
        raise _nothing(wish)
    best = choose(wish, found)
    if wish.workload.goal == "throughput" and not wish.asked_concurrency:  # each took as many sequences as it could hold
        found = levelled(best, found, wish)
        best = choose(wish, found)
        found = levelled(best, found, wish)
    return planned(best, found, wish)


def planned(best: Candidate, found: list[Candidate], wish: Wish) -> Plan:
    """The plan for a chosen candidate, beside the others that fit."""
    plan_settings = (*settings(best, wish), *sampling(wish.model, best.ask.engine))
    notes: list[Text] = [hint] if (hint := client_hint(wish.model, best.ask.output)) else []
    if wish.others_mib >= 1:
        en = f"{wish.others_mib:,.0f} MiB of this card are taken by others; the plan takes what is free."
        notes.append(_text(en, f"该卡已被占用 {wish.others_mib:,.0f} MiB，方案只用空闲部分。"))
    if not best.meets:
        notes.append(
            _text(
                "no configuration of this card meets the limits; this one comes nearest",
                "该卡没有配置能满足时延要求，这是最接近的一个",
            )
        )
    if best.ask.engine == "vllm" and wish.gpu.vendor == "NVIDIA":
        cuda, driver = driver_floor(best.ask.version)
        if cuda and not wish.driver_cuda:
            en = f"vLLM {best.ask.version} wheels carry CUDA {cuda}: they need driver {driver} or newer (Linux)."
            notes.append(_text(en, f"vLLM {best.ask.version} 安装包自带 CUDA {cuda}，需要 {driver} 或更新的驱动（Linux）。"))
    if best.ask.engine == "transformers" and (build := torch_build(wish.gpu)):
        notes.append(_text(f"Newest torch with code for this card: {build}.", f"含该卡代码的最新 torch：{build}。"))
    if wish.gpu.confidence == "low":
        notes.append(_text("The datasheet row of this card is of low confidence.", "这张卡的规格数据可信度较低。"))
    return Plan(
        engine=best.ask.engine,
        engine_version=best.ask.version,
        model=wish.name or wish.model.id,
        gpu=wish.gpu.label,
        gpus=best.ask.gpus,
        settings=plan_settings,
        memory=best.memory.lines,
        predictions=predictions(best.ask, best.memory, best.speed),
        rejected=(*rejected(best, found, wish), *beaten(best, found, wish)),
        pareto=alternatives(best, found, wish),
        notes=tuple(notes),
        launch=launch(best.ask.engine, served_name(best.ask, wish), plan_settings),
        workload=replace(
            wish.workload, concurrency=best.ask.batch, prompt_tokens=best.ask.prompt, output_tokens=best.ask.output
        ),
    )


def served_name(ask: Ask, wish: Wish) -> str:
    """The checkpoint to load: the asked one, or the upload of the chosen format that the catalogue knows."""
    name = wish.name or wish.model.id
    if ask.engine == "llama.cpp":
        repo = gguf_repo(wish.model.aliases)
        return f"-hf {repo}:{ask.scheme}" if repo else f"-m {wish.model.short}-{ask.scheme}.gguf"
    if ask.scheme == "awq-int4" and not wish.model.quant:
        return quantised_repo(wish.model.aliases, r"awq|gptq-int4|w4a16") or name
    return name


def candidates(wish: Wish) -> Iterator[Candidate]:
    """Every configuration that exists for the card and fits."""
    for engine, version, ask, mem, ok in considered(wish):
        if engine_reason(engine, wish.gpu, version):
            continue
        if ok and (not wish.limit_mib or mem.total_mib <= wish.limit_mib + 1):
            yield _judge(ask, mem, _tier(ask, wish), wish)


def considered(wish: Wish) -> Iterator[tuple[str, str, Ask, Memory, bool]]:
    """(engine, version, configuration, memory, whether it fits) of every engine x format x cards that exists."""
    for engine in PREFERENCE[:3] if wish.engine == "auto" else (wish.engine,):
        version = wish.version or (newest_vllm(wish.gpu, wish.driver_cuda) if engine == "vllm" else "")
        if engine_reason(engine, wish.gpu, version):
            continue
        for tier, schemes in enumerate(TIERS):
            for scheme in schemes if tier in wish.tiers else ():
                if not _available(scheme, engine, wish, version):
                    continue
                for cards in dict.fromkeys((1, wish.gpus if engine != "transformers" else 1)):
                    ask = shape(engine, version, scheme, cards, wish)
                    ok, mem = fits(ask)
                    yield engine, version, ask, mem, ok


def _tier(ask: Ask, wish: Wish) -> int:
    """Row of `TIERS` that the chosen format stands in; a checkpoint's own format costs nothing more."""
    if wish.model.quant and ask.scheme == wish.model.quant:
        return 0
    return next((n for n, schemes in enumerate(TIERS) if ask.scheme in schemes), 0)


def _available(scheme: str, engine: str, wish: Wish, version: str) -> bool:
    own = wish.model.quant
    if own and own != "gguf":
        return scheme == "" and engine != "llama.cpp" and scheme_reason(own, engine, wish.gpu, version) is None
    if scheme == "" and engine == "llama.cpp":
        return False
    if scheme == "bnb-nf4" and engine != "transformers":
        return False
    if engine == "transformers" and scheme in ("fp8", "awq-int4"):
        return False
    if scheme == "fp8" and wish.gpu.cc < FP8_WEIGHTS:
        return False
    if scheme == "awq-int4" and not quantised_repo(wish.model.aliases, r"awq|gptq-int4|w4a16"):
        return False
    return scheme_reason(scheme, engine, wish.gpu, version) is None


def shape(engine: str, version: str, scheme: str, cards: int, wish: Wish) -> Ask:
    """A configuration with context, batch limits and memory share chosen for the card."""
    model, work = wish.model, wish.workload
    context = wish.context or min(model.context, DEFAULT_CONTEXT[model.reasoning])
    dtype = "bfloat16" if model.dtype != "float16" else "float16"
    if dtype_reason(dtype, wish.gpu) or (wish.gpu.vendor == "AMD" and engine == "llama.cpp"):
        dtype = "float16"
    prompt = min(work.prompt_tokens, context // 2)
    output = min(work.output_tokens, context - prompt)
    batch = max(1, work.concurrency)
    ask = Ask(
        engine, wish.gpu, model, version, cards, dtype, scheme or model.quant, prompt, output, batch,
        max_len=context, others_mib=wish.others_mib,
    )  # fmt: skip
    if engine == "vllm":
        return _shape_vllm(ask, wish)
    if engine == "sglang":
        room = (
            ask.total
            - wish.others_mib
            - physics.value("common", "context")
            - physics.value("sglang", "reserve")
            - HARDWARE_MARGIN_MIB
        )
        return replace(ask, utilization=max(0.1, min(0.9, int(100 * room / ask.total) / 100)), others_mib=wish.others_mib)
    if engine == "llama.cpp":
        attention = "on" if wish.gpu.cc >= (7, 0) or wish.gpu.vendor == "AMD" else ""
        return replace(ask, attention=attention, parallel=batch, split="layer" if cards > 1 else "")
    static = batch <= 8 and not ask.scheme.startswith("bnb") and can_compile(wish.gpu)
    return replace(ask, cache="static" if static else "dynamic", attention="sdpa")


def _shape_vllm(ask: Ask, wish: Wish) -> Ask:
    throughput = wish.workload.goal == "throughput" and not wish.asked_concurrency
    seqs = 256 if throughput else max(8, _power(2 * ask.batch))
    usable = min(wish.limit_mib or ask.total, ask.total - wish.others_mib)
    counted = physics.value("vllm", "graphs_counted", ask.version)
    cap = UNIFIED_UTILIZATION if ask.gpu.unified else MAX_UTILIZATION
    for _ in range(6):
        trial = replace(ask, max_seqs=seqs, others_mib=0.0)
        outside = physics.value("common", "context") + (0 if counted else graph_bytes(trial) / MIB)
        room = usable - outside - (0 if wish.limit_mib else HARDWARE_MARGIN_MIB)
        share = min(cap, room / ask.total)
        tight = wish.workload.goal == "memory" or ask.gpu.unified  # memory that nobody else uses is free, the CPU's is not
        if tight:
            tokens = max(ask.max_len, ask.batch * (ask.prompt + ask.output)) if not ask.gpu.unified else seqs * ask.max_len
            share = min(share, _least_share(trial, tokens))
        share = max(0.01, (math.ceil if tight and share < cap else math.floor)(100 * share) / 100)
        trial = replace(trial, utilization=share)
        mem = memory(trial)
        holds = (mem.kv_tokens or 0) / max(1, trial.prompt + trial.output)
        if holds >= seqs or seqs <= 8:
            break
        seqs = max(8, _power(int(holds) + 1) // 2) if holds < seqs / 2 else seqs
        if holds >= seqs:
            trial = replace(trial, max_seqs=seqs)
            break
    batch = ask.batch if not throughput else int(max(1, min(seqs, holds)))
    return replace(trial, batch=batch, max_seqs=seqs)


def _least_share(ask: Ask, tokens: float) -> float:
    """The smallest gpu_memory_utilization whose pool holds this many tokens."""
    whole = memory(replace(ask, utilization=1.0))
    per_token = (whole.kv_mib / whole.kv_tokens) if whole.kv_tokens else 0
    return (ask.total - whole.kv_mib + per_token * (tokens * 1.02 + 64)) / ask.total


def _power(n: int) -> int:
    return 1 << max(0, (n - 1).bit_length())


def _judge(ask: Ask, mem: Memory, tier: int, wish: Wish) -> Candidate:
    work = wish.workload
    spd = speed(ask)
    if not within(spd, work) and not wish.asked_concurrency:  # fewer at once until the limits hold
        batch = ask.batch
        while batch > 1 and not within(spd, work):
            batch //= 2
            ask = replace(ask, batch=batch, max_seqs=max(1, batch) if ask.max_seqs else 0)
            spd = speed(ask)
    return Candidate(ask, mem, spd, tier, within(spd, work))


def choose(wish: Wish, found: list[Candidate]) -> Candidate:
    """The candidate for the goal: limits met first, then the least lossy format, then the goal's score."""
    goal = wish.workload.goal

    def score(c: Candidate) -> float:
        if goal == "memory":
            return -c.memory.total_mib
        return c.speed.total if goal == "throughput" else c.speed.decode

    pool = [c for c in found if c.meets] or found
    if goal == "memory":
        tier = min(c.tier for c in pool)
        pool = (
            [c for c in pool if c.tier <= max(tier, 1)] if wish.engine == "llama.cpp" else [c for c in pool if c.tier == tier]
        )
        return max(pool, key=score)
    tier = min(c.tier for c in pool)
    pool = [c for c in pool if c.tier == tier]
    fewest = min(c.ask.gpus for c in pool)
    if goal != "latency":
        pool = [c for c in pool if c.ask.gpus == fewest]
    best = max(score(c) for c in pool)
    for engine in PREFERENCE:
        mine = [c for c in pool if c.ask.engine == engine and score(c) >= CLOSE * best]
        if mine:
            return _fewest_cards(mine, score)
    return max(pool, key=score)


def _fewest_cards(pool: list[Candidate], score) -> Candidate:  # type: ignore[no-untyped-def]
    """Of one engine's candidates the one on fewer cards, unless more cards are a third faster."""
    ordered = sorted(pool, key=lambda c: c.ask.gpus)
    pick = ordered[0]
    for other in ordered[1:]:
        if score(other) > 1.33 * score(pick):
            pick = other
    return pick


def _nothing(wish: Wish) -> DstuneError:
    """Why nothing fits: no engine runs, or the least memory that any format takes and the smallest card that has it."""
    engines = PREFERENCE if wish.engine == "auto" else (wish.engine,)
    reasons = [r for e in engines if (r := engine_reason(e, wish.gpu, wish.version))]
    name = wish.name or wish.model.id
    if len(reasons) == len(engines):
        return DstuneError(
            say(f"no engine for {wish.gpu.label}", f"没有引擎支持 {wish.gpu.label}"),
            say(reasons[0]["en"], reasons[0]["zh"]),
            say("try another card, or --engine llama.cpp", "换一张卡，或试 --engine llama.cpp")
            if wish.gpu.supported and wish.engine != "auto"
            else say("try another card", "请换一张卡"),
        )
    least = _least_mib(wish)
    free = min(wish.limit_mib or visible_mib(wish.gpu), visible_mib(wish.gpu) - wish.others_mib)
    bigger = sorted(
        (g for g in rows() if g.vendor == "NVIDIA" and visible_mib(g) > least + HARDWARE_MARGIN_MIB), key=lambda g: g.memory_gib
    )
    hint = bigger[0].label if bigger else say("several cards", "多卡")
    return DstuneError(
        say(
            f"{name} does not fit in {free / 1024:.1f} GiB of {wish.gpu.label}",
            f"{name} 放不进 {wish.gpu.label} 的 {free / 1024:.1f} GiB",
        ),
        say(
            f"the smallest format that runs there takes {least / 1024:.1f} GiB with {SHORT} tokens of context",
            f"可用的最小格式在 {SHORT} token 上下文下也要 {least / 1024:.1f} GiB",
        ),
        say(
            f"a shorter --context, a smaller model, or a card such as {hint}",
            f"缩短 --context、换更小的模型，或用 {hint} 这样的卡",
        ),
    )


def _least_mib(wish: Wish) -> float:
    small = replace(wish, context=SHORT, workload=replace(wish.workload, goal="memory", concurrency=1))
    least = float("inf")
    for engine in PREFERENCE[:3] if wish.engine == "auto" else (wish.engine,):
        for schemes in (TIERS[t] for t in wish.tiers):
            for scheme in schemes:
                if _available(scheme, engine, small, wish.version) and not engine_reason(engine, wish.gpu, wish.version):
                    ask = shape(engine, wish.version, scheme, wish.gpus, small)
                    need = memory(replace(ask, others_mib=0.0))
                    least = min(least, need.total_mib - min(0.0, need.kv_mib if need.kv_tokens == 0 else 0.0))
    return least if least < float("inf") else quant.weights(wish.model, "float16").total / MIB


def _text(en: str, zh: str) -> Text:
    return {"en": en, "zh": zh}
