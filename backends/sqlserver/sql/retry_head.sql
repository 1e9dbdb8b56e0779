DECLARE @retry_base bigint;
SET @retry_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @retry TABLE (
  id bigint NOT NULL PRIMARY KEY, n int NOT NULL, finished_at datetime2(6) NOT NULL, name varbinary(510) NULL,
  [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, taken tinyint NOT NULL DEFAULT 0);
