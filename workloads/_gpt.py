"""A decoder-only transformer over bytes: GPT-2's layers (Radford et al., 2019), 256 tokens, no dropout."""

from typing import NamedTuple

from torch import Tensor, arange, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

TOKENS = 256  # bytes


class Shape(NamedTuple):
    """The sizes of a model; `context` is the longest text that it sees, in bytes."""

    layers: int
    heads: int
    width: int
    context: int


class Block(nn.Module):
    """Attention to what came before, and a layer for each position by itself; both are added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention, self.before_layer = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attention, self.mixed = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)
        self.wide, self.narrow = nn.Linear(shape.width, 4 * shape.width), nn.Linear(4 * shape.width, shape.width)

    def forward(self, states: Tensor) -> Tensor:
        """Return [count, length, width] for as many."""
        count, length, width = states.shape
        parts = self.attention(self.before_attention(states)).view(count, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.mixed(found.transpose(1, 2).reshape(count, length, width))
        return states + self.narrow(gelu(self.wide(self.before_layer(states))))


class GPT(nn.Module):
    """Scores of the byte that comes next, for each position."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, shape.width), nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList([Block(shape) for _layer in range(shape.layers)])
        self.end, self.scores = nn.LayerNorm(shape.width), nn.Linear(shape.width, TOKENS, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, text: Tensor) -> Tensor:
        """Return scores [count, length, 256] for bytes int64 [count, length]."""
        states = self.tokens(text) + self.places(arange(text.shape[1], device=text.device))
        for block in self.blocks:
            states = block(states)
        return self.scores(self.end(states))


def operations_per_token(model: nn.Module, shape: Shape) -> int:
    """Return the floating-point operations that training takes for a token.

    Six for each parameter but those that are looked up, and twelve for each value that attention weighs (Chowdhery et
    al., "PaLM", 2022, appendix B).
    """
    looked_up: int = (TOKENS + shape.context) * shape.width
    parameters: int = sum(parameter.numel() for parameter in model.parameters())
    return 6 * (parameters - looked_up) + 12 * shape.layers * shape.width * shape.context
