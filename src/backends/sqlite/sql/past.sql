-- Remembers a share that is over, as the trigger does with holds.
-- ?1 namespace, ?2 key, ?3 fence, ?4 since_ms, ?5 ended_ms, ?6 ended, ?7 why, ?8 metadata
INSERT INTO runs (namespace, key, fence, since_ms, ended_ms, ended, why, metadata) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT DO NOTHING
