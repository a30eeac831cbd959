"""The trainer's step by strangers: transformers' model, loss and tokenizer, peft, bitsandbytes' NF4, torch's optimizer.

Nothing here imports the trainer. What the twin knows it reads from the checkpoint's directory, from the text, and from
the contract's settings (`declared.py`); two rules of the trainer that are nobody's to derive, which numbers a seed
draws and in which order windows of the text are read, are written down anew (`text.py`, `weights.py`) from
docs/reference-step.md.
"""
