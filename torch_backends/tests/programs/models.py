"""The models that the programs train, small ones. Their sizes divide by 2, 3 and 4 ranks."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as f
from torch import nn

WIDTH, HEADS, WORDS, LENGTH, BATCH = 24, 12, 48, 12, 4


class Attention(nn.Module):
    """Causal self-attention. Where its projections are divided among ranks, so are its heads."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _part in range(3))
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (part(x).unflatten(-1, (-1, WIDTH // HEADS)) for part in (self.query, self.key, self.value))
        query, key, value = (part.transpose(1, 2) for part in parts)
        scores = query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        mask = torch.full(scores.shape[-2:], float("-inf"), dtype=scores.dtype).triu(1)
        return self.output(((scores + mask).softmax(-1) @ value).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(f.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.feed_forward = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Transformer(nn.Module):
    """A language model of two blocks: from words to the scores of the next one."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _block in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def transformer() -> Transformer:
    """Return one with the same weights on every rank."""
    torch.manual_seed(7)
    return Transformer()


def stack(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths, the same on every rank."""
    torch.manual_seed(8)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers)


def sentences(step: int, rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return words and those that follow, (BATCH, LENGTH) each: those of a step and a rank."""
    chance = torch.Generator().manual_seed(1000 * step + rank)
    words = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=chance)
    return words[:, :-1], words[:, 1:]


def numbers(step: int, rank: int, *shape: int) -> torch.Tensor:
    """Return random numbers, those of a step and a rank."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return f.cross_entropy(scores.flatten(0, 1), words.flatten())
