"""Charts of the report, as small SVG in the page's own colours; matplotlib draws them."""
