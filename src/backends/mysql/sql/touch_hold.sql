-- Records for inspect that the lease was extended just now. A late update doesn't move the end
-- backwards; a time in the future was written before the server's clock was set back. Does nothing
-- if the hold is marked and must not be extended.
UPDATE :sessions SET renewed_at = UTC_TIMESTAMP(6), ttl_ms = :ttl
 WHERE name = :name AND session = :session AND root = :root
   AND (TIMESTAMPADD(MICROSECOND, :ttl * 1000, UTC_TIMESTAMP(6))
     >= TIMESTAMPADD(MICROSECOND, ttl_ms * 1000, renewed_at)
        OR renewed_at > UTC_TIMESTAMP(6) + INTERVAL 5 SECOND)
   AND (:whatever OR NOT EXISTS (SELECT 1 FROM :marks AS m WHERE m.name = :name
     AND m.fence = :fence));
