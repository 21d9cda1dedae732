"""``python -m flroute``: the command ``flroute``, for where scripts are not on the path."""

from flroute.cli import app

if __name__ == "__main__":
    app(prog_name="flroute")
