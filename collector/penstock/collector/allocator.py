"""Arrow takes its memory by malloc: its own pool keeps 15 MiB of a busy collector's 150.

Arrow asks for this once, when it is loaded, so this is imported before whatever loads it. Encoding
a batch takes as long either way. A value that somebody has set stays.
"""

import os

os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
