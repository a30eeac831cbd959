"""The evidence sections of the report, in their order. A section without content is left out."""
