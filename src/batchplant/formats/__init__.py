"""One file per format; each ends with its ``FORMAT``. No format imports another."""
