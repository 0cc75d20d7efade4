"""Runs in the model's own Python: loads a directory with transformers and measures the bare model. JSON lines on stdout.

    python local_load.py DIR '{"batches": [1, 8], "prompt": 256, "tokens": 64, "dtype": "auto", "device": "auto", "passes": 2, "seconds": 30}'

Each line is {"event": …}: loaded, run (one batch and pass: prefill and step times in seconds, memory in bytes), error, done. Prompts are
random tokens and the end token is suppressed: speed and memory only. Two passes over the same lengths, since the first pays for what
libraries plan once per shape. After `seconds` no pass begins any more, and one that runs ends once it has eight steps.
"""

import json
import sys
import time


def say(event, **more):
    """One line for the parent."""
    print(json.dumps({"event": event, **more}), flush=True)


def main():
    """Load, then every batch size twice."""
    folder, ask = sys.argv[1], json.loads(sys.argv[2])
    begin = time.perf_counter()
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
    from transformers.generation.streamers import BaseStreamer

    transformers.utils.logging.set_verbosity_error()
    cuda = torch.cuda.is_available() and ask["device"] != "cpu"
    device = "cuda" if cuda else "cpu"
    imported = time.perf_counter()
    name = "dtype" if tuple(int(p) for p in transformers.__version__.split(".")[:2]) >= (4, 56) else "torch_dtype"
    dtype = ask["dtype"] if ask["dtype"] == "auto" else getattr(torch, ask["dtype"])
    if ask.get("random"):
        config = AutoConfig.from_pretrained(folder)
        kind = torch.bfloat16 if ask["dtype"] == "auto" else dtype
        torch.set_default_dtype(kind)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config)
        torch.set_default_dtype(torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, **{name: dtype}).to(device)
    model.eval()

    def sync():
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def memory():
        if not cuda:
            import resource

            return {"rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        free, total = torch.cuda.mem_get_info()
        return {
            "peak": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "device_used": total - free,
            "device_total": total,
        }

    say(
        "loaded", import_s=imported - begin, load_s=sync() - imported, device=torch.cuda.get_device_name(0) if cuda else "cpu", torch=torch.__version__,
        transformers=transformers.__version__, dtype=str(next(model.parameters()).dtype), parameters=sum(p.numel() for p in model.parameters()),
        attention=getattr(model.config, "_attn_implementation", ""), layers=getattr(model.config, "num_hidden_layers", None), memory=memory(),
    )  # fmt: skip

    class Clock(BaseStreamer):
        """Stamps each step once the GPU has finished it; the first call is the prompt."""

        def __init__(self):
            self.stamps = []

        def put(self, value):
            """generate() hands over the prompt, then a token of each sequence."""
            self.stamps.append(sync())

        def end(self):
            """Nothing follows."""

    class Over(StoppingCriteria):
        """True when the time is up and enough steps are there."""

        def __init__(self, clock):
            self.clock = clock

        def __call__(self, input_ids, scores, **_):
            done = time.perf_counter() > end and len(self.clock.stamps) > 9
            return torch.full((input_ids.shape[0],), done, dtype=torch.bool, device=input_ids.device)

    end = time.perf_counter() + ask["seconds"]
    vocabulary = model.config.get_text_config().vocab_size
    for batch in ask["batches"]:
        for number in range(ask["passes"]):
            if time.perf_counter() > end and (batch, number) != (ask["batches"][0], 0):
                say("done", left_out=[b for b in ask["batches"] if b > batch or (b == batch and number == 0)])
                return
            torch.manual_seed(batch)
            ids = torch.randint(10, vocabulary - 10, (batch, ask["prompt"]), device=device)
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            clock = Clock()
            start = sync()
            try:
                with torch.inference_mode():
                    model.generate(
                        ids, attention_mask=torch.ones_like(ids), max_new_tokens=ask["tokens"], min_new_tokens=ask["tokens"], do_sample=False, streamer=clock,
                        stopping_criteria=StoppingCriteriaList([Over(clock)]), pad_token_id=0, temperature=None, top_p=None, top_k=None,
                    )  # fmt: skip
            except torch.OutOfMemoryError as error:
                say("error", batch=batch, kind="oom", text=str(error)[:400])
                if cuda:
                    torch.cuda.empty_cache()
                break
            stamps = clock.stamps[1:]
            steps = [b - a for a, b in zip(stamps, stamps[1:])]
            say("run", batch=batch, number=number, ttft_s=stamps[0] - start, steps=steps, memory=memory())
    say("done", left_out=[])


if __name__ == "__main__":
    main()
