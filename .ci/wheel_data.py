"""Check that a wheel holds every file of the package, and nothing else: wheel_data.py WHEEL."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "holdfast"]
ours = set(
    subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
) - {""}
ours = {name for name in ours if (ROOT / name).is_file()}
packed = {
    name for name in zipfile.ZipFile(sys.argv[1]).namelist() if not name.split("/")[0].endswith(".dist-info")
}
if ours != packed:
    sys.exit(f"not in the wheel: {sorted(ours - packed)}; only in the wheel: {sorted(packed - ours)}")
print(f"{len(packed)} files of the package are in the wheel")
