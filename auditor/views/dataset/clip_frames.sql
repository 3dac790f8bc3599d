-- One row per frame of a clip, including padding: `place` (its position in the clip), `frame` (its number in the
-- medium, null for constant padding), its time, and whether it is padding.
SELECT clip_id, place,
    CASE WHEN frame >= 0 THEN frame END AS frame,
    seconds, is_padding
FROM (
    SELECT clip_id,
        generate_subscripts(frames, 1) - 1 AS place,
        unnest(frames) AS frame,
        unnest(seconds) AS seconds,
        NOT unnest(mask) AS is_padding
    FROM clips_parts
)
