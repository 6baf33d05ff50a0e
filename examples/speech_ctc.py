"""Train a speech recogniser (mel spectrogram, CTC) on sounds of differing lengths with their texts.

Real data: any dataset with a sound and a text, such as a folder with a metadata.csv (columns file_name and
text), or the Parquet files of LibriSpeech:

    python examples/speech_ctc.py train-clean-100 dev-clean --weights ctc.pt

Batches hold sounds of like length, so that little of them is padding. FLAC and Ogg need batchplant[audio].

Quick: python examples/speech_ctc.py --quick
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import nn
from torch.nn.functional import ctc_loss

import batchplant as bp
from batchplant.ops import DecodeAudio, MelSpectrogram, Pad, SpecAugment

LETTERS = " 'abcdefghijklmnopqrstuvwxyz"  # a letter's number is its place here plus 1: 0 is CTC's blank
BANDS = 64


class Recogniser(nn.Module):
    """Two convolutions, each of which halves the time, a GRU, and scores of the letters."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(BANDS)
        self.first, self.second = nn.Conv1d(BANDS, width, 5, 2, 2), nn.Conv1d(width, width, 5, 2, 2)
        self.recurrent = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, len(LETTERS) + 1)

    def forward(self, sounds):
        x = self.norm(sounds.transpose(1, 2))  # (sounds, bands, windows)
        x = self.second(self.first(x).relu()).relu().transpose(1, 2)
        return self.head(self.recurrent(x)[0]).log_softmax(2)

    @staticmethod
    def lengths(windows):
        return ((windows + 1) // 2 + 1) // 2


def make_loader(path, args, device, training):
    mel = MelSpectrogram(args.rate, n_fft=512, n_mels=BANDS, hop_length=args.rate // 100, log="natural")
    augment = [SpecAugment(time=20, frequency=8)] if training else []
    flat = [lambda ragged: (ragged[0].reshape(-1, BANDS), ragged[1])]  # of one channel
    steps = [DecodeAudio(rate=args.rate, mono=True), mel, *augment, *flat, Pad(mask="audio_mask")]
    order = bp.order.ByLength("audio", "random" if training else "sequential")
    return bp.Loader(path, args.batch_size, order=order, pipelines={"audio": steps}, device=device)


def letters_of(text):
    return [LETTERS.index(letter) + 1 for letter in text.lower() if letter in LETTERS]


def loss_of(model, batch):
    scores = model(batch["audio"])
    spoken = [letters_of(text) for text in batch["text"]]
    targets = torch.tensor([number for numbers in spoken for number in numbers], device=scores.device)
    target_lengths = torch.tensor([len(numbers) for numbers in spoken], device=scores.device)
    lengths = model.lengths(batch["audio_mask"].sum(1))
    return ctc_loss(scores.transpose(0, 1), targets, lengths, target_lengths, zero_infinity=True)


def decode(scores, length):
    """Return the letters with the best scores, repetitions and blanks left out."""
    best = scores[:length].argmax(1).unique_consecutive().tolist()
    return [number for number in best if number]


def edits(a, b):
    """Return how many letters to insert, delete or replace to get from one text to the other."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (left != right))
    return row[-1]


def error_rate(model, loader):
    """Return the number of wrong letters in proportion to all letters."""
    wrong = letters = 0
    model.eval()
    with torch.no_grad():
        for batch in loader:
            scores = model(batch["audio"])
            lengths = model.lengths(batch["audio_mask"].sum(1))
            for text, score, length in zip(batch["text"], scores, lengths, strict=True):
                wrong += edits(decode(score, length), letters_of(text))
                letters += len(letters_of(text))
    model.train()
    return wrong / max(letters, 1)


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    loader, val = make_loader(args.train, args, device, True), make_loader(args.val, args, device, False)
    model = Recogniser(args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    for epoch in range(args.epochs):
        for batch in loader:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(
            f"epoch {epoch}: loss {loss.item():.3f}, letter errors {error_rate(model, val):.3f}", flush=True
        )
        if args.weights:
            torch.save(model.state_dict(), args.weights)
    return loss.item()


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="?", help="sounds with their texts (fields audio and text)")
    parser.add_argument("val", nargs="?", help="the same for validation")
    parser.add_argument("--weights", help="file to write the weights to after each epoch (default: none)")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rate", type=int, default=16000, help="sounds are resampled to it (default: 16000)")
    parser.add_argument("--width", type=int, default=512, help="channels of the model (default: 512)")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--quick", action="store_true", help="a few steps on made sounds")
    args = parser.parse_args(argv)
    if args.quick:
        import _data

        args.train, args.val = _data.speech(), _data.speech(8, seed=1)
        args.epochs, args.batch_size, args.width, args.lr = 1, 8, 32, 0.01
    elif not args.val:
        parser.error("give the training and the validation sounds, or --quick")
    return train(args)


if __name__ == "__main__":
    try:
        main()
    except bp.BatchplantError as error:
        sys.exit(f"error: {error}")
