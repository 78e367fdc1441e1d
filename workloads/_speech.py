"""Speech with its text: folders in LJSpeech's format, or a corpus of tones that is made up, one tone for each letter.

What is heard is a mel spectrogram, float32 [frames, 80], as Shen et al. have it ("Natural TTS synthesis by conditioning
WaveNet on mel spectrogram predictions", 2017): about 46 ms windows every 12 ms, 80 bands, the logarithm, then scaled to
-1 to 1, about.
"""

import functools
import math
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from _basics import Mistake, OwnMistake
from torch import Tensor

RATE = 22050  # samples a second: LJSpeech's
WINDOW, HOP, BANDS, LOWEST, HIGHEST = 1024, 256, 80, 0.0, 8000.0
FLOOR = 1e-5
SCALE = 6.0  # logarithms of 1e-5 to e become -0.9 to 1.2
PADDING, END = 0, 1  # ids that no symbol has
SYMBOLS = " !'(),-.:;?abcdefghijklmnopqrstuvwxyz\""
LETTERS = "abcdefgh"  # of the tones
TONE_FRAMES, LOWEST_TONE = 6, 220.0
LONGEST_TEXT = 8


class Clip(NamedTuple):
    """A text, as ids int64 [length] that end with END, and what is heard, [frames, 80]."""

    text: Tensor
    mel: Tensor


class Corpus(Protocol):
    """Clips by their numbers."""

    def __len__(self) -> int:
        """Return how many there are."""

    def clip(self, number: int) -> Clip:
        """Return one of them."""

    def content(self) -> Iterator[bytes]:
        """Yield bytes that are the same where the corpus is the same."""


class Batch(NamedTuple):
    """Clips of different lengths: padded, with their true lengths (in CPU memory)."""

    text: Tensor  # int64 [count, longest]
    lengths: Tensor
    mel: Tensor  # [count, frames, 80], a multiple of the frames of a step
    frames: Tensor

    def to(self, device: torch.device) -> "Batch":
        """Return the same, what is computed with on a device."""
        return self._replace(text=self.text.to(device), mel=self.mel.to(device))


class Tones:
    """Random words whose letters sound as tones of the same length, after a pause of no length."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, LONGEST_TEXT + 1, (count,), generator=generator).tolist()
        letters = [torch.randint(len(LETTERS), (length,), generator=generator).tolist() for length in lengths]
        self.words = ["".join(LETTERS[letter] for letter in word) for word in letters]

    def __len__(self) -> int:
        return len(self.words)

    @functools.cache  # noqa: B019  of a set that lives as long as the program
    def clip(self, number: int) -> Clip:
        """Return one of them."""
        word = self.words[number]
        return Clip(ids(word), spectrogram(torch.cat([tone(letter) for letter in word])))

    def content(self) -> Iterator[bytes]:
        """Yield nothing: all ranks have the same options."""
        yield from ()


class LJSpeech:
    """A folder: metadata.csv has `id|text|normalised text` in each line, wavs/<id>.wav 22,050 Hz, mono, 16 bit."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            lines = (directory / "metadata.csv").read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise Mistake(f"{directory / 'metadata.csv'}: {problem}") from problem
        self.rows = [line.split("|") for line in lines if line.strip()]
        for number, row in enumerate(self.rows, start=1):
            name, text = row[0], row[-1]
            if len(row) not in (2, 3) or not ids(text)[:-1].numel() or Path(name).name != name:
                raise Mistake(f"{directory / 'metadata.csv'}: row {number} is not id|text or id|text|normalised text")
        if len(self.rows) < 2:
            raise Mistake(f"{directory / 'metadata.csv'} has {len(self.rows)} rows: 2 are needed at least")

    def __len__(self) -> int:
        return len(self.rows)

    def clip(self, number: int) -> Clip:
        """Return one of them. Raise OwnMistake if its file is damaged."""
        name, *_others, text = self.rows[number]
        return Clip(ids(text), spectrogram(read_wave(self.directory / "wavs" / f"{name}.wav")))

    def content(self) -> Iterator[bytes]:
        """Yield the rows: reading all clips would take as long as an epoch."""
        yield from ("|".join(row).encode() + b"\n" for row in self.rows)


