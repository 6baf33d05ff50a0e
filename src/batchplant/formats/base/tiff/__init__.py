"""TIFF files for the formats that read them: directories, levels, tiles, georeference."""
