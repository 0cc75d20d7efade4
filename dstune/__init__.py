"""dstune: why a small-LLM server is out of memory, slow, stuck or babbling, and the fix."""

__version__ = "0.1.0"
