"""Writes a checkpoint as a Hugging Face folder: `config.json`, `tokenizer.json` and `model.safetensors` in BF16.

python export.py --state FOLDER --out FOLDER
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from corpus import Corpus
from model import Llama, Shape


def main() -> None:
    """Writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True, help="folder of checkpoint and tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    shape = Shape()
    checkpoint = torch.load(args.state / "checkpoint.pt", map_location="cpu", weights_only=True)
    model = Llama(shape)
    model.load_state_dict(checkpoint["model"])
    args.out.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().bfloat16().contiguous() for name, weight in model.named_parameters()}
    save_file(tensors, args.out / "model.safetensors", metadata={"format": "pt"})
    corpus = Corpus(args.state / "tokenizer.json", "")
    config = json.dumps(shape.config(corpus.begin, corpus.end), indent=2) + "\n"
    (args.out / "config.json").write_text(config)
    shutil.copyfile(args.state / "tokenizer.json", args.out / "tokenizer.json")
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"step {checkpoint['step']}, {checkpoint['seen']} tokens seen: {size / 2**20:.2f} MiB in {args.out}")


if __name__ == "__main__":
    main()
