"""The evidence sections of the report, in their order. One that saw nothing is left out."""
