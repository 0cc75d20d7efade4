import uuid
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
app = FastAPI()
engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="Qwen/Qwen2.5-1.5B-Instruct", max_model_len=8192, gpu_memory_utilization=0.9))
@app.get("/gen")
async def gen(prompt: str):
    async def body():
        last = 0
        async for out in engine.generate(prompt, SamplingParams(max_tokens=256, temperature=0.7), str(uuid.uuid4())):
            text = out.outputs[0].text
            yield text[last:]
            last = len(text)
    return StreamingResponse(body(), media_type="text/plain")
