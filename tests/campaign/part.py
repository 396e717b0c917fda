"""The process of one part: ``python -m tests.campaign.part NAME``, which the campaign starts."""

import argparse
import sys
import traceback
from pathlib import Path

from tests.campaign.found import Found, Where
from tests.campaign.parts import PARTS


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("--on", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--found", type=Path, required=True)
    chosen = parser.parse_args()
    found = Found(chosen.found)
    found.save()
    try:
        PARTS[chosen.name].do(Where(chosen.on, chosen.tiny, chosen.folder), found)
    except Exception as error:
        traceback.print_exc()
        found.fail(f"{type(error).__name__}: {error}".splitlines()[0][:300])
    found.save()
    return int(bool(found.failures))


if __name__ == "__main__":
    sys.exit(main())
