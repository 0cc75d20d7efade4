"""The command line: a table of commands loaded when asked for, and the one place where errors become words."""

from __future__ import annotations

import os
import sys

from dstune import __version__, lang
from dstune.errors import DstuneError, Exit
from dstune.lang import say

COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": ("Find the root cause in logs, code, launch files and this host", "从日志、代码、启动文件和本机中找出根因"),
    "recommend": (
        "Choose engine and settings for a GPU, with predicted memory and speed",
        "为显卡选择引擎与参数，并预测显存和速度",
    ),
    "estimate": ("Memory and speed of one fixed configuration, part by part", "某个固定配置的显存与速度，逐项列出"),
    "fix": ("Show (and with --write apply) the fixes for your files as a diff", "以 diff 显示修复，加 --write 才写入"),
    "undo": ("Take back the last fix, byte for byte", "逐字节撤销上一次修复"),
    "generate": (
        "Write a Dockerfile, compose file, launch script or config for a GPU",
        "为显卡生成 Dockerfile、compose、启动脚本或配置",
    ),
    "bench": ("Load a server for half a minute: latency, throughput, errors", "对服务压测半分钟：延迟、吞吐、错误"),
    "verify": (
        "Run before and after under the same load: better, worse or noise",
        "让修改前后承受同样的负载：变好、变差还是噪声",
    ),
    "monitor": ("Watch GPUs and server in the terminal, and act from there", "在终端监视显卡和服务，并就地处理"),
    "probe": (
        "Record what this machine says: GPU, driver, Python, container, servers",
        "记录本机：显卡、驱动、Python、容器、服务",
    ),
    "explain": ("Explain a cause, or list all of them", "解释一个病因，或列出全部"),
    "completion": ("Completion script for bash, zsh or fish", "bash、zsh、fish 的补全脚本"),
}
ALIASES = {"loadtest": "bench", "patch": "fix", "diagnose": "doctor", "check": "doctor"}


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code. `--version` loads nothing else: it is asked for by scripts."""
    args = sys.argv[1:] if argv is None else argv
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    lang.use(lang.detect(args, os.environ))
    if args[:1] in (["--version"], ["-V"]):
        print(f"dstune {__version__}")
        return Exit.OK
    if "_DSTUNE_COMPLETE" in os.environ:
        return _complete()
    try:
        return _run(args)
    except DstuneError as error:
        _tell(error)
        return error.code
    except KeyboardInterrupt:
        print(say("interrupted", "已中断"), file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (the reader left; nothing more can be said to it)
        return Exit.OK
    except OSError as error:
        _tell(
            DstuneError(
                f"{error.filename or 'input/output'}: {error.strerror or error}",
                "",
                say("check the path, permissions and free space", "检查路径、权限和剩余空间"),
            )
        )
        return Exit.UNOBSERVABLE
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "dstune"):
            return _bug()
        _tell(
            DstuneError(
                say(f"the package {name} is not installed in {sys.prefix}", f"{sys.prefix} 中没有安装软件包 {name}"),
                say("dstune runs from its files, without what it needs", "dstune 直接从源文件运行，缺少依赖"),
                say(
                    "install it there (pip install . in its folder), or run the dstune of the environment that has it",
                    "在该环境中安装（在其目录中 pip install .），或运行已安装环境中的 dstune",
                ),
            )
        )
        return Exit.UNOBSERVABLE
    except Exception:
        return _bug()


def _run(args: list[str]) -> int:
    import gc

    import click

    from dstune.cli.options import group

    # the recipes are all made at once and stay: looking for garbage among them costs a tenth of a command
    gc.set_threshold(20_000, 20, 20)
    if not [a for a in args if a not in ("--lang", "en", "zh", "--lang=en", "--lang=zh")]:
        if sys.stdin.isatty() and sys.stdout.isatty():
            args = ["monitor", *args]  # a person in a terminal
        else:
            args = [*args, "--help"]
    try:
        result = group().main(args, prog_name="dstune", standalone_mode=False)
        return int(result) if isinstance(result, int) else Exit.OK
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        named = " ".join(["dstune", *[a for a in args if a in COMMANDS][:1]])
        hint = f"{context.command_path if context is not None else named} --help"
        message = " ".join(error.format_message().split()).replace("。 ", "。")
        raise DstuneError(message.rstrip(".。"), "", hint) from None


def _complete() -> int:
    """Answers the shell's completion request (click reads the words from the environment)."""
    from click.shell_completion import shell_complete

    from dstune.cli.options import group

    return shell_complete(group(), {}, "dstune", "_DSTUNE_COMPLETE", os.environ["_DSTUNE_COMPLETE"])


def _tell(error: DstuneError) -> None:
    from dstune.redact import printable, redact

    lines = [say("error: ", "错误：") + error.what]
    if error.why:
        lines.append("  " + say("why: ", "原因：") + error.why)
    if error.next:
        lines.append("  " + say("next: ", "下一步：") + error.next)
    print(printable(redact("\n".join(lines))), file=sys.stderr)


def _bug() -> int:
    import traceback

    from dstune.redact import redact

    print(redact(traceback.format_exc()), file=sys.stderr)
    print(
        say(
            f"This is a bug in dstune {__version__}, not in your server. Please report it with the lines above (names and tokens are removed).",
            f"这是 dstune {__version__} 的缺陷，与你的服务无关。请附上以上内容反馈（其中的用户名和令牌已去除）。",
        ),
        file=sys.stderr,
    )
    return Exit.BUG
