"""A Python program (file, notebook, snippet) → its settings and what is wrong or notable in it.

Only `ast`: reading costs milliseconds. Commented-out code is not code. What cannot be parsed is a Gap, the rest is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dstune.lang import say
from dstune.model import Document, Fact, Gap
from dstune.readers import app_client, app_generate, app_hidden, app_load, app_serve
from dstune.readers.app_seen import Seen
from dstune.readers.app_settings import settings
from dstune.readers.app_source import source_of

_PINNED = re.compile(
    r"(?<![\w-])(transformers|gradio|torch|vllm|openai|accelerate)(?:\[[\w,]*\])?\s*(==|>=|~=)\s*(\d+(?:\.\d+)*)", re.I
)
SMELLS = (app_load.smells, app_generate.smells, app_serve.smells, app_client.smells, app_hidden.smells)


def read(document: Document) -> Iterable[Fact | Gap]:
    """Settings, `app.*` facts and gaps of one program, each fact once per line."""
    source = source_of(document)
    if source.too_long:
        yield Gap(
            "app",
            "*",
            say(f"{document.path} is too long for a program", f"{document.path} 作为程序过长"),
            say("give the file that loads and serves the model", "请给出加载模型并提供服务的文件"),
        )
        return
    for first, last in source.lost:
        place = f"{document.path}:{first}-{last}"
        reason = (
            say(f"{document.path} is no whole notebook", f"{document.path} 不是完整的 notebook")
            if source.notebook and not source.lines
            else say(f"{place} is no Python that can be parsed", f"{place} 无法按 Python 解析")
        )
        yield Gap("app", "*", reason, say("give the whole file", "请给出完整文件"))
    if not source.trees:
        return
    seen = Seen(source)
    given: set[tuple[str, str, object, int | None]] = set()
    for item in (*_about(seen), *settings(seen), *(f for part in SMELLS for f in part(seen))):
        if isinstance(item, Fact):
            key = (item.subject, item.name, str(item.value), item.line)
            if key in given:
                continue
            given.add(key)
        yield item


def _about(seen: Seen) -> Iterator[Fact]:
    """What kind of program this is."""
    yield seen.fact("app", "complete", seen.complete, 0)
    yield seen.fact("app", "client_only", seen.client_only, 0)
    for name, sign, version in _PINNED.findall(seen.source.requirements):
        # a lower bound decides only what newer versions do
        if sign in ("==", "~=") or version.split(".")[0] >= "5":
            yield seen.fact("requirements", name.lower(), version, 1)
