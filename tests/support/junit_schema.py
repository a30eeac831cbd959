"""Check JUnit XML with the schema of Jenkins' xunit plugin, using the part of XML Schema that the file needs.

`schemas/junit-10.xsd` is the plugin's own file, under the MIT license that its header states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

XS = "{http://www.w3.org/2001/XMLSchema}"
SCHEMA = ET.parse(Path(__file__).parent / "schemas" / "junit-10.xsd").getroot()  # noqa: S314 - our own file
ELEMENTS = {element.get("name"): element for element in SCHEMA.findall(f"{XS}element")}
PATTERNS = {
    one.get("name"): str(pattern.get("value"))
    for one in SCHEMA.findall(f"{XS}simpleType")
    for pattern in one.iter(f"{XS}pattern")
}


def departures(root: ET.Element) -> Iterator[str]:
    """Yield each violation of the schema, such as `testcase: attribute file`."""
    for element in root.iter():
        declared = ELEMENTS.get(element.tag)
        if declared is None:
            yield f"{element.tag}: unknown element"
            continue
        attributes = {one.get("name"): one for one in declared.iter(f"{XS}attribute")}
        children = {one.get("ref") for one in declared.iter(f"{XS}element") if one.get("ref")}
        yield from (f"{element.tag}: attribute {name}" for name in element.attrib if name not in attributes)
        yield from (
            f"{element.tag}: no attribute {name}"
            for name, one in attributes.items()
            if one.get("use") == "required" and name not in element.attrib
        )
        for name, value in element.attrib.items():
            pattern = PATTERNS.get(attributes[name].get("type")) if name in attributes else None
            if pattern and not re.fullmatch(pattern, value):
                yield f"{element.tag}: {name} is {value}"
        yield from (f"{element.tag}: child {child.tag}" for child in element if child.tag not in children)
