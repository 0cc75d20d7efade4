from openai import OpenAI
client = OpenAI(base_url="http://localhost:8000/v1", api_key="unused")
completion = client.chat.completions.create(
    model="deepseek-chat",
    messages=[{"role": "user", "content": "My name is Ada. Remember it and say hello."}],
    extra_body={"thinking": False, "search": False},
)
print("Turn 1:", completion.choices[0].message.content)
extra = getattr(completion, "model_extra", None) or {}
cid = extra.get("conversation_id")
if cid:
    turn2 = client.chat.completions.create(
        model="deepseek-chat",
        messages=[{"role": "user", "content": "What was my name? Just the name."}],
        extra_body={"conversation_id": cid},
    )
    print("Turn 2:", turn2.choices[0].message.content)
