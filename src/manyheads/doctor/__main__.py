"""`python -m manyheads.doctor`: the examination without typer and rich, for when even those are missing."""

import json
import sys

from manyheads import __version__
from manyheads.doctor.examination import examine
from manyheads.doctor.findings import lines

WIDTH = 100


def main(arguments: list[str]) -> int:
    examination = examine()
    if "--json" in arguments:
        print(json.dumps({"manyheads": __version__, **examination.to_dict()}, indent=1))
    else:
        for _, line in lines(examination, WIDTH, plain=not (sys.stdout.encoding or "").lower().startswith("utf")):
            print(line)
    return int(bool(examination.wrong))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
