import os

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from openai import AsyncOpenAI

app = FastAPI()
client = AsyncOpenAI(base_url=os.environ.get("LLM", "http://llm:8000/v1"), api_key="none", timeout=120)


@app.post("/chat")
async def chat(body: dict):
    stream = await client.chat.completions.create(model="qwen", messages=body["messages"], stream=True, max_tokens=1024)

    async def pieces():
        async for chunk in stream:
            if chunk.choices:
                yield chunk.choices[0].delta.content or ""

    return StreamingResponse(pieces(), media_type="text/plain")
