"""Segment 3-D scans: train on random patches, predict whole volumes from overlapping ones, measure Dice.

Real data: a dataset of volumes of any shapes, with a field for the scan and one for the labels of its voxels
(.beton, HDF5, Zarr, Parquet … of arrays; docs/guides/arrays-and-patches.md makes one):

    python examples/medical_patches.py train.beton val.beton --classes 4 --weights unet3d.pt

Only the volumes of a window are decoded at a time. An array that is larger than memory needs no change: cut
bp.Patches out of it in place.

Quick: python examples/medical_patches.py --quick
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import batchplant as bp
from batchplant.ops import Convert, RandomFlip3d, RandomIntensity, RandomRotate90


def convolution(channels, width, stride=1):
    return nn.Sequential(
        nn.Conv3d(channels, width, 3, stride, 1), nn.InstanceNorm3d(width), nn.LeakyReLU(0.01)
    )


class Net(nn.Module):
    """A U-Net of two levels."""

    def __init__(self, classes, width):
        super().__init__()
        self.fine, self.coarse = convolution(1, width), convolution(width, 2 * width, stride=2)
        self.middle = convolution(2 * width, 2 * width)
        self.up = nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.last = nn.Sequential(convolution(2 * width, width), nn.Conv3d(width, classes, 1))

    def forward(self, scans):
        fine = self.fine(scans[:, None].float())
        return self.last(torch.cat([fine, self.up(self.middle(self.coarse(fine)))], 1))


def training_loader(args, device):
    """Load random patches, some of every volume, turned and mirrored with their labels."""
    size = (args.size,) * 3
    patches = bp.VolumePatches(
        args.train, [args.scan, args.label], size=size, random=args.patches_per_volume, pad=0
    )
    moved = [RandomFlip3d(share="flip"), RandomRotate90(share="turn")]
    levels = [Convert("float32"), RandomIntensity(scale=0.1, shift=0.1, noise=0.05)]
    pipelines = {args.scan: [*moved, *levels], args.label: moved}
    return bp.Loader(
        patches, args.batch_size, order="quasi_random", seed=1, pipelines=pipelines, device=device
    )


def predict(model, reader, args, device):
    """Yield the labels of each volume, and the classes predicted from patches that overlap by half."""
    size = args.size
    grid = bp.VolumePatches(reader, [args.scan], size=(size,) * 3, stride=size // 2, pad=0)
    volumes = grid.select([args.scan, "position", "volume"])
    number, labels, scores = -1, None, None
    for batch in bp.Loader(volumes, args.batch_size, device=device):
        with torch.no_grad():
            predicted = model(batch[args.scan]).softmax(1).cpu().numpy()
        for patch, position, volume in zip(predicted, batch["position"], batch["volume"], strict=True):
            if volume != number:
                if labels is not None:
                    yield labels, scores.argmax(0)
                number = int(volume)
                labels = reader[number][args.label]
                scores = np.zeros((args.classes, *labels.shape), np.float32)
            depth, row, column = position.tolist()
            place = scores[:, depth : depth + size, row : row + size, column : column + size]
            place += patch[:, : place.shape[1], : place.shape[2], : place.shape[3]]  # without the padding
    yield labels, scores.argmax(0)


def dice(model, args, device):
    """Return the mean Dice score of the classes but the background, over whole volumes."""
    model.eval()
    scores = []
    for labels, predicted in predict(model, bp.open(args.val), args, device):
        for number in range(1, args.classes):
            truth, guess = labels == number, predicted == number
            if truth.any() or guess.any():
                scores.append(2 * (truth & guess).sum() / (truth.sum() + guess.sum()))
    model.train()
    return float(np.mean(scores)) if scores else float("nan")


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    loader = training_loader(args, device)
    model = Net(args.classes, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    for epoch in range(args.epochs):
        for batch in loader:
            loss = cross_entropy(model(batch[args.scan]), batch[args.label].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        if args.weights:
            torch.save(model.state_dict(), args.weights)
    score = dice(model, args, device)
    print(f"Dice {score:.3f}")
    return score


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="training volumes")
    parser.add_argument("val", nargs="?", help="validation volumes")
    parser.add_argument("--scan", default="scan", help="field of the volumes (default: scan)")
    parser.add_argument("--label", default="label", help="field of the voxels' classes (default: label)")
    parser.add_argument("--classes", type=int, default=2, help="with the background (default: 2)")
    parser.add_argument("--weights", help="file to write the weights to after each epoch (default: none)")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--size", type=int, default=96, help="side of a patch, an even number (default: 96)")
    parser.add_argument("--patches-per-volume", type=int, default=8, help="in an epoch (default: 8)")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (default: 32)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--quick", action="store_true", help="a few steps on small made volumes")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val = _data.scans(), _data.scans(2, seed=1)
        args.epochs, args.size, args.patches_per_volume, args.width, args.lr = 2, 16, 4, 8, 0.01
    elif not args.val:
        parser.error("give the training and the validation volumes, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
