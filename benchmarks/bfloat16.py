"""What bfloat16 costs, with and without RoPE's frequencies rounded to it: `python -m benchmarks.bfloat16 [--layers N]`.

Layers of the 0.6B text model with random weights, on a CPU. Each column is the difference of the last hidden states
from those of the same bfloat16 weights in float32 arithmetic, relative to their length.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3Model

POSITIONS = (30, 140, 400, 2000)
SHARP = 2.0
"""Weight of the norms of queries and keys. With 1, random layers look at everything alike; trained ones do not."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=28)
    layers = parser.parse_args().layers
    config = Qwen3Config(
        vocab_size=1000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=65_536,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    torch.manual_seed(1)
    exact = Qwen3Model(config).eval()
    for name, parameter in exact.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            parameter.data.fill_(SHARP)
    frequencies = exact.rotary_emb.inv_freq.clone()
    narrow = Qwen3Model(config).eval().to(torch.bfloat16)
    narrow.load_state_dict(exact.state_dict())
    exact.load_state_dict(narrow.state_dict())
    sys.stdout.write("| positions | frequencies in float32 | frequencies rounded to bfloat16 |\n|---|---|---|\n")
    for count in POSITIONS:
        ids = torch.randint(1000, (1, count), generator=torch.Generator().manual_seed(count))
        reference = _states(exact, ids)
        shares = []
        for used in (frequencies, frequencies.to(torch.bfloat16)):
            narrow.rotary_emb.inv_freq = used
            states = _states(narrow, ids).float()
            shares.append(float((states - reference).norm() / reference.norm()))
        sys.stdout.write(f"| {count:,} | {shares[0]:.1%} | {shares[1]:.1%} |\n")
        sys.stdout.flush()


@torch.inference_mode()
def _states(model: Qwen3Model, ids: Tensor) -> Tensor:
    states = model(input_ids=ids, use_cache=False).last_hidden_state
    assert states is not None
    return states[0]


if __name__ == "__main__":
    main()
