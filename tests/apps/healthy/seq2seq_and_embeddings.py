from fastapi import FastAPI
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

app = FastAPI()
embedder = SentenceTransformer("BAAI/bge-small-en-v1.5", device="cuda")
tok = AutoTokenizer.from_pretrained("google/flan-t5-base")
model = AutoModelForSeq2SeqLM.from_pretrained("google/flan-t5-base").to("cuda")


@app.post("/summary")
def summary(body: dict):
    ids = tok("summarize: " + body["text"], return_tensors="pt", truncation=True).input_ids.to("cuda")
    out = model.generate(ids, max_new_tokens=80, num_beams=4)
    return {"summary": tok.decode(out[0], skip_special_tokens=True)}


@app.post("/embed")
def embed(body: dict):
    return {"vector": embedder.encode(body["text"]).tolist()}
