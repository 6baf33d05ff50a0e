"""Folders of shards of records, and an index of them (MDS, LitData): what both share.

Little-endian. A shard begins with a u32, N, the number of its samples, and N + 1 u32: the places in the file
where samples begin, and where the last one ends. A sample is a u32 for each column whose size varies, that
size, and then the cells, one after another. A shard may be packed in any way; it is unpacked as a whole, into
memory, and read there.

What neither format has words for stands in its index, as metadata of our own (:class:`.ShardMetadata`): the
schema, and the column whose bytes say which of the optional fields a sample lacks.
"""
