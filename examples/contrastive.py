"""Learn features from images without labels (SimCLR): two views of each image, and how well labels follow.

Real data: a folder of images, or any other format. If there are labels, a vote of the nearest neighbours
measures the features:

    python examples/contrastive.py photos/ --val photos-val/ --weights features.pt

Each view is an output of its own, with its own random draws, made from one decoded file.

Quick: python examples/contrastive.py --quick
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import batchplant as bp
from batchplant import ops

LEVELS = ops.Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4])


def encoder(width):
    """Build a plain convolutional network; put a ResNet here for real work."""
    layers, channels = [], 3
    for stage in range(4):
        wider = width << stage
        layers += [nn.Conv2d(channels, wider, 3, 2, 1), nn.BatchNorm2d(wider), nn.ReLU()]
        channels = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), channels


def two_views(path, args, device):
    augment = [
        ops.RandomResizedCrop(args.size, scale=(0.2, 1)),
        ops.RandomHorizontalFlip(),
        ops.ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8),
        ops.RandomGrayscale(0.2),
        ops.GaussianBlur(p=0.5),
        LEVELS,
        ops.ChannelsFirst(),
    ]
    images = bp.open(path).select(["image"])
    views = {"image": None, "first": bp.Pipe("image", augment), "second": bp.Pipe("image", augment)}
    return bp.Loader(images, args.batch_size, order="random", drop_last=True, pipelines=views, device=device)


def contrast(first, second, temperature):
    """NT-Xent: the other view of an image is to be nearer than all other images of the batch."""
    both = normalize(torch.cat([first, second]), dim=1)
    likeness = both @ both.T / temperature
    likeness.fill_diagonal_(float("-inf"))
    count = len(first)
    partner = torch.arange(2 * count, device=both.device).roll(count)
    return cross_entropy(likeness, partner)


def features(network, path, args, device):
    """Return the features of all images in their order, and their labels."""
    middle = [ops.CenterCrop(args.size), LEVELS, ops.ChannelsFirst()]
    loader = bp.Loader(path, args.batch_size, pipelines={"image": middle}, device=device)
    network.eval()
    with torch.no_grad():
        pairs = [(normalize(network(batch["image"]), dim=1), batch["label"]) for batch in loader]
    network.train()
    return [torch.cat(parts) for parts in zip(*pairs, strict=True)]


def neighbours(network, args, device, count=5):
    """Return the share of validation images whose nearest training images vote for their class."""
    known, labels = features(network, args.train, args, device)
    asked, truth = features(network, args.val, args, device)
    nearest = (asked @ known.T).topk(min(count, len(known))).indices
    return float((labels[nearest].mode(1).values == truth).float().mean())


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    loader = two_views(args.train, args, device)
    network, width = encoder(args.width)
    head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 128))
    network, head = network.to(device), head.to(device)
    optimizer = torch.optim.AdamW([*network.parameters(), *head.parameters()], args.lr)
    for epoch in range(args.epochs):
        for batch in loader:
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                first, second = head(network(batch["first"])), head(network(batch["second"]))
            loss = contrast(first.float(), second.float(), args.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        if args.weights:
            torch.save(network.state_dict(), args.weights)
    if args.val:
        print(f"nearest neighbours: {neighbours(network, args, device):.3f} right")
    return loss.item()


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="training images; labels are not used")
    parser.add_argument("--val", help="images with labels, to measure the features with")
    parser.add_argument("--weights", help="file to write the weights to after each epoch (default: none)")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=128, help="height and width in pixels (default: 128)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer (default: 64)")
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--quick", action="store_true", help="a few steps on made images")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val = _data.photos(), _data.photos(seed=1)
        args.epochs, args.batch_size, args.size, args.width = 1, 16, 32, 8
    elif not args.train:
        parser.error("give training images, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
