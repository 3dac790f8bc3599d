-- One row per clip: its medium, the user's columns, `wanted_frames` (including padding), `distinct_frames`,
-- `padded_frames`, the times of its first and last frame, and its decoding cost in `decoded_packets`, `runs` (decoder
-- sessions), `byte_ranges` and `bytes_read`. `frames_hash` is a hash of the frame numbers. Views of one clip have the
-- same `multiview_id`. `most_away_seconds` is the greatest distance of a view's frame from its requested time.
SELECT (p.first + c._row)::BIGINT AS clip, c.clip_id,
    v.media_id, v.uri, v.member, v.kind, v.codec, v.pts_source, v.width, v.height,
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
    r.damaged,
    c.multiview_id, c.view_name,
    list_max(list_transform(c.view_away_seconds, lambda s: abs(s))) AS most_away_seconds
    {user_columns}
FROM clips_parts c
JOIN (SELECT _part, sum(count(*)) OVER (ORDER BY _part) - count(*) AS first FROM clips_parts GROUP BY _part) p
    ON c._part = p._part
JOIN recipes_parts r ON c._part = r._part AND c._row = r._row
JOIN videos v USING (media_row)
