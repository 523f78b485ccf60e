"""`python -m paper`: errors that a user can mend are one line."""

import sys

from .reproduce import app

if __name__ == "__main__":
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        print(f"reproduce: {error}", file=sys.stderr)
        raise SystemExit(2) from None
