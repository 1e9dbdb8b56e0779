-- The beginning of every claim: its arguments.
DECLARE @claim_segment TABLE (
  n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, policy int NOT NULL,
  highest smallint NOT NULL, lowest smallint NOT NULL, low bigint NOT NULL, high bigint NOT NULL);
INSERT INTO @claim_segment (n, queue, policy, highest, lowest, low, high)
SELECT x.n, x.queue, x.policy, x.highest, x.lowest, x.low, x.high
FROM OPENJSON(@claim_segments) WITH (n int, queue nvarchar(4000), policy int, highest smallint, lowest smallint, low bigint, high bigint) AS x;
DECLARE @claim_picked TABLE (
  id bigint NOT NULL PRIMARY KEY, segment int NOT NULL, policy int NOT NULL, priority smallint NOT NULL, place bigint NOT NULL, size bigint NOT NULL);
DECLARE @claim_left bigint = @claim_max;
DECLARE @claim_n int = 1;
DECLARE @claim_queue varchar(128);
DECLARE @claim_policy_n int;
DECLARE @claim_highest smallint;
DECLARE @claim_lowest smallint;
DECLARE @claim_low bigint;
DECLARE @claim_high bigint;
