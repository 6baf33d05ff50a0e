"""Train on a table: numbers with gaps, categories, a target; from Parquet, CSV, Delta Lake, a bucket.

Real data: a table with a column to predict, which holds classes (0, 1, … or text). Other columns of numbers
and text are the inputs:

    python examples/tabular.py customers.parquet --target leaves --weights model.pt

A fifth of the rows is held out. Means, deviations and vocabularies come from the other rows alone.

Quick: python examples/tabular.py --quick
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import batchplant as bp
from batchplant.ops import Categories, Convert, Fill, Normalize, Stack


class Net(nn.Module):
    """An embedding of each category beside the numbers, and two hidden layers."""

    def __init__(self, numbers, vocabularies, classes, width):
        super().__init__()
        # One more row for what is not in the vocabulary: its code is -1.
        self.embeddings = nn.ModuleDict(
            {name: nn.Embedding(size + 1, 8) for name, size in vocabularies.items()}
        )
        inputs = numbers + 8 * len(vocabularies)
        hidden = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, classes))

    def forward(self, batch):
        embedded = [embedding(batch[name] + 1) for name, embedding in self.embeddings.items()]
        return self.layers(torch.cat([batch["numbers"], *embedded], 1))


def make_steps(reader, target):
    """Return the pipelines of a table, its columns of numbers, and the sizes of its vocabularies."""
    pipelines, numbers, vocabularies = {}, [], {}
    for name, field in reader.schema.items():
        if name == target or isinstance(field, bp.Text):
            pipelines[name] = [Categories.fit(reader, name)]
            if name != target:
                vocabularies[name] = len(pipelines[name][0].vocabulary)
        elif isinstance(field, bp.Int | bp.Float | bp.Bool):
            fill = [Fill("mean").fit(reader, name)] if field.optional else []
            pipelines[name] = [*fill, Normalize.fit(reader, name)]
            numbers.append(name)
            if field.optional:  # whether the value was there is an input, too
                pipelines[f"{name}_mask"] = [Convert("float32")]
                numbers.append(f"{name}_mask")
        else:
            pipelines[name] = None
    return pipelines, numbers, vocabularies


def accuracy(model, loader, target):
    right = rows = 0
    model.eval()
    with torch.no_grad():
        for batch in loader:
            right += int((model(batch).argmax(1) == batch[target]).sum())
            rows += len(batch[target])
    model.train()
    return right / max(rows, 1)


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    table = bp.open(args.table)
    if args.target not in table.schema:
        raise SystemExit(
            f"error: {args.table} has no column {args.target!r}; it has {', '.join(table.schema)}"
        )
    parts = bp.split(table, {"train": 0.8, "val": 0.2}, seed=1)
    pipelines, numbers, vocabularies = make_steps(parts["train"], args.target)
    options = {
        "batch_size": args.batch_size,
        "pipelines": [pipelines, Stack(numbers, into="numbers", dtype="float32")],
        "device": device,
    }
    # Windows of neighbouring row groups: a random order would unpack a row group for every row.
    loader = bp.Loader(parts["train"], order="quasi_random", drop_last=True, **options)
    val = bp.Loader(parts["val"], **options)

    classes = len(pipelines[args.target][0].vocabulary)
    model = Net(len(numbers), vocabularies, classes, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    for epoch in range(args.epochs):
        for batch in loader:
            loss = cross_entropy(model(batch), batch[args.target])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = accuracy(model, val, args.target)
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {right:.3f}", flush=True)
    if args.weights:
        torch.save(model.state_dict(), args.weights)
    return right


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", help="Parquet, CSV or another table")
    parser.add_argument("--target", help="the column to predict")
    parser.add_argument("--weights", help="file to write the weights to (default: none)")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--width", type=int, default=256, help="of the hidden layers (default: 256)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--quick", action="store_true", help="some epochs on a small made table")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.table, args.target = _data.table(), "leaves"
        args.epochs, args.batch_size, args.width, args.lr = 5, 32, 32, 0.01
    elif not (args.table and args.target):
        parser.error("give a table and its --target, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
