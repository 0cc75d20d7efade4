from vllm import AsyncEngineArgs, AsyncLLMEngine
from vllm.sampling_params import SamplingParams
from src.model_loader import resolve_model_path
from src.utils.logger import get_logger
logger = get_logger(__name__)

class Engine:
    def __init__(self, config):
        self.config = config
        self._engine = None

    def load(self):
        if self._engine is not None:
            return
        model_path = resolve_model_path(self.config)
        logger.info("Loading model: %s", model_path)
        args = AsyncEngineArgs(
            model=model_path,
            tensor_parallel_size=self.config.tensor_parallel_size,
            gpu_memory_utilization=self.config.gpu_memory_utilization,
            max_model_len=self.config.max_model_len,
            dtype=self.config.dtype,
            quantization=self.config.quantization or None,
            trust_remote_code=True,
        )
        self._engine = AsyncLLMEngine.from_engine_args(args)

    async def generate(self, prompt, request_id, params):
        return self._engine.generate(prompt, params, request_id)

    async def whole(self, prompt, request_id, params):
        last = None
        async for output in await self.generate(prompt, request_id, params):
            last = output
        return "" if last is None else last.outputs[0].text

    def params(self, given):
        return SamplingParams(temperature=given.get("temperature", 1.0), top_p=given.get("top_p", 1.0), top_k=given.get("top_k", -1), max_tokens=given.get("max_tokens", 512), stop=given.get("stop", None))
