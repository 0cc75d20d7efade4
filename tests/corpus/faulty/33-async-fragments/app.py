import gradio as gr
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="EMPTY")


async def respond(message, history):
    messages = [{"role": "user", "content": message}]
    stream = await client.chat.completions.create(
        model="deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        messages=messages,
        temperature=0,
        max_tokens=4096,
        stream=True,
    )
    async for chunk in stream:
        yield chunk.choices[0].delta.content


gr.ChatInterface(respond, concurrency_limit=8).queue(max_size=64).launch()
