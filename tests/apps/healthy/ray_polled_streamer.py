import argparse
import asyncio
import logging
from queue import Empty
from fastapi import FastAPI
from ray import serve
from starlette.responses import StreamingResponse
from torch import bfloat16
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer
logger = logging.getLogger("ray.serve")
web = FastAPI()

@serve.deployment
@serve.ingress(web)
class Deployed:
    def __init__(self, model_id: str):
        self.loop = asyncio.get_running_loop()
        self.model = AutoModelForCausalLM.from_pretrained(model_id, torch_dtype=bfloat16, device_map="cuda")
        self.tokenizer = AutoTokenizer.from_pretrained(model_id)

    @web.post("/")
    def handle(self, prompt: str, most: int) -> StreamingResponse:
        streamer = TextIteratorStreamer(self.tokenizer, timeout=0, skip_prompt=True, skip_special_tokens=True)
        self.loop.run_in_executor(None, self.write, prompt, most, streamer)
        return StreamingResponse(self.read(streamer), media_type="text/plain")

    def write(self, prompt, most, streamer):
        input_ids = self.tokenizer([prompt], return_tensors="pt").input_ids.to("cuda")
        self.model.generate(input_ids, streamer=streamer, max_new_tokens=most)

    @staticmethod
    async def read(streamer):
        while True:
            try:
                for token in streamer:
                    yield token
                break
            except Empty:
                await asyncio.sleep(0.001)

args = argparse.ArgumentParser()
args.add_argument("--model", type=str)
if __name__ == "__main__":
    app = Deployed.bind(args.parse_args().model)
