"""The first lines of the process: it stands back before it loads anything, for loading alone takes a second."""

import sys

from instar.gently import OPTION, loading_gently
from instar.scheduling import stand_back
from instar.worker import NICENESS

if __name__ == "__main__":
    stand_back(NICENESS)
    with loading_gently(lambda: OPTION in sys.argv):
        from instar.worker.process import main

    sys.exit(main(sys.argv[1:]))
