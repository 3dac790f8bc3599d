-- A row a clip: its medium, the user's columns, `wanted_frames`, `distinct_frames`, `padded_frames`, when it begins and ends, and
-- what reading it costs: `decoded_packets`, `runs` (decoder sessions), `byte_ranges` and `bytes_read`.
-- `frames_hash` tells which frames it holds.
SELECT list_extract({first_clip}, c._part + 1) + c._row AS clip, c.clip_id,
    v.media_id, v.uri, v.member, v.kind, v.codec, v.width, v.height,
    c.shard,
    len(c.frames) AS wanted_frames,
    len(list_distinct(list_filter(c.frames, lambda f: f >= 0))) AS distinct_frames,
    len(list_filter(c.mask, lambda m: NOT m)) AS padded_frames,
    list_min(c.seconds) AS begin_seconds,
    list_max(c.seconds) AS end_seconds,
    len(r.packet_size) AS decoded_packets,
    len(r.run_first) AS runs,
    len(r.range_offset) AS byte_ranges,
    list_sum(r.range_length)::BIGINT AS bytes_read,
    hash(c.frames) AS frames_hash,
    r.damaged
    {user_columns}
FROM clips_parts c
JOIN recipes_parts r ON c._part = r._part AND c._row = r._row
JOIN videos v USING (media_row)
