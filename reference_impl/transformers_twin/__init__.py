"""The trainer's step by other libraries: transformers (model, loss, tokenizer), peft, bitsandbytes (NF4), torch.

Nothing here imports the trainer. The twin reads only the checkpoint's directory, the text, and the contract's settings
(`declared.py`). Two rules of the trainer cannot be derived from these: which numbers a seed draws, and in which order
windows of the text are read. `text.py` and `weights.py` implement them independently from docs/reference-step.md.
"""
