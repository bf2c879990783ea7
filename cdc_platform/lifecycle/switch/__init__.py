"""The two-phase switch of generations: its register in the lake, and who may decide when."""
