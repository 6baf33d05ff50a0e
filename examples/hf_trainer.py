"""Fine-tune a vision transformer with the Hugging Face Trainer: a Loader as its dataset.

Real data, on all GPUs of the machine:

    torchrun --nproc-per-node 8 examples/hf_trainer.py photos/train photos/val \\
        --model google/vit-base-patch16-224-in21k --out runs/vit

The Trainer asks for whole batches, which the loader's threads read and decode together. The order, the batch
size and the way to resume are the Trainer's own: the same command goes on from its last checkpoint.

Quick: python examples/hf_trainer.py --quick
"""

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import numpy as np

import batchplant as bp
from batchplant.ops import CenterCrop, ChannelsFirst, Normalize, RandomHorizontalFlip, RandomResizedCrop

try:
    from transformers import AutoModelForImageClassification, Trainer, TrainingArguments, ViTConfig, set_seed
    from transformers.trainer_utils import get_last_checkpoint
except ImportError:
    sys.exit("this example needs Transformers and Accelerate: pip install transformers accelerate")


def make_dataset(path, crop):
    # Levels from -1 to 1, as these models were trained with. The model's argument is called pixel_values.
    steps = [*crop, Normalize([127.5] * 3, [127.5] * 3), ChannelsFirst()]
    pipelines = {"image": None, "pixel_values": bp.Pipe("image", steps)}
    return bp.Loader(path, 1, pipelines=pipelines).as_map_dataset()


def make_model(source, size, names):
    labels = {
        "id2label": dict(enumerate(names)),
        "label2id": dict(zip(names, range(len(names)), strict=True)),
    }
    if source:
        return AutoModelForImageClassification.from_pretrained(source, ignore_mismatched_sizes=True, **labels)
    config = ViTConfig(
        image_size=size,
        patch_size=8,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        **labels,
    )
    return AutoModelForImageClassification.from_config(config)


def accuracy(predicted):
    return {"accuracy": float((np.argmax(predicted.predictions, 1) == predicted.label_ids).mean())}


def train(args):
    names = bp.open(args.train).schema["label"].names
    arguments = TrainingArguments(
        args.out,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size,
        num_train_epochs=args.epochs,
        max_steps=args.stop_after or -1,
        learning_rate=args.lr,
        lr_scheduler_type="constant_with_warmup",
        bf16=not args.quick,
        use_cpu=args.quick,
        eval_strategy="epoch",
        save_steps=args.save_every,
        logging_steps=args.save_every,
        dataloader_num_workers=0
        if args.quick
        else 1,  # one process prefetches, with all threads of the loader
        report_to=[],
        disable_tqdm=args.quick,
        seed=0,
    )
    set_seed(0)
    last = get_last_checkpoint(args.out) if os.path.isdir(args.out) else None
    trainer = Trainer(
        model=make_model(last or args.model, args.size, names),
        args=arguments,
        train_dataset=make_dataset(args.train, [RandomResizedCrop(args.size), RandomHorizontalFlip()]),
        eval_dataset=make_dataset(args.val, [CenterCrop(args.size)]),
        compute_metrics=accuracy,
    )
    done = trainer.train(resume_from_checkpoint=last)
    results = trainer.evaluate()
    print(f"step {done.global_step}: accuracy {results['eval_accuracy']:.3f}")
    return results["eval_loss"]


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="training images")
    parser.add_argument("val", nargs="?", help="validation images")
    parser.add_argument("--model", help="name or folder of a pretrained ViT (default: a tiny one, untrained)")
    parser.add_argument("--out", help="folder of the checkpoints")
    parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="of each process (default: 64)")
    parser.add_argument("--size", type=int, default=224, help="height and width in pixels (default: 224)")
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="stop earlier")
    parser.add_argument("--quick", action="store_true", help="a few steps of a tiny model on made images")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val, args.save_every = _data.photos(), _data.photos(seed=1), 2
        args.out = args.out or _data.new_folder()
        args.epochs, args.batch_size, args.size, args.lr = 2, 16, 32, 1e-3
    elif not (args.val and args.out):
        parser.error("give the training and the validation images and --out, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
