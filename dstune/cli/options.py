"""What commands share: the group that loads them lazily, common options, and the way out."""

from __future__ import annotations

import importlib
import math
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from dstune import __version__
from dstune.cli import ALIASES, COMMANDS
from dstune.cli.words import said, teach
from dstune.errors import DstuneError
from dstune.lang import pick, say
from dstune.model import Evidence, Report, from_json, parse_json
from dstune.redact import printable

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


class _Lazy(click.Group):
    """Commands of the table; a command's module is imported when it runs, never for the list."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"dstune.cli.{name}").command
        command.context_settings = {**_SETTINGS, **command.context_settings}
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS and name not in ALIASES:
            import difflib

            close = difflib.get_close_matches(name, COMMANDS, 1, 0.5)
            raise DstuneError(
                say(f"no command is called {name!r}", f"没有名为 {name!r} 的命令"),
                "",
                f"dstune {close[0]}" if close else "dstune --help",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(said("Commands")):
            formatter.write_dl([(name, say(*texts)) for name, texts in COMMANDS.items()])


def group() -> click.Group:
    """The top command."""
    teach()
    text = say(
        "Why a small-LLM server is out of memory, slow, stuck or babbling, and the fix.\n\n"
        "\b\nStart here:\n  dstune doctor app.py server.log     files you have\n  dstune doctor                      this machine\n"
        "  dstune recommend --gpu 4090        before you buy or download",
        "小模型服务为什么显存溢出、慢、卡住或胡言乱语，以及怎么修。\n\n"
        "\b\n从这里开始：\n  dstune doctor app.py server.log     已有的文件\n  dstune doctor                      本机\n"
        "  dstune recommend --gpu 4090        购买或下载之前",
    )
    top = _Lazy("dstune", help=text, no_args_is_help=True, context_settings=dict(_SETTINGS))
    top.params.append(click.Option(["-V", "--version"], is_flag=True, help=say("Print the version.", "打印版本。")))
    top.params.append(lang_option())
    return top


def lang_option() -> click.Option:
    """`--lang`, read before anything else by `lang.detect`; here only so that it is accepted and listed."""
    return click.Option(
        ["--lang"],
        type=click.Choice(["en", "zh"]),
        expose_value=False,
        help=say("Language (default: from the locale).", "语言（默认取自系统区域设置）。"),
    )


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--json` and `--lang`."""
    function = click.option(
        "--lang",
        type=click.Choice(["en", "zh"]),
        expose_value=False,
        help=say("Language (default: from the locale).", "语言（默认取自系统区域设置）。"),
    )(function)
    return click.option(
        "--json", "as_json", is_flag=True, help=say("Machine-readable output on stdout.", "向标准输出打印 JSON。")
    )(function)


class Number(click.FloatRange):
    """A finite number in a range: neither nan nor inf, which pass every comparison or none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """click: the number, or the error."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(say(f"{value} is no finite number", f"{value} 不是有限的数"), param, ctx)
        return found


