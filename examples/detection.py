"""Train an object detector on COCO boxes, which are cropped, flipped and scaled together with their image.

Real data, in place (YOLO and Pascal VOC folders work the same):

    python examples/detection.py coco/annotations/instances_train2017.json \\
        coco/annotations/instances_val2017.json --weights detector.pt

The detector is small and has no anchors: a cell of a grid names the class whose middle it holds, and its box.

Quick: python examples/detection.py --quick
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, l1_loss

import batchplant as bp
from batchplant import ops


class Detector(nn.Module):
    """Maps images to a grid an eighth as wide: class scores, and boxes (cx, cy, w, h) from 0 to 1."""

    def __init__(self, classes, width):
        super().__init__()
        layers, channels = [], 3
        for stage in range(3):
            wider = width << stage
            layers += [nn.Conv2d(channels, wider, 3, 2, 1), nn.BatchNorm2d(wider), nn.ReLU()]
            layers += [nn.Conv2d(wider, wider, 3, 1, 1), nn.BatchNorm2d(wider), nn.ReLU()]
            channels = wider
        self.backbone = nn.Sequential(*layers)
        self.scores, self.boxes = nn.Conv2d(channels, classes, 1), nn.Conv2d(channels, 4, 1)
        nn.init.constant_(self.scores.bias, -4)  # most cells are empty

    def forward(self, images):
        features = self.backbone(images)
        return self.scores(features), self.boxes(features).sigmoid()


def make_loader(path, args, device, training):
    if training:
        image = [ops.RandomResizedCrop(args.size, scale=(0.3, 1)), ops.RandomHorizontalFlip()]
        image.append(ops.ColorJitter(0.3, 0.3, 0.3))
    else:
        image = [ops.Letterbox(args.size)]
    pipelines = {
        "image": [*image, ops.Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]), ops.ChannelsFirst()],
        # Boxes that end up outside of the crop, or nearly so, are dropped with their labels.
        "boxes": [ops.MoveBoxes(format="cxcywh", normalized=True, min_visibility=0.2), ops.Pad(args.boxes)],
        "labels": [ops.Pad(args.boxes, value=-1)],
    }
    reader = bp.open(path).select(["image", "boxes", "labels"])
    order = "random" if training else "sequential"
    return bp.Loader(
        reader, args.batch_size, order=order, drop_last=training, pipelines=pipelines, device=device
    )


def match(batch, grid):
    """Return (sample, class, row, column) of the cells in which an object has its middle, and their boxes."""
    sample, place = (batch["labels"] >= 0).nonzero(as_tuple=True)
    boxes = batch["boxes"][sample, place]
    column, row = (boxes[:, :2] * grid).long().clamp(max=grid - 1).unbind(1)
    return (sample, batch["labels"][sample, place].long(), row, column), boxes


def loss_of(scores, boxes, batch):
    (sample, label, row, column), targets = match(batch, scores.shape[-1])
    wanted = torch.zeros_like(scores)
    wanted[sample, label, row, column] = 1
    classification = binary_cross_entropy_with_logits(scores, wanted, reduction="sum")
    distance = l1_loss(boxes[sample, :, row, column], targets, reduction="sum")
    return (classification + 5 * distance) / max(len(targets), 1)


def overlap(a, b):
    """Intersection over union of boxes (cx, cy, w, h)."""
    low = torch.maximum(a[:, :2] - a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2)
    high = torch.minimum(a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2)
    common = (high - low).clamp(min=0).prod(1)
    return common / (a[:, 2:].prod(1) + b[:, 2:].prod(1) - common)


def recall(model, loader):
    """Return the share of objects whose cell names their class and a box that overlaps by half."""
    matched = objects = 0
    model.eval()
    with torch.no_grad():
        for batch in loader:
            scores, boxes = model(batch["image"])
            (sample, label, row, column), targets = match(batch, scores.shape[-1])
            right = scores[sample, :, row, column].argmax(1) == label
            matched += int((right & (overlap(boxes[sample, :, row, column], targets) > 0.5)).sum())
            objects += len(targets)
    model.train()
    return matched / max(objects, 1)


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    loader, val = make_loader(args.train, args, device, True), make_loader(args.val, args, device, False)
    model = Detector(len(bp.open(args.train).schema["labels"].names), args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    for epoch in range(args.epochs):
        for batch in loader:
            loss = loss_of(*model(batch["image"]), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, recall {recall(model, val):.3f}", flush=True)
        if args.weights:
            torch.save(model.state_dict(), args.weights)
    return loss.item()


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="training images and boxes: COCO, YOLO or Pascal VOC")
    parser.add_argument("val", nargs="?", help="the same for validation")
    parser.add_argument("--weights", help="file to write the weights to after each epoch (default: none)")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=512, help="height and width in pixels (default: 512)")
    parser.add_argument("--boxes", type=int, default=100, help="most of an image (default: 100)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer (default: 64)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--quick", action="store_true", help="a few steps on made images")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val = _data.coco(), _data.coco(8, seed=1)
        args.epochs, args.batch_size, args.size, args.boxes, args.width, args.lr = 2, 8, 64, 4, 8, 0.01
    elif not args.val:
        parser.error("give the training and the validation data, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
