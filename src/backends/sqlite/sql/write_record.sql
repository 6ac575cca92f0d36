-- ?1 namespace, ?2 key, ?3 record
INSERT INTO starts (namespace, key, record) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET record = excluded.record
