"""Draw the charts of the report with matplotlib, as small SVG images in the colors of the page."""
