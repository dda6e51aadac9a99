"""A drafter that drafts nothing; it tells the stand-in verifiers of itself by a file."""

import os
from pathlib import Path

from stand_in_pod import flags, run

given = flags()
(Path(os.environ["STAND_IN_FOLDER"]) / f"{given['--pod-id']}.attached").touch()
run("DRAFTER", "", given["--port"])
