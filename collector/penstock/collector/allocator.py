"""Let Arrow allocate by malloc: its own pool keeps 15 MiB of a busy collector's 150.

Arrow reads this variable once, when it is loaded, so this module is imported first. The speed is
the same. A value in the environment stays.
"""

import os

os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
