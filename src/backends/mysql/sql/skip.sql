-- Counts a skipped run of a host. Returns a row if there are more hosts than the limit.
INSERT INTO :skips (name, print, host, times, since, last, reason)
VALUES (:name, SHA2(:host, 256), :host, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), :reason)
    ON DUPLICATE KEY UPDATE times = times + 1, last = UTC_TIMESTAMP(6), reason = :reason;
SELECT 1 FROM :skips WHERE name = :name LIMIT 1 OFFSET :most;
