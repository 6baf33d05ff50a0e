"""Train a ResNet-50 on ImageNet: several GPUs (DDP), bfloat16, a resume that goes on with the next batch.

Real data, two folders with a subfolder for each class (or any other format: .beton, tar, Parquet, s3://…):

    torchrun --nproc-per-node 8 examples/imagenet_resnet.py imagenet/train imagenet/val \\
        --checkpoint resnet50.pt

Stop it at any time: the same command goes on from the last checkpoint, also with another number of GPUs. Keep
GPUs x batch size the same, so that the schedule of the learning rate stays right.

Quick: python examples/imagenet_resnet.py --quick
"""

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, relu

import batchplant as bp
from batchplant.interop.torch import ToTorchImage
from batchplant.ops import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop


def conv(channels, width, size, stride=1):
    return nn.Conv2d(channels, width, size, stride, size // 2, bias=False), nn.BatchNorm2d(width)


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        layers = [*conv(channels, width, 1), nn.ReLU(), *conv(width, width, 3, stride), nn.ReLU()]
        self.layers = nn.Sequential(*layers, *conv(width, 4 * width, 1))
        same = stride == 1 and channels == 4 * width
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv(channels, 4 * width, 1, stride))

    def forward(self, x):
        return relu(self.layers(x) + self.shortcut(x))


def resnet(classes, blocks=(3, 4, 6, 3), width=64):
    """Build a ResNet-50, or a smaller one of fewer blocks and channels."""
    layers = [*conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(channels, width << stage, 2 if stage and not block else 1))
            channels = 4 * width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def join_processes():
    """Join the processes that torchrun started (without torchrun: a world of one); return the device."""
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(**alone)  # NCCL for CUDA, Gloo for CPUs
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cuda", torch.cuda.current_device())


def accuracy(model, loader, device):
    """Return the share of right answers over all processes; every sample counts once."""
    totals = torch.zeros(2, device=device)
    model.eval()
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        for batch in loader:
            totals[0] += (model(batch["image"]).argmax(1) == batch["label"]).sum()
            totals[1] += len(batch["label"])
    model.train()
    dist.all_reduce(totals)
    return float(totals[0] / totals[1])


def train(args):
    device = join_processes()
    finish = [Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]), ToTorchImage()]
    crop = {"image": [RandomResizedCrop(args.size), RandomHorizontalFlip(), *finish]}
    middle = {"image": [CenterCrop(args.size), *finish]}
    size, loss = args.batch_size, torch.zeros(())
    loader = bp.Loader(args.train, size, order="random", drop_last=True, pipelines=crop, device=device)
    val = bp.Loader(args.val, size, evaluate=True, pipelines=middle, device=device)
    classes = len(bp.open(args.train).schema["label"].names)
    torch.manual_seed(0)
    network = resnet(classes, (1, 1, 1, 1), 8) if args.quick else resnet(classes)
    network = network.to(device, memory_format=torch.channels_last)
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-5, nesterov=True)
    step, steps = 0, args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, steps)
    parts = {"model": network, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    if args.checkpoint and os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, map_location="cpu")
        step = saved["step"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    last_step = min(steps, args.stop_after or steps)
    while step < last_step:
        for batch in loader:  # after a resume: the rest of the epoch
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = cross_entropy(model(batch["image"]), batch["label"], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if args.checkpoint and dist.get_rank() == 0 and (step % 1000 == 0 or step == last_step):
                states = {name: part.state_dict() for name, part in parts.items()}
                torch.save({"step": step, **states}, f"{args.checkpoint}.new")
                os.replace(f"{args.checkpoint}.new", args.checkpoint)  # a crash leaves the old one
            if step == last_step:
                break
        right = accuracy(network, val, device)
        if dist.get_rank() == 0:
            print(f"step {step} of {steps}: loss {loss.item():.4f}, accuracy {right:.3f}", flush=True)
    dist.destroy_process_group()
    return loss.item()


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="training images")
    parser.add_argument("val", nargs="?", help="validation images")
    parser.add_argument("--checkpoint", help="file to go on from and to write (default: none)")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=128, help="of each process (default: 128)")
    parser.add_argument("--size", type=int, default=224, help="height and width in pixels (default: 224)")
    parser.add_argument("--lr", type=float, default=2.0, help="the highest learning rate (default: 2.0)")
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="stop earlier, with a checkpoint")
    parser.add_argument("--quick", action="store_true", help="a few steps of a tiny model on made images")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val = _data.photos(), _data.photos(seed=1)
        args.epochs, args.batch_size, args.size, args.lr = 2, 16, 32, 0.05
    elif not args.val:
        parser.error("give the training and the validation images, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
