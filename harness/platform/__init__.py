"""Handle the streams, signals and paths of this machine."""
