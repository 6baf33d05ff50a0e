"""Train with Lightning: a Loader in place of the DataLoader, and checkpoints that resume inside of an epoch.

Real data, on all GPUs of the machine:

    python examples/lightning_train.py imagenet/train imagenet/val --out runs/lightning --devices 8

Lightning saves the state of the loader in its checkpoints. The same command goes on from the last one.

Quick: python examples/lightning_train.py --quick
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
    import lightning
except ImportError:
    sys.exit("this example needs Lightning: pip install lightning")


class Images(lightning.LightningDataModule):
    def __init__(self, args):
        super().__init__()
        self.args = args

    def make_loader(self, path, crop, **options):
        steps = [*crop, Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]), ToTorchImage()]
        # Lightning's launcher does not say how many processes share the cores.
        workers = max(1, os.cpu_count() // self.trainer.num_devices)
        device = self.trainer.strategy.root_device
        pipelines = {"image": steps}
        return bp.Loader(
            path, self.args.batch_size, pipelines=pipelines, workers=workers, device=device, **options
        )

    # Lightning calls these in each process, after it has started them.
    def train_dataloader(self):
        crop = [RandomResizedCrop(self.args.size), RandomHorizontalFlip()]
        return self.make_loader(self.args.train, crop, order="random", drop_last=True)

    def val_dataloader(self):
        return self.make_loader(self.args.val, [CenterCrop(self.args.size)])


class Classifier(lightning.LightningModule):
    def __init__(self, classes, width, lr):
        super().__init__()
        self.lr = lr
        layers, channels = [], 3
        for stage in range(4):
            layers += [
                nn.Conv2d(channels, width << stage, 3, 2, 1),
                nn.BatchNorm2d(width << stage),
                nn.ReLU(),
            ]
            channels = width << stage
        self.network = nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
        )

    def training_step(self, batch, index):
        loss = cross_entropy(self.network(batch["image"]), batch["label"])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        right = (self.network(batch["image"]).argmax(1) == batch["label"]).float().mean()
        # With their batch size, so that a smaller last batch does not count for more.
        self.log("accuracy", right, batch_size=len(batch["label"]), sync_dist=True, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), self.lr)


def train(args):
    lightning.seed_everything(0, verbose=False)
    classes = len(bp.open(args.train).schema["label"].names)
    model = Classifier(classes, args.width, args.lr)
    options = {"logger": False, "max_epochs": args.epochs, "max_steps": args.stop_after or -1}
    if args.out:
        options["callbacks"] = [
            lightning.pytorch.callbacks.ModelCheckpoint(
                args.out, filename="{step}", every_n_train_steps=args.save_every, save_last=True
            )
        ]
    else:
        options["enable_checkpointing"] = False
    if args.quick:
        options |= {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    else:
        options |= {"devices": args.devices, "precision": "bf16-mixed"}
    trainer = lightning.Trainer(**options)
    last = os.path.join(args.out or "", "last.ckpt")
    trainer.fit(model, Images(args), ckpt_path=last if args.out and os.path.exists(last) else None)
    for name, value in trainer.callback_metrics.items():
        print(f"step {trainer.global_step}: {name} {value:.3f}")
    return float(trainer.callback_metrics["loss"])


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="training images")
    parser.add_argument("val", nargs="?", help="validation images")
    parser.add_argument("--out", help="folder of the checkpoints (default: none are written)")
    parser.add_argument("--save-every", type=int, default=1000, metavar="STEPS")
    parser.add_argument("--devices", type=int, default=1, help="number of GPUs (default: 1)")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=128, help="of each process (default: 128)")
    parser.add_argument("--size", type=int, default=224, help="height and width in pixels (default: 224)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer (default: 64)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="stop earlier")
    parser.add_argument("--quick", action="store_true", help="a few steps on made images")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val, args.save_every = _data.photos(), _data.photos(seed=1), 2
        args.epochs, args.batch_size, args.size, args.width = 2, 16, 32, 8
    elif not args.val:
        parser.error("give the training and the validation images, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
