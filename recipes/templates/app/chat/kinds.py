"""What kind of request a message is. The kind sets limits and a directive, never anything of the model."""

from __future__ import annotations

import re

_CODE = re.compile(
    r"```|\b(python|javascript|typescript|java|golang|rust|sql|bash|shell|html|css|regex|c\+\+|dockerfile|leetcode|traceback|"
    r"(write|implement|debug|refactor|fix)\s+(a|an|the|this|my)?\s*(\w+\s+)?(function|class|script|program|code|query|method|algorithm)|"
    r"def\s+\w+\(|import\s+\w+|#include)|"
    r"代码|函数|编程|程序|脚本|报错|算法实现|正则|(写|实现|编写)(一个|个|一段)?.{0,8}(排序|函数|类|脚本|程序|代码|算法)",
    re.IGNORECASE,
)
_MATH = re.compile(
    r"\\(frac|int|sum|sqrt|boxed|lim)|\$[^$]+\$|\d\s*[-+*/×÷^=]\s*\(?\s*\d|\b(solve|equation|integral|derivative|probability|prove that|theorem|"
    r"polynomial|matrix|modulo|how many (ways|integers|numbers)|compute|calculate|evaluate)\b|"
    r"解方程|方程|积分|导数|求导|概率|证明|求值|计算|多项式|矩阵|几何|三角形|等于几|等于多少|求.{0,6}(和|积|解|值)|因式分解|最大公约数",
    re.IGNORECASE,
)
_LOGIC = re.compile(
    r"\b(logic|riddle|puzzle|deduce|infer|knights? and knaves|who is (lying|telling the truth)|truth-?teller|liar|syllogism|"
    r"must be true|which of the following)\b|推理|逻辑|谜题|谁在说谎|说真话|说假话|真话|脑筋急转弯|判断.{0,6}(真假|对错)|由此可知",
    re.IGNORECASE,
)


def kind_of(text: str) -> str:
    """math, code, logic or text. Code is asked for first: a program that computes something is code."""
    head = text[:4000]
    for kind, pattern in (("code", _CODE), ("logic", _LOGIC), ("math", _MATH)):
        if pattern.search(head):
            return kind
    return "text"


def with_directive(text: str, directive: str) -> str:
    """The message with the directive of its kind at the end, unless it asks for the box itself."""
    return text if not directive or r"\boxed" in text else f"{text}\n{directive}"
