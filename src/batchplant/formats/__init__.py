"""The formats, one module or package for each; ``FORMAT`` at its end says everything about it, as data.

No format imports another; shared base classes are in ``formats.base``. Only the registry imports them, when
a file of that format is opened.
"""
