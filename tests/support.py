"""Runs a recipe's example the way doctor would run a user's files."""

from dstune.catalog.vocabulary import said
from dstune.derive import derive
from dstune.diagnose import diagnose
from dstune.model import Diagnosis, Document, Evidence, Example, Fact, Rule
from dstune.readers import read_document

FILES = {
    "log": ("server.log", "log"),
    "app": ("app.py", "app"),
    "command": ("launch.sh", "command"),
    "config": ("config.yaml", "config"),
}


def container_kind(text: str) -> tuple[str, str]:
    """A `container` text is a compose file or a Dockerfile."""
    return ("compose.yaml", "compose") if "services:" in text else ("Dockerfile", "dockerfile")


def evidence_of(example: Example) -> Evidence:
    """The evidence of an example's texts and facts."""
    seen = Evidence()
    for kind, text in example.texts.items():
        name, reader = container_kind(text) if kind == "container" else FILES["log" if kind == "any" else kind]
        seen = seen.merged(read_document(Document(name, reader, text)))
    items = said(example.facts)
    gaps = [i for i in items if not isinstance(i, Fact)]
    assert not gaps, f"fact of an example is not in the vocabulary or unreadable: {gaps}"
    return derive(seen.plus(i for i in items if isinstance(i, Fact)))


def judged(example: Example, rule: Rule) -> Diagnosis:
    """The diagnosis of this rule alone."""
    return diagnose(evidence_of(example), [rule])
