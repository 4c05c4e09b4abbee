"""The first lines of the process: it stands back before it loads anything, for loading alone takes a second."""

import os
import sys

from instar.gently import OPTION, loading_gently
from instar.worker import NICENESS

if __name__ == "__main__":
    os.nice(NICENESS)
    with loading_gently(lambda: OPTION in sys.argv):
        from instar.worker.process import main

    sys.exit(main(sys.argv[1:]))
