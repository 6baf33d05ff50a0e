"""Evaluate a classifier exactly, on any number of processes: every sample counts once, and none twice.

Samples seldom divide evenly among processes. A DistributedSampler repeats some to fill the last batches, so
that metrics are a little wrong. Here the last batches are uneven, and some processes may have one fewer.

Real data, with the weights that imagenet_resnet.py wrote:

    torchrun --nproc-per-node 8 examples/evaluate.py imagenet/val \\
        --checkpoint resnet50.pt --csv predictions.csv

Quick: python examples/evaluate.py --quick
"""

import csv
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
import torch.distributed as dist
from imagenet_resnet import join_processes, resnet

import batchplant as bp
from batchplant.interop.torch import ToTorchImage
from batchplant.ops import CenterCrop, Normalize


def make_loader(path, batch_size, size, device, **options):
    steps = [CenterCrop(size), Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]), ToTorchImage()]
    return bp.Loader(
        path, batch_size, pipelines={"image": steps}, evaluate=True, ids=True, device=device, **options
    )


def predict(model, loader):
    """Return this process's part: sample numbers, labels, and the five best classes of each."""
    ids, labels, best = [], [], []
    model.eval()
    with torch.no_grad():
        for batch in loader:  # no collective calls in here: processes may have different numbers of batches
            ids.append(torch.as_tensor(batch["ids"]).cpu())
            labels.append(batch["label"].cpu())
            scores = model(batch["image"])
            best.append(scores.topk(min(5, scores.shape[1])).indices.cpu())
    return [torch.cat(part) if part else torch.empty(0, dtype=torch.int64) for part in (ids, labels, best)]


def gather(part):
    """Return the parts of all processes as one, in the order of the dataset."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part)
    ids, labels, best = (
        torch.cat([part for part in column if len(part)]) for column in zip(*parts, strict=True)
    )
    order = ids.argsort()
    return ids[order], labels[order], best[order]


def measure(labels, best):
    """Return the top-1 and top-5 accuracy, and the mean over classes, which ignores their sizes."""
    right = best == labels[:, None]
    counts = torch.bincount(labels)
    per_class = torch.bincount(labels, weights=right[:, 0].double()) / counts
    return {
        "samples": len(labels),
        "top1": float(right[:, 0].double().mean()),
        "top5": float(right.any(1).double().mean()),
        "mean_class": float(per_class[counts > 0].mean()),
    }


def evaluate(args):
    device = join_processes()
    reader = bp.open(args.data)
    names = reader.schema["label"].names
    torch.manual_seed(0)
    model = resnet(len(names), (1, 1, 1, 1), 8) if args.quick else resnet(len(names))
    if args.checkpoint:
        model.load_state_dict(torch.load(args.checkpoint, map_location="cpu")["model"])
    loader = make_loader(reader, args.batch_size, args.size, device)
    ids, labels, best = gather(predict(model.to(device), loader))
    if ids.tolist() != list(range(len(reader))):
        raise RuntimeError("a sample is missing, or was counted twice")
    results = measure(labels, best)
    if dist.get_rank() == 0:
        print("  ".join(f"{name} {value:.4g}" for name, value in results.items()))
        if args.csv:
            with open(args.csv, "w", newline="") as file:
                table = csv.writer(file)
                table.writerow(["sample", "label", "prediction"])
                for number, label, classes in zip(ids.tolist(), labels.tolist(), best.tolist(), strict=True):
                    table.writerow([number, names[label], names[classes[0]]])
    dist.destroy_process_group()
    return results


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="images with labels")
    parser.add_argument("--checkpoint", help="a checkpoint of imagenet_resnet.py")
    parser.add_argument("--csv", help="file to write the predictions to, in the order of the dataset")
    parser.add_argument("--batch-size", type=int, default=256, help="of each process (default: 256)")
    parser.add_argument("--size", type=int, default=224, help="height and width in pixels (default: 224)")
    parser.add_argument("--quick", action="store_true", help="a tiny model without training on made images")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.data, args.batch_size, args.size = _data.photos(), 7, 32
    elif not (args.data and args.checkpoint):
        parser.error("give images with labels and a --checkpoint, or --quick")
    return evaluate(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
