"""What `dstune verify` puts at the start of a Python program that it measures (PYTHONPATH; no file of the program is touched).

Two programs can be compared only when they do the same work. So `generate` of transformers decodes greedily and at most
DSTUNE_VERIFY_TOKENS tokens (exactly so many while DSTUNE_VERIFY_LOG.fixed exists), and Gradio listens on DSTUNE_VERIFY_PORT of this machine alone, without a public link. What was generated
is written to DSTUNE_VERIFY_LOG, a JSON object a line: times are `time.perf_counter`, one clock for all processes of the machine.
Any Python from 3.8; nothing but the standard library; whatever fails here leaves the program as it is.
"""

import functools
import importlib.util
import inspect
import json
import os
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
_launched = []


def _told(**what):
    path = os.environ.get("DSTUNE_VERIFY_LOG")
    if path:
        # One short write at the end of the file: whole lines from several processes.
        with open(path, "a", encoding="utf-8") as f:
            f.write(json.dumps(what) + "\n")


def _number(value):
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _held(bound, cap):
    """The arguments of a call of `generate` with sampling off and the length capped. `bound` holds them by name."""
    given = bound.get("generation_config")
    extra = bound.setdefault("kwargs", {})
    ids = bound.get("inputs")
    ids = extra.get("input_ids", extra.get("inputs_embeds")) if ids is None else ids
    length = int(ids.shape[1]) if ids is not None and hasattr(ids, "shape") else 0
    for name in _SAMPLING:
        extra.pop(name, None)
    extra["do_sample"] = False
    asked = _number(extra.get("max_new_tokens")) or _number(getattr(given, "max_new_tokens", None))
    whole = _number(extra.pop("max_length", None)) or _number(getattr(given, "max_length", None))
    if asked is None and whole is not None and length and whole > length:
        asked = whole - length
    extra["max_new_tokens"] = min(asked, cap) if asked else cap
    if os.path.exists(os.environ["DSTUNE_VERIFY_LOG"] + ".fixed"):  # speed is measured now: all answers have the same length
        extra["min_new_tokens"] = extra["max_new_tokens"]
    return ids, length


def _generate(original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def generate(*args, **kwargs):
        begin = time.perf_counter()
        bound = signature.bind(*args, **kwargs).arguments
        ids, length = _held(bound, int(os.environ["DSTUNE_VERIFY_TOKENS"]))
        more = bound.pop("kwargs")
        made = original(bound.pop("self"), **bound, **more)  # decorators look at the first argument
        try:
            rows = getattr(made, "sequences", made)
            new = rows.shape[1] - (length if getattr(ids, "dim", lambda: 2)() == 2 else 0)
            torch = sys.modules["torch"]
            held = torch.cuda.max_memory_reserved() >> 20 if torch.cuda.is_initialized() else None
            _told(
                begin=begin,
                end=time.perf_counter(),
                tokens=int(new * rows.shape[0]),
                rows=int(rows.shape[0]),
                reserved_mib=held,
            )
        except Exception as error:
            _told(error=repr(error)[:200])
        return made

    return generate


def _launch(original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def launch(*args, **kwargs):
        bound = signature.bind(*args, **kwargs).arguments
        wanted = {
            "server_name": "127.0.0.1",
            "server_port": int(os.environ["DSTUNE_VERIFY_PORT"]),
            "share": False,
            "inbrowser": False,
        }
        if _launched:
            del wanted["server_port"]
        _launched.append(1)
        more = bound.pop("kwargs", {})
        bound.update({k: v for k, v in wanted.items() if k in signature.parameters})
        return original(bound.pop("self"), **bound, **more)

    return launch


def _of_transformers(module):
    if os.environ.get("DSTUNE_VERIFY_TOKENS"):
        module.GenerationMixin.generate = _generate(module.GenerationMixin.generate)
        _told(held="generate", tokens=int(os.environ["DSTUNE_VERIFY_TOKENS"]))


def _of_gradio(module):
    if os.environ.get("DSTUNE_VERIFY_PORT"):
        module.Blocks.launch = _launch(module.Blocks.launch)


_AFTER = {"transformers.generation.utils": _of_transformers, "gradio.blocks": _of_gradio}


class _Finder:
    """Lets the real finders find a module of the table, and changes it when it was loaded."""

    def find_spec(self, name, path=None, target=None):
        after = _AFTER.pop(name, None)
        if after is None:
            return None
        spec = importlib.util.find_spec(name)  # the name is out of the table: this finder passes it on
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            try:
                after(module)
            except Exception as error:
                _told(error=repr(error)[:200])

        spec.loader.exec_module = exec_module
        return spec


def _next():
    """The sitecustomize that this one hides, as Python would have found it."""
    mine = sys.modules.pop("sitecustomize", None)
    kept = list(sys.path)
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        if mine is not None:
            sys.modules["sitecustomize"] = mine
    finally:
        sys.path[:] = [p for p in kept if os.path.abspath(p or ".") != _HERE]


if os.environ.get("DSTUNE_VERIFY_LOG"):
    sys.meta_path.insert(0, _Finder())
_next()
