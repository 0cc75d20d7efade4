from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass, field
from typing import Iterator

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer
from threading import Thread


@dataclass(frozen=True)
class GenConfig:
    """Sampling as the vendor advises."""

    temperature: float = 0.6
    top_p: float = 0.95
    do_sample: bool = True
    max_new_tokens: int = 1024


@dataclass
class Config:
    model: str = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    dtype: str = "bfloat16"
    gen: GenConfig = field(default_factory=GenConfig)


class Chat:
    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.tokenizer = AutoTokenizer.from_pretrained(cfg.model)
        self.model = AutoModelForCausalLM.from_pretrained(cfg.model, torch_dtype=getattr(torch, cfg.dtype)).to("cuda").eval()
        self._generate = functools.partial(self.model.generate, **vars(cfg.gen))

    def stream(self, messages: list[dict]) -> Iterator[str]:
        inputs = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(self.model.device)
        streamer = TextIteratorStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=120)
        Thread(target=self._generate, kwargs={**inputs, "streamer": streamer}, daemon=True).start()
        yield from streamer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=Config.model)
    args = parser.parse_args()
    chat = Chat(Config(model=args.model))
    history: list[dict] = []
    while question := input("> ").strip():
        history.append({"role": "user", "content": question})
        answer = ""
        for piece in chat.stream(history[-8:]):
            print(piece, end="", flush=True)
            answer += piece
        history.append({"role": "assistant", "content": answer.split("</think>")[-1]})
        print()


if __name__ == "__main__":
    main()
