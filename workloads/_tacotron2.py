"""Tacotron 2 (Shen et al., 2017): an encoder of text, location-sensitive attention, a decoder of frames, a postnet.

All widths follow from one: 512 gives those of the paper. Several frames come from each step of the decoder, as in the
first Tacotron, for that makes attention learn sooner.
"""

from typing import NamedTuple

import torch
from _speech import BANDS, SYMBOLS, Batch
from torch import Tensor, nn
from torch.nn.functional import dropout, relu
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

LOCATION_FILTERS, LOCATION_KERNEL = 32, 31
CONVOLUTION_DROPOUT, PRENET_DROPOUT, RECURRENT_DROPOUT = 0.5, 0.5, 0.1


class Heard(NamedTuple):
    """What the model makes of a batch: frames before and after the postnet, [count, frames, 80]; scores of the end and
    attention for each step of the decoder, [count, steps] and [count, steps, length]."""

    before: Tensor
    after: Tensor
    ends: Tensor
    attention: Tensor


def convolution(channels: int, width: int, activation: nn.Module | None) -> list[nn.Module]:
    """Return a convolution over time, its normalisation, and what follows."""
    layers = [nn.Conv1d(channels, width, 5, padding=2), nn.BatchNorm1d(width)]
    return [*layers, *([activation] if activation else []), nn.Dropout(CONVOLUTION_DROPOUT)]


class Encoder(nn.Module):
    """Three convolutions over the text, then an LSTM in both directions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(len(SYMBOLS) + 2, width, padding_idx=0)
        self.convolutions = nn.Sequential(
            *(layer for _number in range(3) for layer in convolution(width, width, nn.ReLU()))
        )
        self.lstm = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)

    def forward(self, text: Tensor, lengths: Tensor) -> Tensor:
        """Return [count, length, width]."""
        states = self.convolutions(self.symbols(text).transpose(1, 2)).transpose(1, 2)
        packed = pack_padded_sequence(states, lengths, batch_first=True, enforce_sorted=False)
        found: Tensor = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=text.shape[1])[0]
        return found


class Attention(nn.Module):
    """Attention that sees where it was before (Chorowski et al., "Attention-based models for speech recognition")."""

    def __init__(self, query: int, memory: int, width: int) -> None:
        super().__init__()
        self.query, self.memory = nn.Linear(query, width, bias=False), nn.Linear(memory, width, bias=False)
        self.places = nn.Conv1d(2, LOCATION_FILTERS, LOCATION_KERNEL, padding=LOCATION_KERNEL // 2, bias=False)
        self.location, self.energy = nn.Linear(LOCATION_FILTERS, width, bias=False), nn.Linear(width, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, before: Tensor, mask: Tensor) -> Tensor:
        """Return weights [count, length]. `before`: the last weights and the sum of all, [count, 2, length]."""
        where = self.location(self.places(before).transpose(1, 2))
        energies = self.energy(torch.tanh(self.query(query)[:, None] + keys + where))[..., 0]
        return energies.masked_fill(mask, float("-inf")).softmax(dim=1)


class Decoder(nn.Module):
    """Frames from the encoded text, each step from the last frame of the step before."""

    def __init__(self, width: int, frames: int) -> None:
        super().__init__()
        self.width, self.frames = width, frames
        self.prenet = nn.ModuleList([nn.Linear(BANDS, width // 2), nn.Linear(width // 2, width // 2)])
        self.attention_lstm = nn.LSTMCell(width // 2 + width, 2 * width)
        self.attention = Attention(2 * width, width, width // 4)
        self.lstm = nn.LSTMCell(3 * width, 2 * width)
        self.heard, self.end = nn.Linear(3 * width, BANDS * frames), nn.Linear(3 * width, 1)

    def forward(self, memory: Tensor, mask: Tensor, mel: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return frames, scores of the end, and attention, from the true frames [count, frames, 80]."""
        count, length, _width = memory.shape
        inputs = torch.cat([mel.new_zeros(count, 1, BANDS), mel[:, self.frames - 1 :: self.frames][:, :-1]], dim=1)
        for layer in self.prenet:
            inputs = dropout(relu(layer(inputs)), PRENET_DROPOUT)  # in evaluation too, as in the paper
        keys, context = self.attention.memory(memory), memory.new_zeros(count, self.width)
        before = memory.new_zeros(count, 2, length)
        first = second = (memory.new_zeros(count, 2 * self.width), memory.new_zeros(count, 2 * self.width))
        states, weights = [], []
        for given in inputs.unbind(dim=1):
            first = self.attention_lstm(torch.cat([given, context], dim=1), first)
            found = self.attention(first[0], keys, before, mask)
            context = (found[:, None] @ memory)[:, 0]
            before = torch.stack([found, before[:, 1] + found], dim=1)
            query = dropout(first[0], RECURRENT_DROPOUT, self.training)
            second = self.lstm(torch.cat([query, context], dim=1), second)
            states.append(torch.cat([dropout(second[0], RECURRENT_DROPOUT, self.training), context], dim=1))
            weights.append(found)
        together = torch.stack(states, dim=1)
        return self.heard(together).reshape(count, -1, BANDS), self.end(together)[..., 0], torch.stack(weights, dim=1)


