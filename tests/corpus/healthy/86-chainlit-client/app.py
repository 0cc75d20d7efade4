import chainlit as cl
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", timeout=120)


@cl.on_chat_start
async def start():
    cl.user_session.set("history", [])


@cl.on_message
async def on_message(message: cl.Message):
    history = cl.user_session.get("history")
    history.append({"role": "user", "content": message.content})
    reply = cl.Message(content="")
    stream = await client.chat.completions.create(
        model="DeepSeek-R1-Distill-Qwen-1.5B", messages=history[-10:], temperature=0.6, top_p=0.95, max_tokens=2048, stream=True
    )
    async for chunk in stream:
        if chunk.choices and (text := chunk.choices[0].delta.content):
            await reply.stream_token(text)
    history.append({"role": "assistant", "content": reply.content})
    await reply.update()
