"""``python -m tailrace.cli``."""

from tailrace.cli import main

if __name__ == "__main__":
    main()
