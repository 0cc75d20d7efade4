"""A chat server around one language model: page, OpenAI-compatible API and engine in one process."""
