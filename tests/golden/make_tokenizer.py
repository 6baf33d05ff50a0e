"""Write tokenizer/ with the library tokenizers: ``pip install tokenizers``."""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

FOLDER = Path(__file__).parent / "tokenizer"
SENTENCES = [
    "The plant makes batches, and the trainer takes them.",
    "A batch that is late is a batch that costs money.",
    "Every sample comes once, and every sample comes in its turn.",
    "Tokens are packed into rows, and rows are packed into batches.",
    "What was read once need not be read twice.",
    "The order of an epoch is a function of its seed and of nothing else.",
    "Documents are long or short; rows are of one length.",
    "Nothing is half-written, and nothing is lost.",
]
# What the ids of are kept: also what was never seen in training.
TEXTS = [
    *SENTENCES,
    "",
    " ",
    "batch",
    "batches batches  batches",
    "The end.\n\nAnother page.\t42",
    "Übergrößenträger, naïve café, Ελληνικά, 日本語, 🌱🌱",
    "a" * 300,
    "</s> is text as well as a token",
    "\u0000\u200d\ufeff",
]


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(SENTENCES, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    made.save(str(FOLDER / "tokenizer.json"))
    ids = [
        {
            "text": text,
            "ids": made.encode(text).ids,
            "plain": made.encode(text, add_special_tokens=False).ids,
        }
        for text in TEXTS
    ]
    (FOLDER / "ids.json").write_text(json.dumps(ids, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
