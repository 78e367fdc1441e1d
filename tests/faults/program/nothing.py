"""Leaves at once: the next job, whose ranks are gone before a launcher has looked."""

print("here")
