"""Draw the charts of the report with matplotlib, as small SVG in the page's own colours."""
