"""Fine-tune a timm model: the loader takes size, mean and deviation from the model's own configuration.

Real data, two folders with a subfolder for each class, or any other format:

    python examples/timm_finetune.py photos/train photos/val --model convnext_tiny --checkpoint convnext.pt

With RandAugment and MixUp. The same command goes on from the checkpoint with the next batch.

Quick: python examples/timm_finetune.py --quick
"""

import importlib.util
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch.nn.functional import cross_entropy

import batchplant as bp
from batchplant.interop.torch import ToTorchImage
from batchplant.ops import MixUp, Normalize, RandAugment, RandomHorizontalFlip, RandomResizedCrop, Resize

if not importlib.util.find_spec("timm"):
    sys.exit("this example needs timm: pip install timm")
import timm


def make_loader(path, args, config, device, training):
    # timm counts levels from 0 to 1, batchplant from 0 to 255.
    levels = Normalize([255 * mean for mean in config["mean"]], [255 * std for std in config["std"]])
    size = config["input_size"][1:]
    if not training:
        pipelines = {"image": [Resize(size), levels, ToTorchImage()]}
        return bp.Loader(path, args.batch_size, pipelines=pipelines, device=device)
    augment = [RandomResizedCrop(size, scale=(0.35, 1)), RandomHorizontalFlip(), RandAugment(2, 9)]
    return bp.Loader(
        path,
        args.batch_size,
        order="random",
        drop_last=True,
        # MixUp sees images and labels of a whole batch: labels become weights of the classes.
        pipelines=[{"image": augment}, MixUp(args.mixup), {"image": [levels, ToTorchImage()]}],
        device=device,
    )


def accuracy(model, loader):
    right = samples = 0
    model.eval()
    with torch.no_grad():
        for batch in loader:
            right += int((model(batch["image"]).argmax(1) == batch["label"]).sum())
            samples += len(batch["label"])
    model.train()
    return right / max(samples, 1)


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    classes = len(bp.open(args.train).schema["label"].names)
    model = timm.create_model(args.model, pretrained=not args.quick, num_classes=classes).to(device)
    config = timm.data.resolve_model_data_config(model)
    if args.quick:
        config["input_size"] = (3, 32, 32)
    loader = make_loader(args.train, args, config, device, training=True)
    val = make_loader(args.val, args, config, device, training=False)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.05)
    steps, step, loss = args.epochs * len(loader), 0, torch.zeros(())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, steps)

    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    if args.checkpoint and os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, map_location="cpu")
        step = saved["step"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    while step < steps:
        for batch in loader:
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                loss = cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if args.checkpoint and (step % 1000 == 0 or step % len(loader) == 0):
                states = {name: part.state_dict() for name, part in parts.items()}
                torch.save({"step": step, **states}, f"{args.checkpoint}.new")
                os.replace(f"{args.checkpoint}.new", args.checkpoint)  # a crash leaves the old one
        right = accuracy(model, val)
        print(f"step {step} of {steps}: loss {loss.item():.4f}, accuracy {right:.3f}", flush=True)
    return loss.item()


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="training images")
    parser.add_argument("val", nargs="?", help="validation images")
    parser.add_argument("--model", default="convnext_tiny", help="a model of timm (default: convnext_tiny)")
    parser.add_argument("--checkpoint", help="file to go on from and to write (default: none)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--mixup", type=float, default=0.2, help="alpha of MixUp (default: 0.2)")
    parser.add_argument("--lr", type=float, default=2e-4, help="the highest learning rate (default: 2e-4)")
    parser.add_argument("--quick", action="store_true", help="a few steps of a small model on made images")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val, args.model = _data.photos(), _data.photos(seed=1), "test_convnext"
        args.epochs, args.batch_size = 1, 16
    elif not args.val:
        parser.error("give the training and the validation images, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
