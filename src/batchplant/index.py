"""The side-car index: what scanning a file once found out, remembered beside it."""

SUFFIX = ".bpindex"
SIDE_CAR = "{name}" + SUFFIX
