"""Draw a screen as SVG: `tmux capture-pane -e -p | .venv/bin/python docs/picture.py TITLE >docs/live.svg`."""

import io
import re
import sys

from rich.console import Console
from rich.text import Text

screen = Text.from_ansi(sys.stdin.read().rstrip())
console = Console(file=io.StringIO(), record=True, width=100, force_terminal=True)
console.print(screen)
svg = console.export_svg(title=sys.argv[1])
# Fonts of the reader's own: a picture must not load anything.
sys.stdout.write(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))
