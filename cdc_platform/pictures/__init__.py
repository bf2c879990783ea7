"""Pictures as PNG bytes, and those of a page as SVG: pure functions of numbers and arrays, the same bytes every time.

They know how to draw. The assets, the commands and the documentation choose what is drawn, and gather its numbers.
There is no window and no global state.
"""
