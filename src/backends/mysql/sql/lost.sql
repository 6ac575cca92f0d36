-- Writes a history entry from the holder itself, which replaces an entry from other clients.
INSERT INTO :runs (name, fence, since, ended, how, outcome, metadata)
VALUES (:name, :fence, TIMESTAMPADD(MICROSECOND, :since * 1000, '1970-01-01 00:00:00.000000'),
        TIMESTAMPADD(MICROSECOND, :ended * 1000, '1970-01-01 00:00:00.000000'), :how,
          :outcome, :metadata)
    ON DUPLICATE KEY UPDATE since = VALUES(since), ended = VALUES(ended), how = VALUES(how),
       outcome = VALUES(outcome), metadata = COALESCE(VALUES(metadata), metadata);
