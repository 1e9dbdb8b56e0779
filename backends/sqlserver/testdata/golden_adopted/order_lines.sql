-- parameters: 
-- result sets: 1
SELECT CONVERT(nvarchar(max), count(*), 126) AS qsidecar_1 FROM (SELECT TOP (1) 1 AS one FROM [dbo].[Order Lines] WITH (READPAST, READCOMMITTEDLOCK) WHERE [pid] IS NULL AND [Tries] < 3 AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'lines' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = (REPLACE(REPLACE(CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2, N'\', N'\\'), N',', N'\,') + N',' + REPLACE(REPLACE(CONVERT(nvarchar(4000), [Line], 126) COLLATE Latin1_General_100_BIN2, N'\', N'\\'), N',', N'\,'))) IS NULL) x;

-- parameters: @a1_1 bigint
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [qsidecar].qsidecar_leases WHERE id = @a1_1;
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 bigint, @a1_2 bigint, @a1_3 bigint, @a1_4 bigint, @a1_5 bigint, @a1_6 bigint, @a1_7 bigint, @a1_8 bigint, @a1_9 bigint, @a1_10 bigint, @a1_11 bigint, @a1_12 bigint, @a1_13 bigint, @a1_14 bigint, @a1_15 bigint, @a1_16 bigint, @a1_17 nvarchar(4000), @a1_18 nvarchar(4000), @a1_19 nvarchar(4000), @a1_20 nvarchar(4000), @a1_21 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
INSERT INTO [qsidecar].qsidecar_leases (id, fence, attempts, losses, not_before, claim_max, backoff_ms, backoff_max_ms, token_host, token_number, owner, lease_ms, deadline, due_at, claimed_at, changed_at, queue, item, worker, shown, failures) VALUES (@a1_1, @a1_2, @a1_3, @a1_4, @a1_5, @a1_6, @a1_7, @a1_8, @a1_9, @a1_10, @a1_11, @a1_12, @a1_13, @a1_14, @a1_15, @a1_16, @a1_17, @a1_18, @a1_19, @a1_20, @a1_21);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 bigint, @a1_2 nvarchar(4000)
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), coalesce(DATALENGTH(CONVERT(varchar(max), [What] COLLATE Latin1_General_100_CI_AS_SC_UTF8)), 0) + coalesce(DATALENGTH(CONVERT(varchar(max), CONVERT(nvarchar(max), [HowMany]) COLLATE Latin1_General_100_CI_AS_SC_UTF8)), 0), 126) AS qsidecar_1, CONVERT(nvarchar(max), [Tries], 126) AS qsidecar_2, CONVERT(nvarchar(max), [Urgency], 126) AS qsidecar_3, NULL AS qsidecar_4, NULL AS qsidecar_5, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_6, CONVERT(nvarchar(max), @adopt_line, 126) AS qsidecar_7, CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 AS qsidecar_8, CONVERT(nvarchar(4000), [Line], 126) COLLATE Latin1_General_100_BIN2 AS qsidecar_9 FROM [dbo].[Order Lines] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [pid] IS NULL AND [Tries] < 3 AND (SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM [qsidecar].qsidecar_leases l WHERE l.queue = N'lines' AND l.not_before > DATEDIFF_BIG(millisecond, '1970-01-01', @now)) x WHERE x.qsidecar_item = (REPLACE(REPLACE(CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2, N'\', N'\\'), N',', N'\,') + N',' + REPLACE(REPLACE(CONVERT(nvarchar(4000), [Line], 126) COLLATE Latin1_General_100_BIN2, N'\', N'\\'), N',', N'\,'))) IS NULL AND NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_queues AS p WHERE p.queue = CONVERT(varchar(128), @a1_2) AND p.paused = 1) ORDER BY [Urgency] DESC, [OrderNo], [Line];

-- parameters: @a1_1 bigint, @a1_2_1 nvarchar(4000)
-- result sets: 1
SELECT TOP (@a1_1) CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE [queue] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2) AND l.due_at IS NOT NULL AND l.due_at <= DATEDIFF_BIG(millisecond, '1970-01-01', @now) ORDER BY l.due_at;

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, CONVERT(nvarchar(4000), [Line], 126) COLLATE Latin1_General_100_BIN2 AS qsidecar_2 FROM [dbo].[Order Lines] WHERE ((([OrderNo] = CONVERT(varchar(8000), @a1_1 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_1 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_2)));

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, CONVERT(nvarchar(4000), [Line], 126) COLLATE Latin1_General_100_BIN2 AS qsidecar_2 FROM [dbo].[Order Lines] WITH (READUNCOMMITTED) WHERE ((([OrderNo] = CONVERT(varchar(8000), @a1_1 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_1 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_2)));

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, CONVERT(nvarchar(4000), [Line], 126) COLLATE Latin1_General_100_BIN2 AS qsidecar_2 FROM [dbo].[Order Lines] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE ((([OrderNo] = CONVERT(varchar(8000), @a1_1 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_1 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_2)));

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, CONVERT(nvarchar(4000), [Line], 126) COLLATE Latin1_General_100_BIN2 AS qsidecar_2, [What] AS qsidecar_3, CONVERT(nvarchar(max), [HowMany]) AS qsidecar_4 FROM [dbo].[Order Lines] WHERE ((([OrderNo] = CONVERT(varchar(8000), @a1_1 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_1 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_2)));

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Order Lines] SET [pid] = NULL, [Tries] = 0 WHERE ((([OrderNo] = CONVERT(varchar(8000), @a1_1 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_1 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_2)));
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000), @a1_3 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Order Lines] SET [pid] = CONVERT(int, @a1_1) WHERE ((([OrderNo] = CONVERT(varchar(8000), @a1_2 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_2 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_3))) AND [pid] IS NULL;
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000), @a1_3 nvarchar(4000), @a1_4 nvarchar(4000), @a1_5 nvarchar(4000), @a1_6 nvarchar(4000), @a1_7 nvarchar(4000), @a1_8 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, CONVERT(nvarchar(4000), [Line], 126) COLLATE Latin1_General_100_BIN2 AS qsidecar_2, [What] AS qsidecar_3, CONVERT(nvarchar(max), [HowMany]) AS qsidecar_4 FROM [dbo].[Order Lines] WHERE ((([OrderNo] = CONVERT(varchar(8000), @a1_1 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_1 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_2)) OR (([OrderNo] = CONVERT(varchar(8000), @a1_3 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_3 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_4)) OR (([OrderNo] = CONVERT(varchar(8000), @a1_5 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_5 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_6)) OR (([OrderNo] = CONVERT(varchar(8000), @a1_7 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_7 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_8)));

-- parameters: @a1_1 nvarchar(4000), @a1_2 nvarchar(4000), @a1_3 nvarchar(4000), @a1_4 nvarchar(4000), @a1_5 nvarchar(4000), @a1_6 nvarchar(4000), @a1_7 nvarchar(4000), @a1_8 nvarchar(4000), @a1_9 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Order Lines] SET [pid] = CONVERT(int, @a1_1) WHERE ((([OrderNo] = CONVERT(varchar(8000), @a1_2 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_2 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_3)) OR (([OrderNo] = CONVERT(varchar(8000), @a1_4 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_4 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_5)) OR (([OrderNo] = CONVERT(varchar(8000), @a1_6 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_6 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_7)) OR (([OrderNo] = CONVERT(varchar(8000), @a1_8 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_8 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_9))) AND [pid] IS NULL;
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, ROWLOCK) WHERE l.queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2);

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [qsidecar].qsidecar_leases WHERE queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_1 nvarchar(4000), @a1_2_1 nvarchar(4000), @a1_2_2 nvarchar(4000), @a1_2_3 nvarchar(4000), @a1_2_4 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, ROWLOCK) WHERE l.queue = @a1_1 AND [item] IN (CONVERT(nvarchar(4000), @a1_2_1) COLLATE Latin1_General_100_BIN2, CONVERT(nvarchar(4000), @a1_2_2) COLLATE Latin1_General_100_BIN2, CONVERT(nvarchar(4000), @a1_2_3) COLLATE Latin1_General_100_BIN2, CONVERT(nvarchar(4000), @a1_2_4) COLLATE Latin1_General_100_BIN2);

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), count(*), 126) AS qsidecar_1 FROM [qsidecar].qsidecar_leases l WHERE [queue] IN (CONVERT(nvarchar(4000), @a1_1_1) COLLATE Latin1_General_100_BIN2) AND l.token_host IS NOT NULL AND l.owner IS NOT NULL AND l.lease_ms IS NULL AND NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_hosts AS h WHERE h.host = l.owner AND h.dead = 0);

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (UPDLOCK, ROWLOCK) WHERE [id] IN (TRY_CONVERT(bigint, @a1_1_1)) ORDER BY id;

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), min(l.due_at) - DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_1 FROM [qsidecar].qsidecar_leases l WHERE [queue] IN (CONVERT(nvarchar(4000), @a1_1_1) COLLATE Latin1_General_100_BIN2) AND l.due_at IS NOT NULL;

-- parameters: @a1_1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [qsidecar].qsidecar_leases WHERE [id] IN (TRY_CONVERT(bigint, @a1_1_1));
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_2 bigint, @a1_3 bigint, @a1_4 bigint, @a1_5 bigint, @a1_6 bigint, @a1_7 bigint, @a1_8 bigint, @a1_9 bigint, @a1_10 bigint, @a1_11 bigint, @a1_12 bigint, @a1_13 bigint, @a1_14 bigint, @a1_15 bigint, @a1_16 bigint, @a1_17 nvarchar(4000), @a1_18 nvarchar(4000), @a1_19 nvarchar(4000), @a1_20 nvarchar(4000), @a1_21 nvarchar(4000), @a1_1 bigint
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [qsidecar].qsidecar_leases SET fence = @a1_2, attempts = @a1_3, losses = @a1_4, not_before = @a1_5, claim_max = @a1_6, backoff_ms = @a1_7, backoff_max_ms = @a1_8, token_host = @a1_9, token_number = @a1_10, owner = @a1_11, lease_ms = @a1_12, deadline = @a1_13, due_at = @a1_14, claimed_at = @a1_15, changed_at = @a1_16, queue = @a1_17, item = @a1_18, worker = @a1_19, shown = @a1_20, failures = @a1_21 WHERE id = @a1_1;
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_2 nvarchar(4000), @a1_3 nvarchar(4000), @a1_1 nvarchar(4000)
-- result sets: 1
SELECT CONVERT(nvarchar(max), 1, 126) AS qsidecar_1 FROM [dbo].[Order Lines] WITH (UPDLOCK, ROWLOCK) WHERE ([OrderNo] = CONVERT(varchar(8000), @a1_2 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_2 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_3) AND [pid] = TRY_CONVERT(int, @a1_1);

-- parameters: @a1_2 nvarchar(4000), @a1_3 nvarchar(4000), @a1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
DELETE FROM [dbo].[Order Lines] WHERE ([OrderNo] = CONVERT(varchar(8000), @a1_2 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_2 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_3) AND [pid] = TRY_CONVERT(int, @a1_1);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_2 nvarchar(4000), @a1_3 nvarchar(4000), @a1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
INSERT INTO [dbo].[Order Lines Done] ([OrderNo], [Line], [What]) SELECT [OrderNo], [Line], [What] FROM [dbo].[Order Lines] WHERE ([OrderNo] = CONVERT(varchar(8000), @a1_2 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_2 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_3) AND [pid] = TRY_CONVERT(int, @a1_1);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_2 nvarchar(4000), @a1_3 nvarchar(4000), @a1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Order Lines] SET [pid] = NULL, [Tries] = 3 WHERE ([OrderNo] = CONVERT(varchar(8000), @a1_2 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_2 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_3) AND [pid] = TRY_CONVERT(int, @a1_1);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_2 nvarchar(4000), @a1_3 nvarchar(4000), @a1_1 nvarchar(4000)
-- result sets: 1
SET @wrote = @wrote + 1;
UPDATE [dbo].[Order Lines] SET [pid] = NULL, [Tries] = coalesce([Tries], 0) + 1 WHERE ([OrderNo] = CONVERT(varchar(8000), @a1_2 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_2 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_3) AND [pid] = TRY_CONVERT(int, @a1_1);
SELECT @@ROWCOUNT AS matched;

-- parameters: @a1_3 bigint, @a1_1 nvarchar(4000), @a1_2 nvarchar(4000)
-- result sets: 1
SELECT TOP (@a1_3) CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 AS qsidecar_1, CONVERT(nvarchar(4000), [Line], 126) COLLATE Latin1_General_100_BIN2 AS qsidecar_2 FROM [dbo].[Order Lines] WITH (UPDLOCK, ROWLOCK) WHERE [pid] IS NULL AND [Tries] >= 3 AND ((([OrderNo] = CONVERT(varchar(8000), @a1_1 COLLATE Latin1_General_CI_AS) AND CONVERT(nvarchar(20), [OrderNo]) COLLATE Latin1_General_100_BIN2 = @a1_1 COLLATE Latin1_General_100_BIN2) AND [Line] = TRY_CONVERT(smallint, @a1_2))) ORDER BY [OrderNo], [Line];

-- parameters: @a1_3 bigint, @a1_1_1 nvarchar(4000), @a1_2 bigint
-- result sets: 1
SELECT TOP (@a1_3) CONVERT(nvarchar(max), l.id, 126) AS qsidecar_1, CONVERT(nvarchar(max), l.fence, 126) AS qsidecar_2, CONVERT(nvarchar(max), l.attempts, 126) AS qsidecar_3, CONVERT(nvarchar(max), l.losses, 126) AS qsidecar_4, CONVERT(nvarchar(max), l.not_before, 126) AS qsidecar_5, CONVERT(nvarchar(max), l.claim_max, 126) AS qsidecar_6, CONVERT(nvarchar(max), l.backoff_ms, 126) AS qsidecar_7, CONVERT(nvarchar(max), l.backoff_max_ms, 126) AS qsidecar_8, CONVERT(nvarchar(max), l.token_host, 126) AS qsidecar_9, CONVERT(nvarchar(max), l.token_number, 126) AS qsidecar_10, CONVERT(nvarchar(max), l.owner, 126) AS qsidecar_11, CONVERT(nvarchar(max), l.lease_ms, 126) AS qsidecar_12, CONVERT(nvarchar(max), l.deadline, 126) AS qsidecar_13, CONVERT(nvarchar(max), l.due_at, 126) AS qsidecar_14, CONVERT(nvarchar(max), l.claimed_at, 126) AS qsidecar_15, CONVERT(nvarchar(max), l.changed_at, 126) AS qsidecar_16, CONVERT(nvarchar(max), l.queue, 126) AS qsidecar_17, CONVERT(nvarchar(max), l.item, 126) AS qsidecar_18, CONVERT(nvarchar(max), l.worker, 126) AS qsidecar_19, CONVERT(nvarchar(max), l.shown, 126) AS qsidecar_20, CONVERT(nvarchar(max), l.failures, 126) AS qsidecar_21, CONVERT(nvarchar(max), DATEDIFF_BIG(millisecond, '1970-01-01', @now), 126) AS qsidecar_22 FROM [qsidecar].qsidecar_leases l WITH (READPAST, READCOMMITTEDLOCK) WHERE [queue] IN (CONVERT(nvarchar(4000), @a1_1_1) COLLATE Latin1_General_100_BIN2) AND l.token_host IS NULL AND l.id > @a1_2 ORDER BY l.id;
