"""Writes as JSON what a program sees: arguments, directory, environment."""

import json
import os
import sys

print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}))
