"""A Report → text. `FORMATS` is the table; a format sees nothing but the report."""

from collections.abc import Callable

from dstune.model import Report


def _text(report: Report) -> str:
    from dstune.report.text import text

    return text(report)


def _json(report: Report) -> str:
    from dstune.report.json import dumps

    return dumps(report)


def _markdown(report: Report) -> str:
    from dstune.report.markdown import markdown

    return markdown(report)


FORMATS: dict[str, Callable[[Report], str]] = {"text": _text, "json": _json, "markdown": _markdown}
