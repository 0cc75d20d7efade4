"""Keys and their words: bindings, the tabs, the line at the bottom, the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.text import Text
from textual.binding import Binding

from dstune.lang import say
from dstune.tui.draw import click, fit

if TYPE_CHECKING:
    from dstune.tui.app import Monitor

SCREENS = ("overview", "doctor", "load", "plan", "log")
_KNOBS = (
    ("gpu", "g"),
    ("context", "x"),
    ("concurrency", "c"),
    ("precision", "p"),
    ("engine", "e"),
    ("goal", "o"),
    ("gpus", "n"),
)


def bindings() -> list[Any]:
    """All keys of the app."""
    hidden = {
        "up,k": "move(-1)", "down,j": "move(1)", "pageup": "move(-10)", "pagedown": "move(10)", "home": "end(-1)", "end": "end(1)", "enter": "enter",
        "escape": "leave", "space": "pause", "left": "seek(-1)", "right": "seek(1)", "shift+left": "seek(-10)", "shift+right": "seek(10)",
    }  # fmt: skip
    shown = {
        "q": "quit", "h,question_mark": "help", "l": "language", "d": "dark", "f": "fix(False)", "F": "fix(True)", "w": "write", "u": "undo", "s": "load",
    }  # fmt: skip
    out = [Binding(str(i + 1), f"show('{name}')", name, show=False) for i, name in enumerate(SCREENS)]
    out += [
        Binding(k, f"turn('{name}',{step})", show=False) for name, key in _KNOBS for k, step in ((key, 1), (key.upper(), -1))
    ]
    return out + [Binding(k, action, action, show=False) for k, action in {**hidden, **shown}.items()]


def title(name: str) -> str:
    """A screen's name."""
    words = {
        "overview": ("Overview", "总览"),
        "doctor": ("Doctor", "诊断"),
        "load": ("Load", "压测"),
        "plan": ("Plan", "规划"),
        "log": ("Log", "日志"),
    }
    return say(*words[name])


def tabs(name: str, width: int, right: str, causes: int) -> Text:
    """The line at the top: the screens, each clickable, and where the samples come from."""
    out = Text(no_wrap=True).append(" dstune ", "bold")
    for i, key in enumerate(SCREENS):
        count = f"·{causes}" if key == "doctor" and causes else ""
        out.append(f" {i + 1} {title(key)}{count} ", click(f"app.show('{key}')", "reverse" if key == name else ""))
    room = width - out.cell_len - 1
    words = fit(right, room)
    return out.append(" " * (room - Text(words).cell_len) + words, "dim") if room > 3 else out


def status(name: str, width: int, note: str, replayed: bool, diff: bool) -> Text:
    """The line at the bottom: the last note, what the keys do here, then the keys of everywhere."""
    keys = {
        "doctor": say("↑↓ enter f fix F all w write u undo", "↑↓ 回车 f 修复 F 全部 w 写入 u 撤销"), "load": say("s start/stop  c clients", "s 开始/停止  c 客户端数"),
        "plan": say("g x c p e o n change, shift back, w write", "g x c p e o n 更改，shift 反向，w 写入"),
        "log": say("↑↓ scroll  n next match  enter finding", "↑↓ 滚动  n 下一命中  回车 看诊断"),
    }.get(name, "")  # fmt: skip
    if diff and name == "doctor":
        keys = say("w write  f or esc back  u undo", "w 写入  f 或 esc 返回  u 撤销")
    out = Text(" ", no_wrap=True)
    seek = say("space pause  ←→ seek  ", "空格 暂停  ←→ 跳转  ") if replayed else ""
    leave = say("h help  q quit", "h 帮助  q 退出")
    ways = (
        seek + say("1-5 screens  h help  l 中文  d light  q quit", "1-5 页面  h 帮助  l English  d 明暗  q 退出"),
        seek + say("h help  l 中文  q quit", "h 帮助  l English  q 退出"),
        say("h help  l 中文  q quit", "h 帮助  l English  q 退出"),
    )
    room = width - cell_len(leave) - 6
    if note:
        out.append(fit(note, room) + "   ", "bold yellow")
    if keys and (words := fit(keys, width - out.cell_len - cell_len(leave) - 4)) != "…":
        out.append(words + "   " if words else "")
    rest = width - out.cell_len - 1
    return out.append(next((w for w in ways if cell_len(w) <= rest), fit(leave, rest)), "dim")


def help_text() -> str:
    """Every key."""
    return say(
        "1 Overview  2 Doctor  3 Load  4 Plan  5 Log   (or click)\n\n"
        "Doctor  ↑↓ j k choose   enter open/close evidence   f fix of this finding\n        F all fixes   w write what is shown   u undo the last write\n"
        "Load    s start or stop   c C clients   e E server\n"
        "Plan    g GPU  x context  c requests  p precision  e engine  o goal\n        n cards (shift: back)   w write launch.sh\n"
        "Log     ↑↓ page scroll   n N next/previous match   enter finding\n        end follow again\n"
        "Replay  space pause   ←→ one sample   shift+←→ ten\n\n"
        "l 中文   d light/dark   ctrl+p commands   q quit      any key closes this",
        "1 总览  2 诊断  3 压测  4 规划  5 日志   （可点击）\n\n"
        "诊断  ↑↓ j k 选择   回车 展开/收起证据   f 该项的修复\n      F 全部修复   w 写入所示更改   u 撤销上次写入\n"
        "压测  s 开始或停止   c C 客户端数   e E 服务\n"
        "规划  g 显卡  x 上下文  c 并发  p 精度  e 引擎  o 目标\n      n 卡数（shift 反向）   w 写入 launch.sh\n"
        "日志  ↑↓ 翻页   n N 下一/上一命中   回车 打开对应诊断   End 跟随\n"
        "回放  空格 暂停   ←→ 一个采样   shift+←→ 十个\n\n"
        "l English   d 明暗   ctrl+p 命令   q 退出          按任意键关闭",
    )


def commands(app: Monitor) -> list[tuple[str, str, Callable[[], object]]]:
    """What the command palette lists: title, what it does and its key, and the deed. The toolkit's own list is English."""

    def shows(name: str) -> Callable[[], None]:
        return lambda: app.action_show(name)

    key = say("key ", "按键 ")
    shown = [
        (title(name), say(f"show this screen; key {number}", f"显示该页面；按键 {number}"), shows(name))
        for number, name in enumerate(SCREENS, 1)
    ]
    return [
        *shown,
        (say("Load: start or stop", "压测：开始或停止"), key + "s", app.action_load),
        (say("Fix: show all as a diff", "修复：以 diff 显示全部"), key + "F", lambda: app.action_fix(True)),
        (say("Write what is shown", "写入所示更改"), key + "w", app.action_write),
        (say("Undo the last write", "撤销上次写入"), key + "u", app.action_undo),
        (say("中文", "English"), key + "l", app.action_language),
        (say("Light or dark", "明暗切换"), key + "d", app.action_dark),
        (say("Keys", "按键"), key + "h", app.action_help),
        (say("Quit", "退出"), key + "q", app.exit),
    ]
