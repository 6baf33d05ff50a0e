"""Tools built on the library: measurements, advice, the doctor, the simulator and the viewer."""
