import litserve as ls
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class API(ls.LitAPI):
    def setup(self, device):
        self.tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
        self.model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct", torch_dtype=torch.float16).to(device).eval()

    def decode_request(self, request):
        return request["prompt"]

    def predict(self, prompt):
        text = self.tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
        inputs = self.tokenizer([text], return_tensors="pt", padding=True).to(self.model.device)
        out = self.model.generate(**inputs, max_new_tokens=256)
        return self.tokenizer.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)

    def encode_response(self, output):
        return {"output": output}


if __name__ == "__main__":
    ls.LitServer(API(), accelerator="gpu", workers_per_device=1).run(port=8000)
