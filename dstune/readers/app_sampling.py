"""How a program asks for tokens: greedy or sampled, and how many; in its own generate calls and in its requests to a server."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from dstune.model import Fact
from dstune.readers.app_index import MISSING, Called
from dstune.readers.app_models import known, writes_thoughts
from dstune.readers.app_seen import Seen

SMALL_BUDGET = 1024
"""Tokens below which a reasoning model's thoughts are cut (DeepSeek-R1's README generates up to 32,768; short sums take 300 to 900)."""
_BUDGET = ("max_new_tokens", "max_tokens", "max_completion_tokens", "num_predict", "max_output_tokens")
_CLIENTS = frozenset(("ChatOpenAI", "OpenAILike", "VLLMOpenAI", "ChatOllama", "OllamaLLM", "Ollama", "ChatLiteLLM"))


@dataclass(frozen=True, slots=True)
class Request:
    """Sampling settings by name, and the model that is asked ("" for the program's own)."""

    words: dict[str, ast.expr]
    model: str


def smells(seen: Seen) -> Iterator[Fact]:
    """`app.greedy_reasoning`, `app.token_budget_small`, `app.sampling_off`, `app.sampling_not_asked`, `app.temperature_from_zero`."""
    yield from _asked(seen)
    yield from _from_zero(seen)
    for g in seen.generations:
        if g.how == "foreign":
            continue
        words = g.keywords
        temperature, sample = seen.value(words, "temperature"), seen.value(words, "do_sample")
        if temperature is None or (isinstance(temperature, int | float) and temperature in (0, 1)):
            continue
        if sample is False:
            yield seen.smell("sampling_off", words["temperature"])
        elif "do_sample" not in words and not g.open_ and seen.value(words, "num_beams") in (None, 1):
            yield seen.smell("sampling_not_asked", words["temperature"])
        elif seen.value(words, "top_k") == 1:
            yield seen.smell("sampling_off", words["top_k"])


_TEMPERATURE = re.compile(r"(?i)temperature|\btemp\b|温度")


def _from_zero(seen: Seen) -> Iterator[Fact]:
    """A temperature that the user may set to 0, handed to a generate that samples in any case: transformers refuses it."""
    for g in seen.generations:
        node = g.keywords.get("temperature")
        if g.how == "foreign" or node is None or seen.value(g.keywords, "do_sample") is not True:
            continue
        if isinstance(node, ast.Call) and seen.index.dotted(node.func) == "float" and node.args:
            node = node.args[0]
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or seen.index.const(node) is not MISSING:
            continue
        at = next((n for n in seen.index.nodes if _starts_at_zero(seen, n)), None)
        if at is not None and not _guards(seen):
            yield seen.smell("temperature_from_zero", at)
            return


def _starts_at_zero(seen: Seen, node: ast.AST) -> bool:
    """A slider of the temperature from 0 (Gradio, Streamlit), or a field of a request that may be 0."""
    match node:
        case ast.Call(func=func) if seen.index.dotted(func).rsplit(".", 1)[-1] in ("Slider", "slider"):
            words, _ = seen.index.keywords(node)
            numbers = [n for n in node.args if isinstance(seen.index.const(n), int | float)]
            least = words.get("minimum") or words.get("min_value") or (numbers[0] if numbers else None)
            above = seen.index.parent.get(node)
            named = ast.unparse(above.targets[0]) if isinstance(above, ast.Assign) else ""
            texts = [named, *(str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))]
            return least is not None and seen.index.const(least) == 0 and any(_TEMPERATURE.search(t) for t in texts)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(func=func) as call) if _TEMPERATURE.search(name):
            least = seen.index.keywords(call)[0].get("ge")
            return seen.index.dotted(func).rsplit(".", 1)[-1] == "Field" and least is not None and seen.index.const(least) == 0
    return False


def _guards(seen: Seen) -> bool:
    """Whether the program looks at the temperature anywhere: a comparison, a choice, `max(…)` (coarse; it only excuses)."""
    for node in seen.index.nodes:
        looks = isinstance(node, ast.Compare | ast.BoolOp | ast.IfExp | ast.If) or (
            isinstance(node, ast.Call) and seen.index.dotted(node.func).rsplit(".", 1)[-1] in ("max", "clip", "clamp")
        )
        if looks and _TEMPERATURE.search(ast.unparse(node.test if isinstance(node, ast.If | ast.IfExp) else node)):
            return True
    return False


