remembered AS (
    INSERT INTO {runs} (name, fence, since, ended, how, outcome, metadata)
    SELECT $1, f.fence, f.locked_at, f.ended, $4, $5, f.metadata FROM freed AS f
    ON CONFLICT (name, fence) DO NOTHING
    RETURNING fence
)
