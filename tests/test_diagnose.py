"""Roots first, consequences folded, unknown kept apart: on rules made for the purpose."""

import json
from pathlib import Path
from typing import Any

import pytest

from dstune.catalog import signatures as table
from dstune.catalog.rules import candidates, count, rule_of, rules
from dstune.derive import derive
from dstune.diagnose import diagnose, fill
from dstune.expr import UNKNOWN
from dstune.model import Document, Evidence, Fact, Hit, Rule, family_of, from_json
from dstune.readers import read_documents

EVIDENCE = Path(__file__).parent / "evidence"
EXAMPLES = Path(__file__).parents[1] / "examples"
T = {"en": "t", "zh": "标"}


def rule(cause: str, **more: Any) -> Rule:
    return rule_of(cause, {"title": T, "severity": "error", "why": T, "sources": ["test"], **more})


def hit(cause: str, line: int = 1, way: int = 0, part: int = 0, **groups: Any) -> Hit:
    return Hit(cause, way, part, "log", "server.log", line, f"line {line}", groups)


def causes(evidence: Evidence, *chosen: Rule) -> list[tuple[str, str, str]]:
    return [(f.cause, f.confidence, f.because) for f in diagnose(evidence, chosen).findings]


def test_text_alone_fires() -> None:
    assert causes(Evidence(hits=(hit("a"),)), rule("a", way=[{"log": "abcd"}])) == [("a", "high", "")]


@pytest.mark.parametrize("name", ["h200-idle", "h200-loaded"])
def test_rules_that_are_not_unpacked_would_say_nothing(name: str) -> None:
    recorded = json.loads((EVIDENCE / name / "ev.json").read_text(encoding="utf-8"))
    app = read_documents([Document("app.py", "app", (EXAMPLES / "gradio-naive" / "app.py").read_text(encoding="utf-8"))])
    log = (EXAMPLES / "logs" / "oom-at-load-other-process.log").read_text(encoding="utf-8")
    for seen in (from_json(Evidence, recorded), app, read_documents([Document("server.log", "log", log)])):
        evidence = derive(seen)
        few = candidates({h.cause for h in evidence.hits}, {f"{family_of(f.subject)}.{f.name}" for f in evidence.facts})
        assert len(few) < count() * 0.8
        assert diagnose(evidence) == diagnose(evidence, [rules()[c] for c in sorted(rules())])


def test_all_parts_must_match_and_absent_ones_must_not() -> None:
    both = rule("a", way=[{"log": ["abcd", "efgh"], "absent": ["ijkl"]}])
    assert causes(Evidence(hits=(hit("a"),)), both) == []
    assert causes(Evidence(hits=(hit("a"), hit("a", part=1))), both) == [("a", "high", "")]
    assert causes(Evidence(hits=(hit("a"), hit("a", part=1), hit("a", part=2))), both) == []


def test_condition_decides_and_unknown_is_never_a_pass() -> None:
    strict = rule("a", needs={"en": "the card", "zh": "显卡"}, way=[{"log": "abcd", "when": "gpu.compute_capability < 8.0"}])
    seen = Evidence(hits=(hit("a"),))
    old = Fact("gpu0", "compute_capability", "7.5")
    new = Fact("gpu0", "compute_capability", "9.0")
    assert causes(seen.plus([old]), strict) == [("a", "high", "")]
    assert causes(seen.plus([new]), strict) == []
    open_ = diagnose(seen, [strict])
    assert [u.cause for u in open_.unknown] == ["a"]
    assert open_.unknown[0].needs == "the card"
    wordless = rule("a", way=[{"log": "abcd", "when": "gpu.compute_capability < 8.0 and hit.n > 1"}])
    assert diagnose(Evidence(hits=(hit("a"),)), [wordless]).unknown[0].needs == "compute capability"
    assert open_.quiet == 0


def test_doubt_fires_lower_and_stays_open() -> None:
    doubtful = rule("a", needs=T, way=[{"log": "abcd", "when": "gpu.compute_capability < 8.0", "doubt": "low"}])
    found = diagnose(Evidence(hits=(hit("a"),)), [doubtful])
    assert [(f.cause, f.confidence) for f in found.findings] == [("a", "low")]
    assert [u.cause for u in found.unknown] == ["a"]


def test_unless_refutes_only_when_known() -> None:
    guarded = rule("a", way=[{"log": "abcd", "unless": "gpu.compute_capability >= 8.0"}])
    seen = Evidence(hits=(hit("a"),))
    assert causes(seen, guarded) == [("a", "high", "")]
    assert causes(seen.plus([Fact("gpu0", "compute_capability", "8.9")]), guarded) == []


