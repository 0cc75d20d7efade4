"""Colours by name, for a dark and a light screen, and which part of a memory bar has which. Parts that stand in one bar never share one."""

from __future__ import annotations

from rich.terminal_theme import TerminalTheme


def _theme(background: str, text: str, normal: str, bright: str) -> TerminalTheme:
    return TerminalTheme(_rgb(background), _rgb(text), [_rgb(c) for c in normal.split()], [_rgb(c) for c in bright.split()])


def _rgb(code: str) -> tuple[int, int, int]:
    return int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16)


DARK = _theme(
    "0c0c0c", "d9d9d9",
    "1a1a1a ff5c68 8fd434 ecc83f 5b93ff c671f0 4fd0e6 c9c9c2",
    "8a8578 ff9a4d 2fb58c d9d68f 9fb6d8 ff8fc4 a6efe0 f6f6ef",
)  # fmt: skip
"""The terminal colours on a dark screen: textual's own have one value for red and magenta."""
LIGHT = _theme(
    "f7f7f7", "000000",
    "000000 b3262d 3a7d22 9c7c00 2f59c4 8a37b0 00789e 8a8a8a",
    "6d6a60 d04a00 007a5e 5a3410 5a7391 c2377f 2f9c8f 3c3c3c",
)  # fmt: skip

PART_STYLES = {
    "weights": "magenta",
    "kv": "blue",
    "other": "cyan",
    "rest": "red",
    "others": "yellow",
    "unlisted": "bright_black",
    "used": "green",
}
"""Parts of a card's memory in the Overview."""
PART_MARKS = {"weights": "W", "kv": "K", "other": "#", "rest": "?", "others": "o", "unlisted": "u", "used": "#"}

PLAN_PARTS = {
    "weights": ("magenta", "W"),
    "KV cache": ("blue", "K"),
    "KV cache pool": ("blue", "K"),
    "CUDA context": ("cyan", "C"),
    "activations (prefill)": ("green", "A"),
    "activations (profile run)": ("green", "A"),
    "graphs and activations": ("green", "A"),
    "compute buffer": ("green", "A"),
    "compiler buffers": ("bright_red", "B"),
    "batch buffers": ("bright_red", "B"),
    "decode buffers": ("bright_red", "D"),
    "CUDA graphs": ("bright_magenta", "G"),
    "allocator slack": ("bright_magenta", "S"),
    "outside torch": ("bright_yellow", "T"),
    "cuBLAS workspace": ("bright_yellow", "Q"),
    "attention scores": ("red", "X"),
    "logits": ("bright_green", "L"),
    "sampler and logits (profile run)": ("bright_green", "L"),
    "rotary tables": ("bright_blue", "R"),
    "other processes": ("yellow", "o"),
}
"""Style and letter of the parts of a plan; those that the Overview has too look as they do there."""
_SPARE = (("white", "#"), ("bright_cyan", "+"))


def plan_part(name: str) -> tuple[str, str]:
    """Style and letter of a part of a plan: the same whatever else is in the bar, so that turning a knob recolours nothing."""
    return PLAN_PARTS.get(name, _SPARE[sum(map(ord, name)) % len(_SPARE)])
