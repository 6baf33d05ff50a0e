"""Write tests/golden/spectrograms.npz with librosa: mel spectrograms of one short sound.

usage: make_spectrograms.py FILE
"""

import sys

import librosa
import numpy as np

RATE = 16000
seconds = np.arange(2400) / RATE
rng = np.random.default_rng(22)
sound = (np.sin(2 * np.pi * (300 + 4000 * seconds) * seconds) + 0.1 * rng.standard_normal(2400)).astype(
    np.float32
)
ARGUMENTS = {
    "htk": {"n_fft": 400, "n_mels": 40, "htk": True, "norm": None, "hop_length": 160},
    "slaney": {"n_fft": 512, "n_mels": 64, "htk": False, "norm": "slaney", "hop_length": 128,
               "win_length": 400},
    "magnitude": {"n_fft": 250, "n_mels": 20, "htk": True, "norm": "slaney", "hop_length": 100, "power": 1.0},
    "uncentered": {"n_fft": 400, "n_mels": 30, "htk": False, "norm": None, "center": False, "fmin": 60.0,
                   "fmax": 7000.0, "hop_length": 200},
}  # fmt: skip
made = {
    name: librosa.feature.melspectrogram(y=sound, sr=RATE, pad_mode="reflect", **arguments)
    for name, arguments in ARGUMENTS.items()
}
np.savez_compressed(sys.argv[1], sound=sound, **made)