def test_groups_of_the_hit_are_names() -> None:
    sized = rule(
        "a", message={"en": "{hit.n} of {hit.n}", "zh": "{hit.n}"}, way=[{"log": r"abcd (?P<n>\d+)", "when": "hit.n > 5"}]
    )
    assert causes(Evidence(hits=(hit("a", n=3),)), sized) == []
    assert diagnose(Evidence(hits=(hit("a", n=7),)), [sized]).findings[0].message == "7 of 7"


def test_consequences_fold_under_the_cause_that_explains_them() -> None:
    root = rule("root", explains=["late"], way=[{"log": "abcd"}])
    late = rule("late", way=[{"log": "efgh"}])
    generic = rule("generic", consequence=True, needs=T, way=[{"log": "ijkl"}])
    seen = Evidence(hits=(hit("generic", 1), hit("late", 2), hit("root", 9)))
    assert causes(seen, late, generic, root) == [("root", "high", ""), ("late", "high", "root"), ("generic", "low", "root")]


def test_a_lone_consequence_is_low_and_asks_for_more() -> None:
    generic = rule("generic", consequence=True, needs=T, way=[{"log": "ijkl"}])
    found = diagnose(Evidence(hits=(hit("generic"),)), [generic])
    assert [(f.cause, f.confidence) for f in found.findings] == [("generic", "low")]
    assert [u.cause for u in found.unknown] == ["generic"]


def test_circles_of_explanation_end() -> None:
    a = rule("a", explains=["b"], way=[{"log": "abcd"}])
    b = rule("b", explains=["a"], way=[{"log": "efgh"}])
    found = causes(Evidence(hits=(hit("a", 2), hit("b", 1))), a, b)
    assert len(found) == 2
    assert [f for f in found if f[2] == ""], "one of them stays a root"


def test_earlier_and_higher_rank_come_first() -> None:
    a, b = rule("a", way=[{"log": "abcd"}]), rule("b", way=[{"log": "efgh"}])
    seen = Evidence(hits=(hit("a", 9), hit("b", 2)))
    assert [c for c, *_ in causes(seen, a, b)] == ["b", "a"]
    assert [c for c, *_ in causes(seen, rule("a", rank=3, way=[{"log": "abcd"}]), b)] == ["a", "b"]


def test_each_card_is_judged_by_itself() -> None:
    hot = rule(
        "hot", message={"en": "{gpu.temperature_c}", "zh": "{gpu.temperature_c}"}, way=[{"when": "gpu.temperature_c > 90"}]
    )
    seen = Evidence((Fact("gpu0", "temperature_c", 50), Fact("gpu1", "temperature_c", 95)))
    found = diagnose(seen, [hot]).findings
    assert [(f.subject, f.message) for f in found] == [("gpu1", "95")]


def test_fill_drops_optional_parts() -> None:
    def look(name: str) -> Any:
        return {"a.x": 1.5}.get(name, UNKNOWN)

    assert fill("v {a.x:.1f}[[, of {b.y}]][[, again {a.x}]].", look) == "v 1.5, again 1.5."
    assert fill("{b.y}", look) == "?"


def test_the_rarest_fixed_text_is_looked_for() -> None:
    common = "INFO HTTP/0.0 request done\n"
    assert table.literals(r"HTTP/1\.1 \d+ [Oo]dd things? request", "test", common) == (
        ("dd thing", ((" request",), ("HTTP/1.1 ",))),
    )


def test_literal_is_required() -> None:
    with pytest.raises(Exception, match="fixed text"):
        table.literals(r"\d+ of \d+", "test")
    assert table.literals(r"(?:alpha beta|gamma delta) \d", "test") == (("alpha beta ", ()), ("gamma delta ", ()))


def test_what_makes_a_program_fail_is_an_error() -> None:
    """A float32 load alone works badly; where the card overflowed by it, it is the error."""
    app = Document(
        "app.py", "app", 'import torch\nmodel = AutoModelForCausalLM.from_pretrained("m", torch_dtype=torch.float32).cuda()\n'
    )
    log = Document(
        "a.log", "log",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 MiB. GPU 0 has a total capacity of 24.00 GiB of which 12.00 MiB is free. Including "
        "non-PyTorch memory, this process has 23.90 GiB memory in use. Of the allocated memory 23.13 GiB is allocated by PyTorch, and 127.09 MiB is reserved by PyTorch but unallocated.",
    )  # fmt: skip
    alone = diagnose(read_documents([app])).findings[0]
    failed = diagnose(derive(read_documents([app, log]))).findings[0]
    assert (alone.cause, alone.severity) == ("oom-weights-fp32", "warning")
    assert (failed.cause, failed.severity) == ("oom-weights-fp32", "error")