class Part:
    """Some clips of a corpus."""

    def __init__(self, corpus: Corpus, numbers: range) -> None:
        self.corpus, self.numbers = corpus, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def clip(self, number: int) -> Clip:
        """Return one of them."""
        return self.corpus.clip(self.numbers[number])

    def content(self) -> Iterator[bytes]:
        """Yield that of the whole corpus."""
        return self.corpus.content()


def ids(text: str) -> Tensor:
    """Return a text's symbols as numbers, int64 [length]; others are left out. The last one is END."""
    found = [SYMBOLS.index(letter) + 2 for letter in text.lower() if letter in SYMBOLS]
    return torch.tensor([*found, END])


def tone(letter: str) -> Tensor:
    """Return the sound of a letter, [samples]: a tone and its octave, four to an octave."""
    seconds = torch.arange(TONE_FRAMES * HOP) / RATE
    pitch = LOWEST_TONE * 2 ** (LETTERS.index(letter) / 4)
    return 0.4 * torch.sin(2 * math.pi * pitch * seconds) + 0.2 * torch.sin(4 * math.pi * pitch * seconds)


def read_wave(path: Path) -> Tensor:
    """Return the samples of a WAV file, -1 to 1. Raise OwnMistake if it is damaged, or not 22,050 Hz, mono, 16 bit."""
    try:
        with wave.open(str(path), "rb") as stream:
            kind = stream.getframerate(), stream.getnchannels(), stream.getsampwidth()
            content = bytearray(stream.readframes(stream.getnframes()))
    except (OSError, EOFError, wave.Error) as problem:
        raise OwnMistake(f"{path}: {problem}") from problem
    if kind != (RATE, 1, 2) or len(content) < 2 * WINDOW:
        told = f"{kind[0]} Hz, {kind[1]} channels, {8 * kind[2]} bit, {len(content)} bytes"
        raise OwnMistake(f"{path}: {told}; {RATE} Hz, mono, 16 bit and {2 * WINDOW} bytes at least are needed")
    return torch.frombuffer(content, dtype=torch.int16).float() / 32768


def spectrogram(samples: Tensor) -> Tensor:
    """Return what is heard, [frames, 80]: a frame for every 256 samples."""
    window = torch.hann_window(WINDOW)
    found = torch.stft(samples, WINDOW, HOP, window=window, center=True, pad_mode="reflect", return_complex=True)
    bands = bank() @ found.abs()
    return (bands.clamp(min=FLOOR).log().T[: len(samples) // HOP] + SCALE) / SCALE


@functools.cache
def bank() -> Tensor:
    """Return the weights of each frequency in each band, [80, 513]: triangles even on the mel scale, of equal area.

    The scale of Slaney's Auditory Toolbox (1998), which librosa has: even up to 1,000 Hz, then logarithmic.
    """
    edges = hertz(torch.linspace(mel(LOWEST), mel(HIGHEST), BANDS + 2))
    bins = torch.linspace(0, RATE / 2, WINDOW // 2 + 1)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0) * (2 / (edges[2:] - edges[:-2]))[:, None]


def mel(frequency: float) -> float:
    """Return a frequency (Hz) on the mel scale."""
    return frequency * 3 / 200 if frequency < 1000 else 15 + 27 * math.log(frequency / 1000, 6.4)


def hertz(mels: Tensor) -> Tensor:
    """Return frequencies (Hz) of places on the mel scale."""
    return torch.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))


def collate(clips: list[Clip], frames_per_step: int) -> Batch:
    """Return clips as a batch."""
    lengths, frames = (torch.tensor([len(clip[part]) for clip in clips]) for part in (0, 1))
    longest = math.ceil(int(frames.max()) / frames_per_step) * frames_per_step
    text = torch.full((len(clips), int(lengths.max())), PADDING)
    heard = torch.full((len(clips), longest, BANDS), (math.log(FLOOR) + SCALE) / SCALE)
    for number, clip in enumerate(clips):
        text[number, : len(clip.text)] = clip.text
        heard[number, : len(clip.mel)] = clip.mel
    return Batch(text, lengths, heard, frames)
