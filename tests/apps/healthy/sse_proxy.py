"""Thin page in front of a llama.cpp server."""
import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

app = FastAPI()
client = httpx.AsyncClient(base_url="http://127.0.0.1:8080", timeout=httpx.Timeout(10, read=None))


@app.post("/chat")
async def chat(request: Request):
    body = await request.json()

    async def lines():
        async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as r:
            async for line in r.aiter_lines():
                yield line + "\n"

    return StreamingResponse(lines(), media_type="text/event-stream")
