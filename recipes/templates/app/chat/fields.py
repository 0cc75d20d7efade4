"""Fields of OpenAI's chat request that this server does not compute: harmless, neutral at some values, or refused with a reason.

A request that asks for what the answer will not show is refused: an answer that never saw its tools is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HARMLESS = frozenset(
    ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "metadata", "service_tier",
     "parallel_tool_calls", "prediction", "request_id", "priority", "cache_salt", "return_token_ids")
)  # fmt: skip
"""Whose request it is, where it is kept and how fast it should be: the text of the answer does not depend on them."""

_TOOLS = "this server calls no tools; leave it out"
_PENALTY = "answers are sampled by temperature, top_p and top_k alone; leave it out"
_FORM = "the form of an answer cannot be forced here; ask for it in the prompt"
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "tools": (([],), _TOOLS),
    "tool_choice": (("none", "auto"), _TOOLS),
    "functions": (([],), _TOOLS),
    "function_call": (("none", "auto"), _TOOLS),
    "web_search_options": ((), "this server searches nothing; leave it out"),
    "response_format": (({"type": "text"},), _FORM),
    "structured_outputs": ((), _FORM),
    "guided_json": ((), _FORM),
    "guided_regex": ((), _FORM),
    "guided_choice": ((), _FORM),
    "guided_grammar": ((), _FORM),
    "n": ((1,), "one request gives one answer; send it again for another"),
    "best_of": ((1,), "one request gives one answer; send it again for another"),
    "use_beam_search": ((False,), "answers are sampled, not searched; leave it out"),
    "logprobs": ((False,), "probabilities of tokens are not given; leave it out"),
    "top_logprobs": ((0,), "probabilities of tokens are not given; leave it out"),
    "prompt_logprobs": ((0,), "probabilities of tokens are not given; leave it out"),
    "logit_bias": (({},), _PENALTY),
    "frequency_penalty": ((0,), _PENALTY),
    "presence_penalty": ((0,), _PENALTY),
    "repetition_penalty": ((1,), _PENALTY),
    "length_penalty": ((1,), _PENALTY),
    "min_p": ((0,), _PENALTY),
    "min_tokens": ((0,), "an answer ends where the model ends it; ignore_eos and max_tokens make it as long as you want"),
    "stop_token_ids": (([],), "write the text in stop"),
    "skip_special_tokens": ((True,), "special tokens are never shown"),
    "include_stop_str_in_output": ((False,), "a stop text is not shown"),
    "echo": ((False,), "the prompt is not repeated"),
    "add_generation_prompt": ((True,), "the model answers; it does not go on with a message"),
    "continue_final_message": ((False,), "the model answers; it does not go on with a message"),
    "chat_template": ((), "prompts are made by the model's own template"),
    "chat_template_kwargs": (({},), "prompts are made by the model's own template, without switches"),
    "reasoning_effort": (("medium",), "how long the model thinks cannot be set; bound the answer with max_tokens"),
    "include_reasoning": ((True,), "what the model thinks stands in reasoning_content"),
    "verbosity": (("medium",), "ask for a longer or shorter answer in the prompt"),
    "modalities": ((["text"],), "this server reads and writes text alone"),
    "audio": ((), "this server reads and writes text alone"),
    "store": ((False,), "answers are not kept here"),
}  # fmt: skip
"""Values besides null that ask for nothing, and why any other is refused."""


def refused(fields: Mapping[str, Any]) -> str:
    """The first of these fields that this server cannot honour, as a sentence; "" where there is none."""
    for name, value in fields.items():
        if value is None or name in HARMLESS:
            continue
        if name not in NEUTRAL:
            return f"{name}: no such field here. Known beside OpenAI's own: top_k, ignore_eos"
        neutral, why = NEUTRAL[name]
        # True is 1 for Python, and no number of answers for a client
        if not any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in neutral):
            return f"{name}: {why}"
    return ""
