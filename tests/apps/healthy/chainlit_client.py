import chainlit as cl
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="http://vllm:8000/v1", api_key="none")


@cl.on_message
async def main(message: cl.Message):
    history = cl.user_session.get("history", [])
    history.append({"role": "user", "content": message.content})
    msg = cl.Message(content="")
    stream = await client.chat.completions.create(model="qwen", messages=history[-20:], stream=True, max_tokens=1500)
    async for part in stream:
        if part.choices and (token := part.choices[0].delta.content):
            await msg.stream_token(token)
    history.append({"role": "assistant", "content": msg.content})
    cl.user_session.set("history", history)
    await msg.update()
