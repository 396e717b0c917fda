"""Python imports this when it starts, in every process that a script under ``torch-lms run`` starts.

See ``cli/ranks.py``. It stands before the environment's own ``sitecustomize``, if there is one, and imports that, too.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.abspath(__file__))


def _import_the_other() -> None:
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
    spec = PathFinder.find_spec(__name__)
    if spec is not None and spec.loader is not None:
        sys.modules[__name__] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def _take_part() -> None:
    rank = os.environ.get("LOCAL_RANK")
    if rank is None:
        return
    try:
        from torch_lms.cli.ranks import told
    except ImportError as error:
        where = f"{sys.executable} has no torch_lms"
        print(f"torch-lms: rank {rank} runs without LMS, since {where}: {error}", file=sys.stderr)
        return
    given = told()
    if given is not None:
        from torch_lms.cli.run import run_in_rank

        run_in_rank(*given, rank)


_import_the_other()
_take_part()