def _asked(seen: Seen) -> Iterator[Fact]:
    if _thoughts_off(seen):
        return
    budgets: list[tuple[int, ast.expr]] = []
    open_ = False
    for request in _requests(seen):
        words, model = request.words, request.model or seen.model
        if not model:
            continue
        temperature, sample = seen.value(words, "temperature"), seen.value(words, "do_sample")
        own = "peft" in seen.frameworks and not request.model  # an adapter was taught to answer in another way
        if (
            known(model).reasoning
            and not own
            and (sample is False or (isinstance(temperature, int | float) and temperature == 0))
        ):
            yield seen.smell("greedy_reasoning", words["do_sample"] if sample is False else words["temperature"])
        if own or not writes_thoughts(model):
            continue
        budget = seen.value(words, *_BUDGET)
        if isinstance(budget, int) and not isinstance(budget, bool):
            budgets.append((budget, next(words[w] for w in _BUDGET if w in words)))
        elif budget is MISSING:
            open_ = True
    if budgets and not open_:
        most, at = max(budgets, key=lambda b: b[0])
        if 16 < most < SMALL_BUDGET:
            yield seen.smell("token_budget_small", at, most)


def _thoughts_off(seen: Seen) -> bool:
    """Whether the program asks the model not to think."""
    for node in seen.index.nodes:
        match node:
            case ast.keyword(arg="enable_thinking" | "think" | "reasoning", value=value) if seen.index.const(value) is False:
                return True
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if (
                        key is not None
                        and seen.index.const(key) in ("enable_thinking", "thinking", "think")
                        and seen.index.const(value) is False
                    ):
                        return True
    return any("/no_think" in str(c.value) for c in seen.constants())


def _requests(seen: Seen) -> list[Request]:
    """Everything that asks for tokens with sampling settings: generate, SamplingParams, clients, a request's JSON."""
    found = [Request(g.keywords, "") for g in seen.generations if g.how != "foreign"]
    for call in (*seen.completions, *seen.clients):
        found.append(Request(call.keywords, _model(seen, call.keywords)))
    for call in seen.index.calls():
        last = call.name.rsplit(".", 1)[-1]
        if call.via:
            continue
        if last == "SamplingParams":
            found.append(Request(call.keywords, ""))
        elif last in _CLIENTS and call not in seen.clients:
            found.append(Request(call.keywords, _model(seen, call.keywords)))
        elif _ollama(seen, call):
            inner = seen.index.dict_of(call.keywords["options"])[0] if "options" in call.keywords else {}
            found.append(Request({**inner, **call.keywords}, _model(seen, call.keywords)))
        elif (sent := _sent(call)) is not None:
            words = seen.index.dict_of(sent)[0]
            if "options" in words:
                words = {**seen.index.dict_of(words["options"])[0], **words}
            found.append(Request(words, _model(seen, words)))
    return found


def _model(seen: Seen, words: dict[str, ast.expr]) -> str:
    name = next((seen.index.const(words[w]) for w in ("model", "model_name", "model_id") if w in words), "")
    return name if isinstance(name, str) else ""


def _ollama(seen: Seen, call: Called) -> bool:
    """`ollama.chat(…)`, `ollama.generate(…)`, or the same of a client object."""
    if call.name in ("ollama.chat", "ollama.generate"):
        return True
    func = call.func
    return isinstance(func, ast.Attribute) and func.attr in ("chat", "generate") and seen.index.kind(func.value) == "ollama"


def _sent(call: Called) -> ast.expr | None:
    """The JSON of a POST to a route that writes text: `json=…`, or `data=json.dumps(…)`."""
    if not re.search(r"(?:^|\.)post$", call.name):
        return None
    if "json" in call.keywords:
        return call.keywords["json"]
    match call.keywords.get("data"):
        case ast.Call(args=[first, *_], func=func) if ast.unparse(func).endswith("dumps"):
            return first
    return None
