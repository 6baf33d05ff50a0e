"""Classify videos by random clips of them; evaluate on the middle of each part.

Real data: a folder of videos with a subfolder for each class (or .tar, .beton … with a field of videos):

    python examples/video_classification.py kinetics/train kinetics/val --weights video.pt

A clip is decoded from the keyframe before it, and all of its frames get the same crop, flip and colours.
Needs batchplant[video].

Quick: python examples/video_classification.py --quick
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import batchplant as bp
from batchplant import ops


class VideoNet(nn.Module):
    """Convolutions over space, then over time, in turns (as R(2+1)D has them)."""

    def __init__(self, classes, width):
        super().__init__()
        layers, channels = [], 3
        for stage in range(3):
            wider = width << stage
            layers += [
                nn.Conv3d(channels, wider, (1, 3, 3), (1, 2, 2), (0, 1, 1)),
                nn.BatchNorm3d(wider),
                nn.ReLU(),
            ]
            layers += [nn.Conv3d(wider, wider, (3, 1, 1), 1, (1, 0, 0)), nn.BatchNorm3d(wider), nn.ReLU()]
            channels = wider
        self.layers = nn.Sequential(
            *layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(channels, classes)
        )

    def forward(self, clips):
        return self.layers(clips.transpose(1, 2))  # (clips, frames, 3, …) to (clips, 3, frames, …)


def make_loader(path, args, device, training):
    decode = ops.DecodeVideo(
        args.frames, segments=args.segments, stride=args.stride, at="random" if training else "centre"
    )
    if training:
        crop = [ops.RandomResizedCrop(args.size, scale=(0.3, 1)), ops.ColorJitter(0.3, 0.3, 0.3)]
    else:
        crop = [ops.CenterCrop(args.size)]
    finish = [ops.Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]), ops.ChannelsFirst()]
    return bp.Loader(
        path,
        args.batch_size,
        order="random" if training else "sequential",
        drop_last=training,
        pipelines={"video": [decode, *crop, *finish]},
        device=device,
        on_error="skip",  # collections from the web have videos that cannot be decoded
    )


def accuracy(model, loader):
    right = videos = 0
    model.eval()
    with torch.no_grad():
        for batch in loader:
            right += int((model(batch["video"]).argmax(1) == batch["label"]).sum())
            videos += len(batch["label"])
    model.train()
    return right / max(videos, 1)


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    loader, val = make_loader(args.train, args, device, True), make_loader(args.val, args, device, False)
    model = VideoNet(len(bp.open(args.train).schema["label"].names), args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    for epoch in range(args.epochs):
        for batch in loader:
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                loss = cross_entropy(model(batch["video"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy(model, val):.3f}", flush=True)
        for problem in loader.skipped:
            print(f"left out: {problem}")
        if args.weights:
            torch.save(model.state_dict(), args.weights)
    return loss.item()


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="training videos")
    parser.add_argument("val", nargs="?", help="validation videos")
    parser.add_argument("--weights", help="file to write the weights to after each epoch (default: none)")
    parser.add_argument("--frames", type=int, default=16, help="of a clip (default: 16)")
    parser.add_argument(
        "--segments", type=int, default=1, help="parts of a video that give frames (default: 1)"
    )
    parser.add_argument("--stride", type=int, default=4, help="take every so many frames (default: 4)")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=112, help="height and width in pixels (default: 112)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer (default: 64)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--quick", action="store_true", help="a few steps on made videos")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val = _data.videos(), _data.videos(4, seed=1)
        args.frames, args.stride, args.epochs, args.batch_size, args.size, args.width = 8, 2, 1, 4, 24, 8
    elif not args.val:
        parser.error("give the training and the validation videos, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
