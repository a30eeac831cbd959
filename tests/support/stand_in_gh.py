#!/usr/bin/env python3
"""Substitute for `gh api`: the comments of a pull request are in a JSON file, `$GH_COMMENTS`.

Like GitHub it needs a token, returns comments in pages of 30 with their authors, and accepts at most 65,536 characters.
It has the options that comment.yml uses; `jq` evaluates `--jq`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

PAGE, MOST = 30, 65_536


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("api", choices=["api"])
    parser.add_argument("path")
    parser.add_argument("--paginate", action="store_true")
    parser.add_argument("--silent", action="store_true")
    parser.add_argument("--method", choices=["GET", "POST", "PATCH"], default="GET")
    parser.add_argument("--jq", default=".")
    parser.add_argument("--field")
    given = parser.parse_args()
    if not os.environ.get("GH_TOKEN"):
        sys.exit("gh: a token is needed")
    file = Path(os.environ["GH_COMMENTS"])
    comments = json.loads(file.read_text()) if file.exists() else []
    if given.method == "GET":
        pages = [comments[at : at + PAGE] for at in range(0, len(comments), PAGE)]
        for page in pages if given.paginate else pages[:1]:
            subprocess.run(["jq", "--raw-output", given.jq], input=json.dumps(page), text=True, check=True)
        return 0
    body = Path(given.field.removeprefix("body=@")).read_text(encoding="utf-8")
    if len(body) > MOST:
        sys.exit("gh: Body is too long (maximum is 65536 characters) (HTTP 422)")
    if given.method == "POST":
        comments.append({"id": len(comments) + 1, "user": {"login": "github-actions[bot]"}, "body": body})
    else:
        [comment] = [each for each in comments if str(each["id"]) == given.path.rpartition("/")[2]]
        comment["body"] = body
    file.write_text(json.dumps(comments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
