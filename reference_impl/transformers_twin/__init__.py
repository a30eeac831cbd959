"""A second implementation of the trainer's step ("the twin"), built from transformers, peft, bitsandbytes and torch.

No module here imports the trainer. The twin reads only the checkpoint's directory, the text, and the settings in the
contract (`declared.py`). These inputs leave two rules of the trainer open: which numbers a seed draws, and in which
order windows of the text are read. docs/reference-step.md describes both rules, and `text.py` and `weights.py`
implement them without code of the trainer.
"""
