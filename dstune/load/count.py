"""Tokens of a text by the model's own tokenizer, for servers that send no `usage`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from dstune.errors import DstuneError
from dstune.lang import say
from dstune.load.answers import Reply


def counter(folder: str) -> Callable[[str], int]:
    """Counts by `tokenizer.json` of a model directory. Raises `DstuneError` where there is none or the library is missing."""
    path = os.path.join(folder, "tokenizer.json") if os.path.isdir(folder) else folder
    if not os.path.isfile(path):
        raise DstuneError(
            say(f"{folder} holds no tokenizer.json", f"{folder} 中没有 tokenizer.json"),
            "",
            say("give the model's directory", "请给出模型目录"),
        )
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise DstuneError(
            say("counting tokens needs the tokenizers package", "统计 token 需要 tokenizers 包"), "", "pip install tokenizers"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises bare Exception for a file that it cannot read
        raise DstuneError(
            say(f"{path} is no tokenizer", f"{path} 不是分词器文件"), str(error)[:200], say("check the file", "检查该文件")
        ) from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def recount(replies: Sequence[Reply], count: Callable[[str], int]) -> None:
    """Replaces counts of chunks or events by counts of tokens; what the server said stays. The end token, which `usage` counts, has no text."""
    for reply in replies:
        if reply.counted in ("chunks", "events"):
            reply.output_tokens, reply.counted = count(reply.reasoning + reply.text), "tokenizer"
