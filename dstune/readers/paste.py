"""Tables that people paste (nvidia-smi, torch summaries, environments) → facts."""

from collections.abc import Iterable

from dstune.model import Document, Fact, Gap


def read(document: Document) -> Iterable[Fact | Gap]:
    """Facts of the pasted tables in a log."""
    return ()
