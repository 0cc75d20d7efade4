"""A function that takes 0.4 s and returns its text whole, one at a time by its queue. It writes when it began and ended: its own truth."""

import json
import os
import sys
import time

import gradio as gr


def answer(message):
    """The text, at once."""
    begin = time.time()
    time.sleep(0.4)
    with open(os.environ["CHAT_TRUTH"], "a", encoding="utf-8") as f:
        f.write(json.dumps({"begin": begin, "end": time.time()}) + "\n")
    return f"You said {message}"


demo = gr.Interface(answer, "textbox", "textbox", api_name="answer")
demo.queue(default_concurrency_limit=1, api_open={"open": True, "closed": False}[sys.argv[2]])
if __name__ == "__main__":
    demo.launch(server_name="127.0.0.1", server_port=int(sys.argv[1]))
