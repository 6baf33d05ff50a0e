"""Write, verify and query the receipt of a run: a Merkle tree of the samples it saw.

examples:
  batchplant receipt run.bprun -o receipt.json
  batchplant receipt run.bprun --until checkpoint.pt -o receipt.json    (a checkpoint with the loader's state)
  batchplant receipt run.bprun --step 1000 -o receipt.json --sign-with 'gpg --detach-sign --armor'
  batchplant receipt verify receipt.json --data photos/
  batchplant receipt contains receipt.json n0153/17.jpg -o proof.json   (a key, number or file)
  batchplant receipt contains receipt.json --image mine.jpg
  batchplant receipt verify receipt.json --proof proof.json             (needs no dataset)

The guide says what a receipt proves, and what it does not.
exit codes: 0 ok, or contained; 1 not verified, or not contained; 2 wrong use
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import subprocess

from ..errors import AccessError, OptionError
from ..storage import put_file
from ..tools.seen import Run, receipts
from .terminal import counted, print_json, say


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", metavar="RUN | verify RECEIPT | contains RECEIPT [SAMPLE]", nargs="+", help="what to do"
    )
    parser.add_argument("--until", metavar="FILE", help="up to the loader's state in this checkpoint")
    parser.add_argument("--step", type=int, metavar="N", help="the first N steps (default: all)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the receipt, or the proof, here")
    parser.add_argument("--data", metavar="PATH", help="the dataset, where it was moved or was in memory")
    parser.add_argument("--image", metavar="FILE", help="the sample with the bytes of this file")
    parser.add_argument(
        "--proof", metavar="FILE", help="verify what `contains -o` wrote, without the dataset"
    )
    parser.add_argument(
        "--sign-with",
        metavar="CMD",
        help="run CMD with the receipt as input, and write its output to FILE.sig",
    )


def run(args: argparse.Namespace) -> int:
    verb, *values = args.words if args.words[0] in ("verify", "contains") else ["make", *args.words]
    if len(values) not in ((1, 2) if verb == "contains" else (1,)):
        raise OptionError(f"`receipt {verb}` takes one file; `batchplant receipt --help` shows examples")
    if verb == "verify":
        return _verify(args, values[0])
    return _contains(args, *values) if verb == "contains" else _make(args, values[0])


def _make(args: argparse.Namespace, path: str) -> int:
    if args.until is not None and args.step is not None:
        raise OptionError("give --until or --step")
    if args.sign_with and not args.output:
        raise OptionError("--sign-with signs a file: give -o")
    step = args.step if args.until is None else receipts.step_in(args.until)
    with Run(path, source=args.data) as record:
        receipt = receipts.make(record, until=step)
    if args.output:
        put_file(args.output, _text(receipt))
        if args.sign_with:
            put_file(f"{args.output}.sig", _signature(args.sign_with, _text(receipt)))
    if args.json or not args.output:
        print_json(receipt)
    else:
        head = receipt["head"]
        counts = f"{counted(head['steps'], 'step')}, {counted(head['consumed'])}"
        say(f"{args.output}: {counts}, root {receipt['root']}")
    return 0


def _text(document: object) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def _signature(command: str, data: bytes) -> bytes:
    try:
        return subprocess.run(shlex.split(command), input=data, stdout=subprocess.PIPE, check=True).stdout
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise AccessError(f"the receipt is not signed: {error}") from None


def _verify(args: argparse.Namespace, path: str) -> int:
    receipt = receipts.read(path)
    if args.proof is not None:
        proof = receipts.proof_of(receipts.read(args.proof))
        proof.check(receipt)
        text = "is" if proof.present else "is not"
        say(f"{args.proof}: proved: the sample {text} among those consumed")
        return 0
    receipts.verify(receipt, source=args.data)
    say(f"{path}: verified: {counted(receipt['head']['consumed'])}, root {receipt['root']}")
    return 0


def _contains(args: argparse.Namespace, path: str, sample: str | None = None) -> int:
    proof = receipts.prove(receipts.read(path), sample, image=args.image, source=args.data)
    document = dataclasses.asdict(proof)
    if args.output:
        put_file(args.output, _text(document))
    if args.json:
        print_json(document)
    else:
        count = int(proof.leaves[0][1][-16:], 16) if proof.present else 0
        name = sample or os.path.basename(args.image or "")
        say(f"{name}: consumed {counted(count, 'time')}" if proof.present else f"{name}: not consumed")
    return 0 if proof.present else 1