class Tacotron2(nn.Module):
    """Text to mel frames. `frames`: of each step of the decoder."""

    def __init__(self, width: int, frames: int) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(width), Decoder(width, frames)
        inner = [layer for _number in range(3) for layer in convolution(width, width, nn.Tanh())]
        layers = [*convolution(BANDS, width, nn.Tanh()), *inner, *convolution(width, BANDS, None)]
        self.postnet = nn.Sequential(*layers)

    def forward(self, batch: Batch) -> Heard:
        """Return what the model makes of texts, step by step given the true frames."""
        memory = self.encoder(batch.text, batch.lengths)
        before, ends, attention = self.decoder(memory, batch.text == 0, batch.mel)
        after = before + self.postnet(before.transpose(1, 2)).transpose(1, 2)
        return Heard(before, after, ends, attention)


class Losses(NamedTuple):
    """What is made small: the errors of frames, those of the end, and attention off the diagonal."""

    mel: Tensor
    end: Tensor
    off_diagonal: Tensor


def losses(heard: Heard, batch: Batch) -> Losses:
    """Return the losses of a batch, without its padding.

    Attention off the diagonal costs as in Tachibana et al. ("Efficiently trainable text-to-speech system", 2017).
    """
    device = batch.mel.device
    frames, steps = batch.frames.to(device), heard.ends.shape[1]
    there = torch.arange(batch.mel.shape[1], device=device) < frames[:, None]
    errors = ((heard.before - batch.mel).square() + (heard.after - batch.mel).square()).mean(dim=2)
    lasts = (frames + batch.mel.shape[1] // steps - 1) // (batch.mel.shape[1] // steps) - 1
    numbers = torch.arange(steps, device=device)
    last = (numbers >= lasts[:, None]).float()
    end = nn.functional.binary_cross_entropy_with_logits(heard.ends, last)
    away = distances(batch, steps)
    cost = 1 - torch.exp(-(away.square()) / (2 * 0.2**2))
    inside = (numbers <= lasts[:, None])[..., None]
    off = (heard.attention * cost * inside).sum() / inside.sum()
    return Losses((errors * there).sum() / there.sum(), end, off)


def distances(batch: Batch, steps: int) -> Tensor:
    """Return how far from the diagonal each symbol is at each step, [count, steps, length], -1 to 1."""
    device = batch.mel.device
    per_step = batch.mel.shape[1] / steps
    at = (torch.arange(steps, device=device) + 0.5)[None, :, None] * per_step / batch.frames.to(device)[:, None, None]
    symbols = (torch.arange(batch.text.shape[1], device=device) + 0.5)[None, None]
    return symbols / batch.lengths.to(device)[:, None, None] - at


def on_diagonal(heard: Heard, batch: Batch, band: float = 0.15) -> Tensor:
    """Return the part of all attention that is nearer to the diagonal than a part of the text, 0 to 1."""
    steps = heard.ends.shape[1]
    near = distances(batch, steps).abs() < band
    per_step = batch.mel.shape[1] // steps
    inside = torch.arange(steps, device=near.device) * per_step < batch.frames.to(near.device)[:, None]
    return (heard.attention * near).sum(dim=2)[inside].mean()
