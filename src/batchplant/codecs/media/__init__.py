"""Images, sound and video: from the bytes of one encoded file to pixels, samples and frames, and back.

``image`` (with exif, pillow, tiff) decodes and encodes one image; ``image_rules`` says what a writer makes of
it. ``audio`` and ``video/`` do so for sound and video. Batches of images never come here: the
engine in native/images decodes those.
"""