LONE = Hit("lone", 0, 0, "app", "app.py", 3, "gr.Interface(ask, 'state')")
DIED = Hit("died", 0, 0, "log", "server.log", 75, "EngineCore died")
LENGTH = Hit("length", 0, 0, "log", "server.log", 72, "max seq len")


def _three() -> tuple[Rule, ...]:
    return (
        rule("lone", rank=3, way=[{"app": "abcd"}]),
        rule("length", way=[{"log": "efgh"}]),
        rule("died", rank=-4, consequence=True, way=[{"log": "ijkl"}]),
    )


def test_a_page_explains_nothing_in_the_log_of_an_engine() -> None:
    files = (
        Fact("transformers", "device_map", "auto", "app.py", 2, ""),
        Fact("vllm", "version", "0.32.0", "server.log", 1, ""),
    )
    found = causes(Evidence(files, hits=(LONE, DIED, LENGTH)), *_three())
    assert ("died", "low", "length") in found
    assert ("died", "low", "") in causes(Evidence(files, hits=(LONE, DIED)), *_three())
    # its own log, of no engine
    assert ("died", "low", "lone") in causes(Evidence(files[:1], hits=(LONE, DIED)), *_three())


def test_the_cause_in_the_same_log_comes_before_one_in_another_file() -> None:
    assert ("died", "low", "length") in causes(Evidence(hits=(LONE, DIED, LENGTH)), *_three())


def test_what_a_server_answers_now_comes_before_what_its_log_said() -> None:
    """Also where a launch script names the model otherwise than the log does."""
    queue = rule("queue", message={"en": "{server.waiting}", "zh": "{server.waiting}"}, way=[{"when": "server.waiting > 0"}])
    facts = (
        Fact("vllm", "model", "org/small", "launch.sh", 2),
        Fact("server", "waiting", 24, "GET http://127.0.0.1:8000/metrics"),
        Fact("vllm", "model", "/data/hf", "server.log", 1),
        Fact("server", "waiting", 0, "server.log", 9),
    )
    assert [f.message for f in diagnose(Evidence(facts), [queue]).findings] == ["24"]


@pytest.mark.parametrize(("model", "because"), [("Qwen/Qwen2.5-7B-Instruct", ""), ("org/R1-1.5B", "shm")])
def test_a_file_of_another_server_explains_nothing(model: str, because: str) -> None:
    files = (
        Fact("vllm", "model", model, "compose.yaml", 5, ""),
        Fact("vllm", "model", "/data/R1-1.5B", "server.log", 1, ""),
    )
    shm = Hit("shm", 0, 0, "container", "compose.yaml", 3, "image: vllm")
    rules = (rule("shm", explains=["died"], way=[{"container": "abcd"}]), _three()[2])
    assert ("died", "low", because) in causes(Evidence(files, hits=(shm, DIED)), *rules)


@pytest.mark.parametrize(
    ("url", "port", "because"),
    [
        ("http://h:9001", None, ""),
        ("http://h:8000", None, "length"),
        ("http://h:9001", 9001, "length"),
        ("http://h:8000", 9001, ""),
    ],
)
def test_a_stopped_address_is_explained_by_the_log_of_its_own_server(url: str, port: int | None, because: str) -> None:
    facts = [Fact("vllm", "version", "0.32.0", "server.log", 1, ""), Fact("server", "reachable", False, url)]
    facts += [Fact("vllm", "port", port, "server.log", 2, "")] if port else []
    rules = (
        rule("length", explains=["stopped"], way=[{"log": "efgh"}]),
        rule("stopped", way=[{"when": "server.reachable == False"}]),
    )
    assert ("stopped", "high", because) in causes(Evidence(tuple(facts), hits=(LENGTH,)), *rules)


def test_parts_of_a_text_that_are_optional() -> None:
    known = {"vllm.model": "org/m"}.get

    def lookup(name: str) -> object:
        return known(name, UNKNOWN)

    assert fill("serve[[ {vllm.model}]] on[[ {gpu.name}]]", lookup) == "serve org/m on"  # type: ignore[arg-type]
    assert fill("serve [[{vllm.model}||MODEL]] [[{gpu.name}||CARD]]", lookup) == "serve org/m CARD"  # type: ignore[arg-type]
    assert fill(r"sed 's/[[:blank:]]*$//'", lookup) == r"sed 's/[[:blank:]]*$//'"  # type: ignore[arg-type]
