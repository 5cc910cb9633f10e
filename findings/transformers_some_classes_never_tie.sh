#!/usr/bin/env bash
# tie_word_embeddings=True is read, kept and saved by every causal model of transformers, but some classes never tie.
#
# The option belongs to the base class of all configurations, and tie_weights() to that of all models. Whether anything
# is tied hangs on a list in the model's class, `_tied_weights_keys`. Classes without it take the option in silence: the
# configuration says True, input and output embeddings are two parameters, and the count is that of False. Who counts
# parameters or memory from config.json is a vocabulary times a width too low: for 131,072 words of width 4,096 by 0.54
# billion parameters.
#
# Guessed: tied as in Llama, or an error. Versions: transformers 5.24.0, torch 2.13.0 (CPU), Python 3.11, Linux. Seen,
# as parameters without and with the option, and whether they are tied then:
#     llama: 11360, 9312, tied
#     nemotron_h: 5383456, 5383456, not tied
#     xlstm: 21136, 21136, not tied
#     rembert: 327968, 327968, not tied
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6' 'transformers==5.24.0'
cd "$folder"
cat > tied.py <<'PYTHON'
import sys

import torch
import transformers

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
transformers.logging.set_verbosity_error()


def made(kind, tie):
    known = transformers.AutoConfig.for_model(kind)
    sizes = {name: size for name, size in SIZES.items() if hasattr(known, name)}
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(kind, tie_word_embeddings=tie, **sizes)
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    assert config.tie_word_embeddings is tie
    return model


def count(model):
    return sum(each.numel() for each in model.parameters())


as_seen = True
for kind in ("llama", "nemotron_h", "xlstm", "rembert"):
    apart, asked = made(kind, False), made(kind, True)
    is_tied = asked.get_input_embeddings().weight is asked.get_output_embeddings().weight
    print(f"{kind}: {count(apart)}, {count(asked)}, {'tied' if is_tied else 'not tied'}")
    as_seen &= is_tied == (kind == "llama") and (count(apart) > count(asked)) == is_tied
sys.exit(0 if as_seen else 1)
PYTHON
"$folder/venv/bin/python" tied.py
