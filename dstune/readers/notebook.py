"""What the cells of a saved notebook printed and how they failed: logs of the run that it keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dstune.model import Document, parse_json
from dstune.readers.app_edit_notebook import is_notebook
from dstune.readers.scan_text import clean

_AROUND = re.compile(r"(?m)^ +\d+(?: [^\n]*)?$")
"""Code that IPython shows around the line of a frame: what stands in it was not raised."""


def outputs(document: Document) -> Iterator[Document]:
    """One log for each cell that printed or failed, named by the cell as Jupyter shows it (`In [3]`), else by its place."""
    if not is_notebook(document.path, document.text):
        return
    try:
        cells = list(enumerate(parse_json(document.text)["cells"], 1))
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    for number, cell in cells:
        if not isinstance(cell, dict) or not isinstance(cell.get("outputs"), list):
            continue
        text = "".join(_text(output) for output in cell["outputs"] if isinstance(output, dict))
        if text.strip():
            count = cell.get("execution_count")
            name = f"In [{count}]" if isinstance(count, int) else f"cell {number}"
            yield Document(f"{document.path} {name}", "log", text)


def _text(output: dict[str, Any]) -> str:
    match output:
        case {"output_type": "stream", "text": text}:
            text = clean(_joined(text, ""))
        case {"output_type": "error"}:
            last = f"{output.get('ename', '')}: {output.get('evalue', '')}"
            text = _AROUND.sub("", clean(_joined(output.get("traceback", ""), "\n")))
            text = text if last.strip() in text else f"{text}\n{last}"
        case _:
            return ""
    return text if text.endswith("\n") else text + "\n"


def _joined(text: object, between: str) -> str:
    return between.join(map(str, text)) if isinstance(text, list) else str(text)
