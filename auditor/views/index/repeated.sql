-- Media that have several rows in `videos`.
SELECT media_id FROM videos_parts GROUP BY media_id HAVING count(*) > 1
