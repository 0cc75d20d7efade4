"""vLLM's engine in a FastAPI program."""
import uuid

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

app = FastAPI()
engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="Qwen/Qwen2.5-7B-Instruct", max_model_len=8192))


@app.post("/generate")
async def generate(body: dict):
    params = SamplingParams(temperature=0.7, top_p=0.8, max_tokens=body.get("max_tokens", 512))

    async def stream():
        sent = 0
        async for out in engine.generate(body["prompt"], params, str(uuid.uuid4())):
            text = out.outputs[0].text
            yield text[sent:]
            sent = len(text)

    return StreamingResponse(stream(), media_type="text/plain")
