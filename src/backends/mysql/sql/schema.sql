-- Locks: a row per key that was ever taken, never deleted by a release. The first four columns are
-- ShedLock's, in UTC, and of a type that no session's time zone changes; names are told apart by
-- bytes, and so is all text, whatever the server's default is. While owner says what locked_by
-- says, no other program has taken the lock since. The holders and the queue are in document
-- (JSON); bell counts the wake-ups. What follows is kept of the runs of a lock beyond their holds:
-- of the last one with a skew guard or at-least, of the last one with once and what became of it.
CREATE TABLE IF NOT EXISTS :table (
    name       VARBINARY(320) NOT NULL,
    lock_until DATETIME(6) NOT NULL,
    locked_at  DATETIME(6) NOT NULL,
    locked_by  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    layout     SMALLINT NULL,
    owner      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    mode       VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    fence      BIGINT NOT NULL DEFAULT 0,
    renewed_at DATETIME(6) NULL,
    revision   BIGINT NOT NULL DEFAULT 0,
    document      MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    bell       BIGINT NOT NULL DEFAULT 0,
    paced_at        DATETIME(6) NULL,
    paced_fence     BIGINT NULL,
    paced_place     VARBINARY(320) NULL,
    guard_ms        BIGINT NULL,
    at_least_ms     BIGINT NULL,
    paced_who       MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    paced_hold      CHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    start_at        DATETIME(6) NULL,
    start_fence     BIGINT NULL,
    start_stage     VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    start_tries     BIGINT NULL,
    start_window_ms BIGINT NULL,
    start_who       MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    start_hold      CHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    paced_replaced  MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    start_replaced  MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- Who waits, for people who look.
CREATE TABLE IF NOT EXISTS :waiters (
    name     VARBINARY(320) NOT NULL,
    hold     CHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    since    DATETIME(6) NOT NULL,
    seen     DATETIME(6) NOT NULL,
    metadata MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    PRIMARY KEY (name, hold)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- Ended holds of all modes: how each ended, and what else is known of its end, as JSON.
CREATE TABLE IF NOT EXISTS :runs (
    name     VARBINARY(320) NOT NULL,
    fence    BIGINT NOT NULL,
    since    DATETIME(6) NULL,
    ended    DATETIME(6) NULL,
    how      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    outcome  MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    metadata MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    PRIMARY KEY (name, fence)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- Hosts that found a lock taken, and did without; told apart by a hash of the name, which may be
-- long.
CREATE TABLE IF NOT EXISTS :skips (
    name   VARBINARY(320) NOT NULL,
    print  CHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    host   MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    times  BIGINT NOT NULL,
    since  DATETIME(6) NOT NULL,
    last   DATETIME(6) NOT NULL,
    reason MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    PRIMARY KEY (name, print)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- What mode=row locks.
CREATE TABLE IF NOT EXISTS :rows (
    name VARBINARY(320) NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB;
