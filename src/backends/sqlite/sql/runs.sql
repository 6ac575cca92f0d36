-- What is remembered of a lock, the latest first.
-- ?1 namespace, ?2 key
SELECT fence, since_ms, ended_ms, ended, why, metadata FROM runs WHERE namespace = ?1 AND key = ?2 ORDER BY fence DESC