def evidence_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--evidence FILE|DIR`, repeatable."""
    return click.option(
        "--evidence", "evidence", multiple=True, type=click.Path(),
        help=say("Saved evidence (dstune probe -o) instead of this machine; a file or a folder.", "用保存的证据（dstune probe -o）代替本机，可为文件或文件夹。"),
    )(function)  # fmt: skip


def _shared(*names: str, words: tuple[str, str], **how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that several commands have alike. Its words are chosen when a command takes it, as those of its own are."""
    return lambda function: click.option(*names, help=say(*words), **how)(function)


log_option = _shared(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(),
    words=("A file to read as a log, whatever its name.", "按日志读取的文件。"),
)
facts_option = _shared(
    "--facts", "said_facts", type=click.Path(), words=("Flat JSON of facts about a machine that is elsewhere.", "描述另一台机器的 JSON。")
)  # fmt: skip
no_host_option = _shared("--no-host", is_flag=True, words=("Do not look at this machine.", "不查看本机。"))
python_option = _shared("--python", words=("Interpreter of the server's environment.", "服务所用环境的 Python。"))
engine_version_option = _shared("--engine-version", default="", words=("Version of the engine.", "引擎版本。"))
gpus_option = _shared("--gpus", type=click.IntRange(1, 16), words=("How many of them.", "显卡数量。"))
context_option = _shared("--context", type=click.IntRange(64), words=("Longest sequence in tokens.", "最长序列（token）。"))
concurrency_option = _shared("--concurrency", type=click.IntRange(1), words=("Requests at once.", "并发请求数。"))
goal_option = _shared(
    "--goal", type=click.Choice(["latency", "throughput", "memory"]), default="latency", show_default=True, words=("What to optimise.", "优化目标。")
)  # fmt: skip
vram_limit_option = _shared(
    "--vram-limit", type=click.FloatRange(0.5), words=("Most GiB that the server may take.", "服务最多占用的显存（GiB）。")
)

profile_option = _shared(
    "--profile", default="chat", show_default=True,
    words=("chat, math, code, zh, long, or a file: a prompt a line.", "chat、math、code、zh、long，或每行一个提示词的文件。"),
)  # fmt: skip
served_option = _shared(
    "--model", default="", words=("Model name to ask for (default: the first one served).", "请求的模型名（默认取第一个）。")
)
api_name_option = _shared("--api-name", default="", words=("Function of a Gradio app.", "Gradio 应用的函数名。"))
api_key_file_option = _shared(
    "--api-key-file", type=click.Path(), words=("File with the API key (else OPENAI_API_KEY).", "含 API key 的文件（否则用 OPENAI_API_KEY）。")
)  # fmt: skip


def timeout_option(least: float) -> Callable[[Any], Any]:
    """`--timeout`, of at least so many seconds."""
    return _shared(
        "--timeout", type=Number(least, 86400), default=120.0, show_default=True,
        words=("Seconds until a request counts as failed.", "请求超时秒数。"),
    )  # fmt: skip


report_option = _shared("-o", "out", type=click.Path(), words=("Write the report as JSON to a file.", "把 JSON 报告写入文件。"))


def load_evidence(paths: Sequence[str]) -> Evidence:
    """Evidence of saved files; a folder gives its newest recording. Raises `DstuneError` for what is none."""
    found = Evidence()
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = sorted(os.path.join(path, f) for f in os.listdir(path) if f.endswith(".json"))[-1:]
            if not files:
                raise DstuneError(say(f"{path} holds no evidence", f"{path} 中没有证据"), "", f"dstune probe -o {path}/ev.json")
        for file in files:
            try:
                with open(file, encoding="utf-8") as f:
                    data = parse_json(f.read())
                found = found.merged(from_json(Evidence, data.get("evidence", data) if isinstance(data, dict) else None))
            except (ValueError, TypeError, KeyError, AttributeError):
                raise DstuneError(
                    say(f"{file} is no evidence of dstune", f"{file} 不是 dstune 的证据文件"), "", "dstune probe -o ev.json"
                ) from None
    return found


def emit(report: Report, as_json: bool) -> None:
    """The report on stdout, as JSON or as text for people."""
    from dstune.report import FORMATS

    click.echo(printable(FORMATS["json" if as_json else "text"](report)))


def save(path: str, text: str) -> None:
    """Writes one of our own files whole or not at all. Raises `OSError`."""
    from dstune.probes.recording import write

    write(path, text)


def empty(command: str) -> Report:
    """A report to fill."""
    return Report(command, __version__)


def _is_pipe(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def waits(paths: Iterable[str]) -> None:
    """A line on stderr for each input that gives nothing until somebody writes to it: a named pipe, a terminal's keyboard."""
    for path in paths:
        if path == "-" and sys.stdin.isatty():
            print(say("reading standard input; Ctrl-D ends it", "正在读取标准输入，按 Ctrl-D 结束"), file=sys.stderr)
        elif not path.startswith(("/dev/fd/", "/proc/")) and _is_pipe(path):
            print(say(f"waiting for {path}: it is a named pipe", f"正在等待 {path}：它是命名管道"), file=sys.stderr)


def progress(name: str, done: int) -> None:
    """A line on stderr while a big file is read; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        end = "\r"
        print(say(f"reading {name}: {done >> 20} MB", f"正在读取 {name}：{done >> 20} MB"), end=end, file=sys.stderr)


__all__ = ["Number", "common", "emit", "empty", "evidence_option", "group", "load_evidence", "pick", "progress", "say", "waits"]
