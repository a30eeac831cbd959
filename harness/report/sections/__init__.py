"""Make the evidence sections of the report, in their order. A section that saw nothing is left out."""
