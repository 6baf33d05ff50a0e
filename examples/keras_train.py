"""Train with Keras 3, on PyTorch, JAX or TensorFlow: a Loader is what fit, evaluate and predict take.

Real data:

    KERAS_BACKEND=jax python examples/keras_train.py imagenet/train imagenet/val --out runs/keras

The model and the state of the loader are saved after each epoch. The same command goes on with the next one.

Quick: python examples/keras_train.py --quick
"""

import importlib.util
import json
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import batchplant as bp
from batchplant.ops import CenterCrop, RandomHorizontalFlip, RandomResizedCrop

if "KERAS_BACKEND" not in os.environ and not importlib.util.find_spec("tensorflow"):
    # Keras takes TensorFlow unless it is told otherwise.
    os.environ["KERAS_BACKEND"] = "torch" if importlib.util.find_spec("torch") else "jax"
try:
    import keras
except ImportError:
    sys.exit("this example needs Keras: pip install keras")


def make_model(classes, width, lr):
    layers = [keras.layers.Rescaling(1 / 58, offset=-2)]  # uint8 levels to about -2 … 2
    for stage in range(4):
        layers.append(keras.layers.Conv2D(width << stage, 3, strides=2, padding="same", activation="relu"))
    layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(classes)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.AdamW(lr), loss=loss, metrics=["accuracy"])
    return model


class Save(keras.callbacks.Callback):
    """Save the model and the state of the loader after each epoch."""

    def __init__(self, folder, loader):
        super().__init__()
        self.folder, self.loader = Path(folder), loader
        self.folder.mkdir(parents=True, exist_ok=True)

    def on_epoch_end(self, epoch, logs=None):
        self.model.save(self.folder / f"{epoch}.keras")
        # The small file comes last and names the large one: both belong together, whenever the run ends.
        state = {"epochs": epoch + 1, "model": f"{epoch}.keras", "loader": self.loader.state_dict()}
        (self.folder / "new.json").write_text(json.dumps(state))
        (self.folder / "new.json").replace(self.folder / "state.json")


def train(args):
    keras.utils.set_random_seed(0)
    loader = bp.Loader(
        args.train,
        args.batch_size,
        order="random",
        drop_last=True,
        pipelines={"image": [RandomResizedCrop(args.size), RandomHorizontalFlip()]},
    )
    val = bp.Loader(args.val, args.batch_size, pipelines={"image": [CenterCrop(args.size)]})
    state = Path(args.out, "state.json") if args.out else None
    epoch = 0
    if state and state.exists():
        saved = json.loads(state.read_text())
        epoch = saved["epochs"]
        model = keras.models.load_model(Path(args.out, saved["model"]))
        loader.load_state_dict(saved["loader"])
    else:
        model = make_model(len(bp.open(args.train).schema["label"].names), args.width, args.lr)
    history = model.fit(
        loader.as_keras("image", "label"),
        validation_data=val.as_keras("image", "label"),
        initial_epoch=epoch,
        epochs=min(args.epochs, args.stop_after or args.epochs),
        callbacks=[Save(args.out, loader)] if args.out else [],
        verbose=2,
    )
    return history.history["loss"][-1]


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="training images")
    parser.add_argument("val", nargs="?", help="validation images")
    parser.add_argument("--out", help="folder of the models and the state (default: none is written)")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--size", type=int, default=160, help="height and width in pixels (default: 160)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer (default: 64)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--stop-after", type=int, metavar="EPOCHS", help="stop earlier")
    parser.add_argument("--quick", action="store_true", help="a few steps on made images")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val = _data.photos(), _data.photos(seed=1)
        args.epochs, args.batch_size, args.size, args.width = 2, 16, 32, 8
    elif not args.val:
        parser.error("give the training and the validation images, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
