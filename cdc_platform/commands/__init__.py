"""The command line, a module a command; each is loaded when it is used, so that looking at things stays quick.

Nothing is imported here. `program` is the whole, `output` writes results, `arguments` reads what people type.
"""
