-- One row per tar. `shard` is the number of the tar, in the order of the clips.
SELECT row + {shard_shift} AS shard, * EXCLUDE (row)
FROM (SELECT row_number() OVER () - 1 AS row, * FROM shards_file)
