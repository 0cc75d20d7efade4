"""A chat that streams 20 words, one each 50 ms, two users at once. It writes when it began and when each word left: its own truth."""

import json
import os
import sys
import time

import gradio as gr

TRUTH = os.environ.get("CHAT_TRUTH", "")


def chat(message, history):
    """The answer so far, word by word."""
    begin = time.time()
    text, stamps = "", []
    for i in range(20):
        time.sleep(0.05)
        text += f"tok{i} "
        stamps.append(time.time())
        yield text
    if TRUTH:
        with open(TRUTH, "a", encoding="utf-8") as f:
            f.write(json.dumps({"begin": begin, "stamps": stamps}) + "\n")


demo = gr.ChatInterface(chat)
demo.queue(default_concurrency_limit=2, max_size=16)
if __name__ == "__main__":
    demo.launch(server_name="127.0.0.1", server_port=int(sys.argv[1]))
