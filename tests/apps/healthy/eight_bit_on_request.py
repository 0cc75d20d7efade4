import argparse
import torch
from threading import Thread
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer
from own.images import codes_of
from own.conversation import templates

def main(args):
    tokenizer = AutoTokenizer.from_pretrained(args.model_path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(args.model_path, attn_implementation="flash_attention_2", torch_dtype=torch.bfloat16, load_in_8bit=args.load_8bit)
    if not args.load_8bit:
        model = model.to("cuda")
    conv = templates["gemma"].copy()
    conv.append_message(conv.roles[0], args.prompt)
    conv.append_message(conv.roles[1], None)
    prompt = conv.get_prompt()
    with torch.no_grad():
        input_ids = torch.cat([codes_of(args.image_path), torch.tensor(tokenizer(prompt).input_ids)], dim=0)
        inputs = {"input_ids": input_ids.unsqueeze(0).to("cuda:0"), "max_new_tokens": 1024, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        streamer = TextIteratorStreamer(tokenizer, **{"skip_special_tokens": True, "skip_prompt": True})
        thread = Thread(target=model.generate, kwargs=dict(inputs, streamer=streamer))
        thread.start()
        text = ""
        for new in streamer:
            text += new
        print(text)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_path", default="Junfeng5/Liquid_V1_7B")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--image_path", required=True)
    parser.add_argument("--load_8bit", action="store_true", default=False)
    main(parser.parse_args())
