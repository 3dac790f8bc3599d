-- One row per tar. `shard` is the number of the tar, in the order of the clips.
SELECT row_number() OVER () - 1 AS shard, * FROM shards_file
