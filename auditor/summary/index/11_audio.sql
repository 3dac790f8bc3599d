-- Audio
SELECT audio_codec, audio_rate, audio_channels, count(*) AS media
FROM videos WHERE status = 'ok' AND audio_codec IS NOT NULL GROUP BY ALL ORDER BY media DESC, audio_codec,
    audio_rate, audio_channels
