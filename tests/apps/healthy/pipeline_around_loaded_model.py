import argparse
import csv
import pandas as pd
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-q", required=True)
    parser.add_argument("-o", required=True)
    args = parser.parse_args()
    data = pd.read_csv(args.q)
    model_id = "microsoft/Phi-3-mini-128k-instruct"
    model = AutoModelForCausalLM.from_pretrained(model_id, device_map="cuda", torch_dtype="auto", trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(model_id)
    with open(args.o, mode="w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=["question_id", "prediction"])
        writer.writeheader()
        for index, row in data.iterrows():
            messages = [{"role": "user", "content": row["question"]}]
            pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
            options = {"max_new_tokens": 500, "return_full_text": False, "temperature": 0.7, "do_sample": True}
            output = pipe(messages, **options)
            writer.writerow({"question_id": row["question_id"], "prediction": output[0]["generated_text"]})

if __name__ == "__main__":
    main()
