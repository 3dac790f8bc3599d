-- One row per tar: `shard` is its number, in the order of clips.
SELECT row_number() OVER () - 1 AS shard, * FROM shards_file
