"""Train with JAX: NumPy batches of the Loader go straight into a jitted step, sharded over the devices.

Real data; the batch size is that of the process and is divided among its devices:

    python examples/jax_train.py imagenet/train imagenet/val --checkpoint jax.npz

The same command goes on from the checkpoint with the next batch. For several hosts, see docs/guides/jax.md.

Quick: python examples/jax_train.py --quick
"""

import json
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import numpy as np

import batchplant as bp
from batchplant.ops import CenterCrop, RandomHorizontalFlip, RandomResizedCrop

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    sys.exit("this example needs JAX: pip install jax")


def make_params(classes, width, seed):
    """Return the weights of three convolutions and a linear layer."""
    keys = jax.random.split(jax.random.key(seed), 4)
    params, channels = {}, 3
    for number, key in enumerate(keys[:3]):
        scale = (2 / (9 * channels)) ** 0.5
        params[f"conv{number}"] = scale * jax.random.normal(key, (3, 3, channels, width << number))
        channels = width << number
    params["head"] = jax.random.normal(keys[3], (channels, classes)) * channels**-0.5
    params["bias"] = jnp.zeros(classes)
    return params


def logits_of(params, images):
    x = (images.astype(jnp.float32) - 116) / 58  # on the device: uint8 is a quarter of the bytes
    for number in range(3):
        weights = params[f"conv{number}"]
        x = jax.lax.conv_general_dilated(
            x, weights, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x)
    return x.mean((1, 2)) @ params["head"] + params["bias"]


def loss_of(params, batch):
    logs = jax.nn.log_softmax(logits_of(params, batch["image"]))
    return -jnp.take_along_axis(logs, batch["label"][:, None], 1).mean()


@jax.jit
def train_step(params, momentum, batch, lr):
    loss, gradient = jax.value_and_grad(loss_of)(params, batch)
    momentum = jax.tree.map(lambda old, new: 0.9 * old + new, momentum, gradient)
    params = jax.tree.map(lambda value, change: value - lr * change, params, momentum)
    return params, momentum, loss


@jax.jit
def count_right(params, batch):
    return (logits_of(params, batch["image"]).argmax(1) == batch["label"]).sum()


def save(path, step, params, momentum, loader):
    arrays = {f"params.{name}": value for name, value in params.items()}
    arrays |= {f"momentum.{name}": value for name, value in momentum.items()}
    state = json.dumps({"step": step, "loader": loader.state_dict()})
    with open(f"{path}.new", "wb") as file:
        np.savez(file, state=state, **arrays)
    os.replace(f"{path}.new", path)  # a crash leaves the old one


def load(path, loader):
    with np.load(path) as arrays:
        state = json.loads(str(arrays["state"]))
        parts = {"params": {}, "momentum": {}}
        for key in arrays.files:
            part, _, name = key.partition(".")
            if name:
                parts[part][name] = jnp.asarray(arrays[key])
    loader.load_state_dict(state["loader"])
    return state["step"], parts["params"], parts["momentum"]


def train(args):
    ranks = {"rank": jax.process_index(), "world_size": jax.process_count()}
    crop = {"image": [RandomResizedCrop(args.size), RandomHorizontalFlip()]}
    # Full batches have one shape, so the step is compiled once.
    loader = bp.Loader(args.train, args.batch_size, order="random", drop_last=True, pipelines=crop, **ranks)
    val = bp.Loader(args.val, args.batch_size, pipelines={"image": [CenterCrop(args.size)]}, **ranks)
    mesh = jax.sharding.Mesh(jax.local_devices(), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    params = make_params(len(bp.open(args.train).schema["label"].names), args.width, seed=0)
    momentum, step, loss = jax.tree.map(jnp.zeros_like, params), 0, jnp.zeros(())
    if args.checkpoint and os.path.exists(args.checkpoint):
        step, params, momentum = load(args.checkpoint, loader)
    steps = args.epochs * len(loader)
    last_step = min(steps, args.stop_after or steps)
    while step < last_step:
        for batch in loader:
            batch = jax.device_put(batch, sharding)
            params, momentum, loss = train_step(params, momentum, batch, args.lr)
            step += 1
            if args.checkpoint and (step % 1000 == 0 or step == last_step):
                save(args.checkpoint, step, params, momentum, loader)
            if step == last_step:
                break
        right = sum(int(count_right(params, batch)) for batch in val)
        print(
            f"step {step} of {steps}: loss {float(loss):.4f}, accuracy {right / val.samples:.3f}", flush=True
        )
    return float(loss)


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="training images")
    parser.add_argument("val", nargs="?", help="validation images")
    parser.add_argument("--checkpoint", help="file to go on from and to write (default: none)")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=160, help="height and width in pixels (default: 160)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer (default: 64)")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="stop earlier, with a checkpoint")
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
