"""Evidence as aligned sections of 80 columns: a section per subject, then what could not be read and why."""

from __future__ import annotations

from collections.abc import Iterable

from dstune.lang import say
from dstune.model import Evidence, Fact, Gap, Value, family_of
from dstune.redact import redact
from dstune.report.text import WIDTH, cells, paint, wrap

_ORDER = (
    "gpu",
    "process",
    "driver",
    "cuda_toolkit",
    "torch",
    "python",
    "host",
    "disk",
    "container",
    "docker",
    "container_toolkit",
)
_TITLES = {
    "gpu": ("GPU", "显卡"),
    "process": ("GPU process", "GPU 进程"),
    "driver": ("Driver", "驱动"),
    "cuda_toolkit": ("CUDA toolkit", "CUDA 工具包"),
    "torch": ("PyTorch", "PyTorch"),
    "python": ("Python", "Python"),
    "host": ("Host", "主机"),
    "disk": ("Disk", "磁盘"),
    "container": ("Container", "容器"),
    "docker": ("Docker", "Docker"),
    "container_toolkit": ("NVIDIA container toolkit", "NVIDIA 容器工具包"),
    "model": ("Model", "模型"),
    "server": ("Server", "服务"),
}


def evidence_text(evidence: Evidence) -> str:
    """The whole evidence; facts that a subject repeats are shown once."""
    parts = [_section(s, [f for f in evidence.facts if f.subject == s]) for s in _subjects(evidence.facts)]
    if evidence.gaps:
        parts.append(_gaps(evidence.gaps))
    facts, gaps = len(evidence.facts), len(evidence.gaps)
    parts.append(say(f"{facts} facts, {gaps} could not be read.", f"共 {facts} 项，{gaps} 项未能读取。"))
    return "\n\n".join(parts)


def _subjects(facts: Iterable[Fact]) -> list[str]:
    found = dict.fromkeys(f.subject for f in facts)
    place = {family: i for i, family in enumerate(_ORDER)}
    return sorted(found, key=lambda s: (place.get(family_of(s), len(_ORDER)), family_of(s), s[len(family_of(s)) :].zfill(4)))


def _title(subject: str) -> str:
    family = family_of(subject)
    return f"{say(*_TITLES.get(family, (family, family)))} {subject[len(family) :]}".strip()


def _section(subject: str, facts: list[Fact]) -> str:
    rows = {f.name: shown(f.value) for f in facts}
    width = max(len(n) for n in rows)
    lines = [paint(f"{_title(subject)}", "bold")]
    for name, value in rows.items():
        start = f"  {name:<{width}}  "
        lines += _hanging(start, redact(value))
    return "\n".join(lines)


def _hanging(start: str, text: str) -> list[str]:
    """Text behind a label, its further lines below its first; a word longer than the line is broken."""
    room = WIDTH - cells(start)
    words = wrap(text, "", room).split("\n")
    cut = [w[i : i + room] for w in words for i in range(0, len(w) or 1, room)] if max(map(cells, words)) > room else words
    return [(start if i == 0 else " " * cells(start)) + line for i, line in enumerate(cut)]


def shown(value: Value) -> str:
    """A value for people: yes/no, lists with commas, numbers without needless digits."""
    if isinstance(value, bool):
        return say("yes", "是") if value else say("no", "否")
    if isinstance(value, list):
        return ", ".join(shown(v) for v in value) or say("none", "无")
    return say("unknown", "未知") if value is None else str(value)


def _gaps(gaps: Iterable[Gap]) -> str:
    """One entry per subject and reason."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for gap in gaps:
        grouped.setdefault((gap.subject, gap.reason, gap.hint), []).append(gap.name)
    lines = [paint(say("Could not be read", "未能读取"), "bold")]
    for (subject, reason, hint), names in grouped.items():
        what = say("everything", "全部") if names == ["*"] else ", ".join(n for n in names if n != "*")
        lines += _hanging("  ", redact(f"{subject}: {what}"))
        lines += _hanging("      ", redact(reason))
        if hint:
            lines += _hanging("      → ", redact(hint))
    return "\n".join(lines)
