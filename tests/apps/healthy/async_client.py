import asyncio
import os

from openai import AsyncOpenAI

client = AsyncOpenAI(base_url=os.getenv("LLM_URL", "http://llm:8000/v1"), api_key=os.getenv("LLM_KEY", "none"))
slots = asyncio.Semaphore(16)


async def one(question: str) -> str:
    async with slots:
        stream = await client.chat.completions.create(
            model="DeepSeek-R1-Distill-Qwen-1.5B",
            messages=[{"role": "user", "content": question}],
            temperature=0.6,
            top_p=0.95,
            max_tokens=4096,
            stream=True,
        )
        text = []
        async for chunk in stream:
            if not chunk.choices:
                continue
            text.append(chunk.choices[0].delta.content or "")
        return "".join(text)


async def main() -> None:
    for answer in await asyncio.gather(*(one(q) for q in ["1+1?", "2+2?"])):
        print(answer)


asyncio.run(main())
