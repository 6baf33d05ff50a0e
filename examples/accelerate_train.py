"""Train with Accelerate: prepare the model and the optimizer, and use the Loader as it is.

Real data, on any hardware that `accelerate config` was told about:

    accelerate launch --num_processes 8 examples/accelerate_train.py imagenet/train imagenet/val --out state

save_state and load_state include the loader. The same command goes on with the next batch, also with another
number of processes.

Quick: python examples/accelerate_train.py --quick
"""

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import batchplant as bp
from batchplant.interop.torch import ToTorchImage
from batchplant.ops import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop

try:
    from accelerate import Accelerator
except ImportError:
    sys.exit("this example needs Accelerate: pip install accelerate")


class Progress:
    """The number of steps, saved and restored with the rest."""

    def __init__(self):
        self.step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def make_model(classes, width):
    layers, channels = [], 3
    for stage in range(4):
        layers += [nn.Conv2d(channels, width << stage, 3, 2, 1), nn.BatchNorm2d(width << stage), nn.ReLU()]
        channels = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def accuracy(model, loader, accelerator):
    """Return the share of right answers over all processes. Sums, for batches may differ by a sample."""
    totals = torch.zeros(2, device=accelerator.device)
    model.eval()
    with torch.no_grad():
        for batch in loader:
            totals[0] += (model(batch["image"]).argmax(1) == batch["label"]).sum()
            totals[1] += len(batch["label"])
    model.train()
    right, samples = accelerator.reduce(totals, "sum").tolist()
    return right / max(samples, 1)


def train(args):
    accelerator = Accelerator(cpu=args.quick, mixed_precision="no" if args.quick else "bf16")
    device = accelerator.device
    finish = [Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]), ToTorchImage()]
    crop = {"image": [RandomResizedCrop(args.size), RandomHorizontalFlip(), *finish]}
    middle = {"image": [CenterCrop(args.size), *finish]}
    size = args.batch_size
    loader = bp.Loader(args.train, size, order="random", drop_last=True, pipelines=crop, device=device)
    val = bp.Loader(args.val, size, evaluate=True, pipelines=middle, device=device)

    classes = len(bp.open(args.train).schema["label"].names)
    torch.manual_seed(0)
    model = make_model(classes, args.width)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), args.lr))
    progress, loss = Progress(), torch.zeros(())
    accelerator.register_for_checkpointing(loader, progress)
    if args.out and os.path.exists(args.out):
        accelerator.load_state(args.out)
    steps = args.epochs * len(loader)
    last_step = min(steps, args.stop_after or steps)
    while progress.step < last_step:
        for batch in loader:
            loss = cross_entropy(model(batch["image"]), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            progress.step += 1
            if args.out and (progress.step % 1000 == 0 or progress.step == last_step):
                accelerator.save_state(args.out)
            if progress.step == last_step:
                break
        right = accuracy(accelerator.unwrap_model(model), val, accelerator)
        accelerator.print(f"step {progress.step} of {steps}: loss {loss.item():.4f}, accuracy {right:.3f}")
    accelerator.end_training()
    return loss.item()


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="training images")
    parser.add_argument("val", nargs="?", help="validation images")
    parser.add_argument("--out", help="folder of the state (default: none is written)")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=128, help="of each process (default: 128)")
    parser.add_argument("--size", type=int, default=224, help="height and width in pixels (default: 224)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer (default: 64)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="stop earlier, with the state saved")
    parser.add_argument("--quick", action="store_true", help="a few steps on made images")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val = _data.photos(), _data.photos(seed=1)
        args.epochs, args.batch_size, args.size, args.width = 2, 16, 32, 8
    elif not args.val:
        parser.error("give the training and the validation images, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
