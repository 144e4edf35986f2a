"""Compares the greedy text of an exported folder in torch, with weights rounded as in the file, with that of `trunkline`.

python compare.py --model FOLDER --trunkline PATH
"""

import argparse
import subprocess
from pathlib import Path

import torch
from safetensors.torch import load_file

from corpus import Corpus
from evaluate import PROMPTS, generate
from model import Llama, Shape

MORE_PROMPTS = ("Naïve café: 世界 x=1", "The end.")
ADDRESS = "127.0.0.1:50177"


def main() -> None:
    """Prints the prompts whose texts differ, and fails if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="exported folder")
    parser.add_argument("--trunkline", required=True, help="path of the program")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate for each prompt")
    args = parser.parse_args()
    model = Llama(Shape()).eval()
    model.load_state_dict({name: weight.float() for name, weight in load_file(args.model / "model.safetensors").items()})
    corpus = Corpus(args.model / "tokenizer.json", "")
    torch.set_num_threads(1)
    command = [args.trunkline, "serve", "--model", str(args.model), "--listen", ADDRESS]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    different = 0
    try:
        assert server.stdout is not None
        server.stdout.readline()
        for prompt in (*PROMPTS, *MORE_PROMPTS):
            expected = generate(model, corpus, prompt, args.tokens, 0.0, 1, "cpu")
            command = [args.trunkline, "generate", "--addr", ADDRESS, "--max-tokens", str(args.tokens), prompt]
            found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            if expected.rstrip("\n") not in (found.rstrip("\n"), (prompt + found).rstrip("\n")):
                different += 1
                print(f"{prompt!r}:\n  torch     {expected!r}\n  trunkline {found!r}")
    finally:
        server.terminate()
        server.wait()
    print(f"{len(PROMPTS) + len(MORE_PROMPTS) - different} texts equal, {different} different")
    raise SystemExit(different > 0)


if __name__ == "__main__":
    main()
