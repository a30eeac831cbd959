"""The trainer's step built from transformers (model, loss, tokenizer), peft, bitsandbytes (NF4) and torch.

No module here imports the trainer. The twin reads only the checkpoint's directory, the text, and the contract's
settings (`declared.py`). Two rules of the trainer cannot be derived from these inputs: which numbers a seed draws, and
in which order windows of the text are read. `text.py` and `weights.py` implement both rules independently, from
docs/reference-step.md.
"""
