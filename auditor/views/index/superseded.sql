-- The part and the row number of each row of `videos` that was replaced when its medium was probed again.
SELECT _part, _row FROM (
    SELECT _part, _row, row_number() OVER (PARTITION BY media_id ORDER BY _part DESC, _row DESC) AS age
    FROM videos_parts SEMI JOIN repeated USING (media_id)
)
WHERE age > 1
