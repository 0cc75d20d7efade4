"""The ways into a Gradio app, and what each does not see. Read in the sources of Gradio 4.9 to 6.31, measured on 4.33 and 6.31."""

from __future__ import annotations

from dstune.lang import say

_TOLD = {
    "queue": (
        "through the app's queue, as its page does (POST queue/join, then the session's event stream): the wait, the concurrency limit and the "
        "size of the queue are all in these figures. Not seen: the page's other events, since one function is called, and direct calls, which bypass the queue.",
        "经由应用的队列，与网页相同（POST queue/join，再读会话的事件流）：排队等待、并发上限和队列长度都计入这些数字。看不到：网页的其他事件，因为只调用一个函数；"
        "以及绕过队列的直接调用。",
    ),
    "call": (
        "through the call API (POST call/NAME, then its event stream), as scripts do: it enters the same queue, so the concurrency limit and the "
        "size of the queue hold. Not seen: the place in the queue and the start of the work, since this stream leaves those messages out; the wait is inside the first token.",
        "经由 call API（POST call/NAME，再读它的事件流），与脚本相同：进入同一个队列，因此并发上限和队列长度同样有效。看不到：排队位置和开始处理的时刻，"
        "因为这个事件流不发送这些消息；等待时间包含在首 token 里。",
    ),
    "direct": (
        "by direct calls (POST run/NAME, one whole answer), which bypass the queue: its concurrency limit, its size and the wait in it are not seen, since the "
        "function runs at once; only the app's threads (max_threads, 40) hold functions back that are not async. Nor are first tokens, since all comes in one piece.",
        "直接调用（POST run/NAME，一次返回完整结果），绕过队列：看不到并发上限、队列长度和排队等待，因为函数会立即执行；只有应用的线程数（max_threads，默认 40）"
        "还会限制非 async 函数。也看不到首 token，因为结果一次到达。",
    ),
}  # fmt: skip
PATHS = tuple(_TOLD)
FIRST_VALUE = "first-value"
"""How an answer ends of which a direct call brought the first value alone: only the queue continues a function that yields."""


def told(path: str) -> str:
    """Which way was tested and what it does not see, with the reason."""
    return say(*_TOLD[path])
