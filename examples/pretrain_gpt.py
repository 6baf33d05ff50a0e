"""Pre-train a small GPT (as nanoGPT does) on a mixture of token datasets, packed into rows without padding.

Real data: Megatron's .idx, Parquet, JSON Lines … with documents of tokens, or nanoGPT's flat .bin files:

    batchplant convert web.jsonl web.idx --tokenize tokenizer.json
    python examples/pretrain_gpt.py web.idx books.idx --weights 0.8 0.2 --eos 50256 --checkpoint gpt.pt

The same command goes on from the checkpoint with the very next row. No document attends to another one.
For several GPUs, wrap the model and start torchrun as imagenet_resnet.py does: the loader needs no change.

Quick: python examples/pretrain_gpt.py --quick
"""

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import batchplant as bp


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        rows, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, mask)
        x = x + self.project(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.narrow(gelu(self.widen(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary, length, layers, heads, width):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, position_ids, document_ids):
        length = tokens.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        mask = (document_ids[:, :, None] == document_ids[:, None, :]) & earlier
        x = self.tokens(tokens) + self.places(position_ids)
        for block in self.blocks:
            x = block(x, mask[:, None])
        return self.head(self.norm(x))


def open_tokens(path, eos):
    """Open a dataset of documents; a flat .bin file is cut at the token that ends a document."""
    if path.endswith(".bin"):
        return bp.open(path, format="tokens", dtype="uint16", eos=eos)
    return bp.open(path)


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    readers = [open_tokens(path, args.eos) for path in args.data]
    mix = bp.Mix(readers, weights=args.weights, by="tokens", stop="all")
    pack = bp.Pack(
        args.length, eos=args.eos, labels="shifted", outputs=["labels", "position_ids", "document_ids"]
    )
    loader = bp.Loader(mix, args.batch_size, order="random", pack=pack, drop_last=True, device=device)
    torch.manual_seed(0)
    model = GPT(args.vocabulary, args.length, args.layers, args.heads, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.95), weight_decay=0.1)

    step, loss = 0, torch.zeros(())
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    if args.checkpoint and os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, map_location="cpu")
        step = saved["step"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    last_step = min(args.steps, args.stop_after or args.steps)
    while step < last_step:
        for batch in loader:
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                logits = model(batch["tokens"], batch["position_ids"], batch["document_ids"])
                loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())  # -100 does not count
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % 100 == 0 or step == last_step:
                print(f"step {step} of {args.steps}: loss {loss.item():.4f}", flush=True)
            if args.checkpoint and (step % 1000 == 0 or step == last_step):
                states = {name: part.state_dict() for name, part in parts.items()}
                torch.save({"step": step, **states}, f"{args.checkpoint}.new")
                os.replace(f"{args.checkpoint}.new", args.checkpoint)  # a crash leaves the old one
            if step == last_step:
                break
    return loss.item()


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="datasets with a field of tokens")
    parser.add_argument("--weights", nargs="+", type=float, help="share of tokens of each (default: by size)")
    parser.add_argument("--eos", type=int, default=50256, help="token that ends a document (default: 50256)")
    parser.add_argument("--vocabulary", type=int, default=50304, help="number of tokens (default: 50304)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row (default: 1024)")
    parser.add_argument("--batch-size", type=int, default=12, help="rows (default: 12)")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--checkpoint", help="file to go on from and to write (default: none)")
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="stop earlier, with a checkpoint")
    parser.add_argument("--quick", action="store_true", help="a few steps of a tiny model on made tokens")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.data, args.weights = [_data.tokens(200, 20), _data.tokens(40, 60)], [0.7, 0.3]
        args.eos, args.vocabulary, args.length, args.batch_size, args.steps = 0, 64, 64, 8, 12
        args.layers, args.heads, args.width, args.lr = 2, 2, 32, 0.01
    elif not args.data:
        parser.error("give at least one dataset of tokens, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
