"""Residual networks of 18, 50, 101 and 152 layers (He et al., "Deep residual learning for image recognition", 2015).

As in torchvision, a bottleneck halves the picture in its 3x3 convolution ("version 1.5"), and the sizes of all layers
are the same, so that the numbers of parameters are. Small pictures (CIFAR's) get that paper's stem for them: a 3x3
convolution that halves nothing, and no pooling.
"""

from collections.abc import Iterator

from torch import Tensor, nn

SMALL = 64  # pictures of so many pixels at the most take the stem without halving


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        first, second = convolution(channels, width, 3, stride), convolution(width, width, 3)
        self.branch = nn.Sequential(*first, nn.ReLU(inplace=True), *second)
        self.shortcut = shortcut(channels, width * self.expansion, stride)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return [count, width * expansion, height / stride, width / stride]."""
        return nn.functional.relu(self.branch(pictures) + self.shortcut(pictures))


class Bottleneck(Basic):
    """A 3x3 convolution between two of 1x1, beside a shortcut."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        nn.Module.__init__(self)
        wide = width * self.expansion
        parts = convolution(channels, width, 1), convolution(width, width, 3, stride), convolution(width, wide, 1)
        relu = nn.ReLU(inplace=True)
        self.branch = nn.Sequential(*parts[0], relu, *parts[1], relu, *parts[2])
        self.shortcut = shortcut(channels, wide, stride)


# By name: the block, and how many of them each of the four stages has.
ARCHITECTURES: dict[str, tuple[type[Basic], tuple[int, int, int, int]]] = {
    "resnet18": (Basic, (2, 2, 2, 2)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
    "resnet152": (Bottleneck, (3, 8, 36, 3)),
}


def resnet(name: str, classes: int, size: int, width: int = 64) -> nn.Sequential:
    """Make a network for pictures [count, 3, size, size]; it returns scores [count, classes]. `width`: of stage one."""
    block, counts = ARCHITECTURES[name]
    last = width * 8 * block.expansion
    layers = [*stem(size, width), *stages(block, counts, width), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    made = nn.Sequential(*layers, nn.Linear(last, classes))
    for module in made.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return made


def stem(size: int, width: int) -> list[nn.Module]:
    """Return the layers before the first stage."""
    if size <= SMALL:
        return [*convolution(3, width, 3), nn.ReLU(inplace=True)]
    return [*convolution(3, width, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)]


def stages(block: type[Basic], counts: tuple[int, int, int, int], width: int) -> Iterator[nn.Module]:
    """Yield the blocks of the four stages; each after the first halves the picture and doubles the width."""
    channels = width
    for stage, count in enumerate(counts):
        for number in range(count):
            yield block(channels, width << stage, stride=2 if stage and not number else 1)
            channels = (width << stage) * block.expansion


def convolution(channels: int, width: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and its batch normalisation."""
    layer = nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [layer, nn.BatchNorm2d(width)]


def shortcut(channels: int, width: int, stride: int) -> nn.Module:
    """Return the way past a block: nothing, or a 1x1 convolution where the shape changes."""
    return nn.Sequential(*(convolution(channels, width, 1, stride) if stride > 1 or channels != width else []))
