"""Click's own words in Chinese: one table, hung into the gettext names that click looks its texts up by."""

from __future__ import annotations

import importlib

import click

from dstune.lang import current, say

_CHINESE = {
    "Options": "选项",
    "Commands": "命令",
    "Arguments": "参数",
    "Positional arguments": "参数",
    "Show this message and exit.": "显示本帮助并退出。",
    "default: {default}": "默认：{default}",
    "required": "必填",
    "(dynamic)": "（动态）",
    "Missing command.": "没有给出命令。",
    "Missing argument": "缺少参数",
    "Missing option": "缺少选项",
    "Missing parameter": "缺少参数",
    "Missing {param_type}": "缺少 {param_type}",
    "Missing parameter: {param_name}": "缺少参数：{param_name}",
    "Choose from:\n\t{choices}": "可选：\n\t{choices}",
    "No such option {name!r}.": "没有选项 {name!r}。",
    "No such option: {name}": "没有选项 {name}。",
    "No such command {name!r}.": "没有命令 {name!r}。",
    "Did you mean {possibility}?": "是不是 {possibility}？",
    "(Did you mean one of: {possibilities}?)": "（是不是其中之一：{possibilities}？）",
    "(Possible options: {possibilities})": "（相近的选项：{possibilities}）",
    "Invalid value: {message}": "值无效：{message}",
    "Invalid value for {param_hint}: {message}": "{param_hint} 的值无效：{message}",
    "{value!r} is not {choice}.": "{value!r} 不是 {choice}。",
    "{value!r} is not one of {choices}.": "{value!r} 不在可选值 {choices} 之中。",
    "{value!r} is not a valid {number_type}.": "{value!r} 不是有效的数。",
    "{value} is not in the range {range}.": "{value} 不在范围 {range} 内。",
    "{name} {filename!r} does not exist.": "{name} {filename!r} 不存在。",
    "{name} {filename!r} is a file.": "{name} {filename!r} 是文件。",
    "{name} {filename!r} is a directory.": "{name} {filename!r} 是目录。",
    "{name} {filename!r} is not readable.": "{name} {filename!r} 不可读。",
    "{name} {filename!r} is not writable.": "{name} {filename!r} 不可写。",
    "Could not open file {filename!r}: {message}": "打不开文件 {filename!r}：{message}",
    "Option {name!r} does not take a value.": "选项 {name!r} 不带值。",
    "Option {name!r} requires an argument.": "选项 {name!r} 需要一个值。",
    "Option {name!r} requires {nargs} arguments.": "选项 {name!r} 需要 {nargs} 个值。",
    "Got unexpected extra argument ({args})": "多出的参数（{args}）",
    "Got unexpected extra arguments ({args})": "多出的参数（{args}）",
}  # fmt: skip
"""Texts of click 8.1 to 8.5, by the English that click asks gettext for. What is missing here stays English."""

_MODULES = ("core", "decorators", "exceptions", "formatting", "parser", "types")


def said(text: str) -> str:
    """The text in the language in use."""
    return _CHINESE.get(text, text) if current() == "zh" else text


def said_of(one: str, many: str, count: int) -> str:
    """The text for a count, in the language in use."""
    return said(one if count == 1 else many)


class _Help(click.HelpFormatter):
    """Headings with the colon of the language; click's own is always the Western one."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, prefix or say("Usage: ", "用法："))

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{heading}{say(':', '：')}\n")


def teach() -> None:
    """Click speaks the language in use from now on. A version without one of these names keeps its English there."""
    for name in _MODULES:
        module = importlib.import_module(f"click.{name}")
        for hook, ours in (("_", said), ("ngettext", said_of)):
            if hook in vars(module):
                setattr(module, hook, ours)
    click.Context.formatter_class = _Help
