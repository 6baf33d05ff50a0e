"""Train a U-Net on images and their masks, and measure the mean intersection over union of the classes.

Real data: folders with images/ and masks/ of the same names, masks as PNG whose values are the classes:

    python examples/segmentation.py cityscapes/train cityscapes/val --classes 19 --weights unet.pt

A mask gets the very crop, flip and rotation of its image. Pixels outside of the image are 255: not counted.

Quick: python examples/segmentation.py --quick
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import batchplant as bp
from batchplant import ops

OUTSIDE = 255


def double(channels, width):
    layers = [nn.Conv2d(channels, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, classes, width, depth=3):
        super().__init__()
        widths = [width << level for level in range(depth)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(double(3 * b, b) for b in reversed(widths[:-1]))
        self.pool, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        passed = []
        for level, layers in enumerate(self.down):
            x = layers(self.pool(x) if level else x)
            passed.append(x)
        passed.pop()
        for layers in self.up:
            x = layers(torch.cat([self.grow(x), passed.pop()], 1))
        return self.head(x)


def make_loader(path, args, device, training):
    if training:
        image = [
            ops.RandomResizedCrop(args.size, scale=(0.3, 1)),
            ops.RandomRotation(10),
            ops.RandomHorizontalFlip(),
        ]
        image.append(ops.ColorJitter(0.3, 0.3, 0.3))
    else:
        image = [ops.Resize(args.size)]
    pipelines = {
        "image": [*image, ops.Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]), ops.ChannelsFirst()],
        "mask": [ops.MoveMask(of="image", fill=OUTSIDE), ops.ChannelsFirst()],
    }
    order = "random" if training else "sequential"
    return bp.Loader(
        path, args.batch_size, order=order, drop_last=training, pipelines=pipelines, device=device
    )


def mean_iou(model, loader, classes):
    """Return the mean of the classes' intersection over union, counted over all pixels."""
    confusion = torch.zeros(classes, classes)
    model.eval()
    with torch.no_grad():
        for batch in loader:
            truth = batch["mask"][:, 0].long()
            guess = model(batch["image"]).argmax(1)
            pairs = (truth * classes + guess)[truth < classes]
            confusion += torch.bincount(pairs, minlength=classes**2).view(classes, classes).cpu()
    model.train()
    common = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - common
    return float((common / union)[union > 0].mean())


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    loader, val = make_loader(args.train, args, device, True), make_loader(args.val, args, device, False)
    model = UNet(args.classes, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    for epoch in range(args.epochs):
        for batch in loader:
            loss = cross_entropy(model(batch["image"]), batch["mask"][:, 0].long(), ignore_index=OUTSIDE)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        score = mean_iou(model, val, args.classes)
        print(f"epoch {epoch}: loss {loss.item():.3f}, mean IoU {score:.3f}", flush=True)
        if args.weights:
            torch.save(model.state_dict(), args.weights)
    return loss.item()


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="folder with images/ and masks/")
    parser.add_argument("val", nargs="?", help="the same for validation")
    parser.add_argument("--classes", type=int, default=21, help="number of classes (default: 21)")
    parser.add_argument("--weights", help="file to write the weights to after each epoch (default: none)")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument(
        "--size", type=int, default=256, help="height and width, a multiple of 4 (default: 256)"
    )
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer (default: 64)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--quick", action="store_true", help="a few steps on made images")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val, args.classes = _data.masks(), _data.masks(8, seed=1), 3
        args.epochs, args.batch_size, args.size, args.width, args.lr = 1, 8, 32, 8, 0.01
    elif not args.val:
        parser.error("give the training and the validation folder, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
