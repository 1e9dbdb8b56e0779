"""Statements that are broken on purpose: the check must notice each."""

# file, the original text, its replacement, and a part of the complaint
BROKEN = [
    ("claim", "j.queue = @claim_queue", "j.quue = @claim_queue", "no column quue"),
    ("claim", "READPAST, ROWLOCK, READCOMMITTEDLOCK", "READPAST, ROWLOCK", "READCOMMITTEDLOCK"),
    ("claim", "FORCESEEK, UPDLOCK, READPAST", "FORCESEEK, READPAST", "without {'UPDLOCK'}"),
    ("claim", " AND j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL\nOPTION", "\nOPTION", "once more"),
    ("claim", "ORDER BY j.priority DESC, j.position\n", "ORDER BY j.priority, j.position\n", "locked and sorted"),
    ("claim", "AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @claim_queue AND j.priority <=", "AND j.group_name IS NULL AND j.queue = @claim_queue AND j.priority <=", "8622"),
    ("claim", "AND j.group_name IS NULL AND j.queue = @claim_queue AND j.priority <=", "AND j.queue = @claim_queue AND j.priority <=", "8622"),
    ("read_groups", "WHERE j.admitted_group IS NOT NULL\n", "WHERE j.id > 0\n", "8622"),
    ("claim", "\n    ORDER BY j.position\n    OPTION (OPTIMIZE FOR (@claim_left = 1), KEEPFIXED PLAN);", "\n    ORDER BY j.position;", "hundred rows"),
    ("claim", "DECLARE @claim_highest smallint", "DECLARE @claim_highest int", "with claim_highest int"),
    ("claim", "DECLARE @claim_queue varchar(128)", "DECLARE @claim_queue nvarchar(128)", "compares queue varchar(128) with claim_queue nvarchar(128)"),
    ("claim", "SELECT c.slot, c.policy, j.position", "SELECT c.slot, c.polcy, j.position", "no column polcy"),
    ("claim", "SET XACT_ABORT ON;\n", "", "settings"),
    ("claim", "OUTPUT inserted.id INTO @claim_taken\n", "OUTPUT inserted.id\n", "OUTPUT without INTO"),
    ("ack", "INTO @acked\nFROM @ack", "INTO @ack\nFROM @ack", "puts 4 columns out into 6"),
    ("ack", "WHERE j.id = a.id AND", "WHERE j.position = a.id AND", "without its primary key"),
    ("ack", "AS j WITH (ROWLOCK, FORCESEEK)\nWHERE", "AS j WITH (ROWLOCK)\nWHERE", "without FORCESEEK"),
    ("ack", "sidecar bigint NOT NULL, number", "sidecar int NOT NULL, number", "compares token_sidecar bigint with sidecar int"),
    ("ack", "SELECT a.n FROM @ack", "SELECT a.n FROM @acks", "@acks is no list"),
    ("ack", "@ack_leases)", "@ack_lease)", "@ack_lease is not declared"),
    ("ack", "OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);\nIF EXISTS (SELECT 1 FROM @ack ", ";\nIF EXISTS (SELECT 1 FROM @ack ", "leaves the way"),
    ("ack", "OUTPUT deleted.id, deleted.state,", "OUTPUT deleted.id, UPPER(deleted.state),", "computes"),
    ("deliver", "AS d, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)\nWHERE j.id = d.id AND", "AS d INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK) ON j.id = d.id\nWHERE", "that JOINs"),
    ("ack", "ROWLOCK, FORCESEEK, NOWAIT)", "ROWLOCK, FORCESEEK)", "waits for the key"),
    ("ack", "SELECT TOP (1000) o.job", "SELECT o.job", "without a bound"),
    ("delete", "f.job = x.job AND f.fence = x.fence", "f.job = x.job", "without a bound"),
    ("end_claims", "cause, message, at)\nSELECT e.id", "cause, message)\nSELECT e.id", "leaves at out"),
    ("end_claims", "varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY", "varchar(128) NOT NULL PRIMARY KEY", "different collations"),
    ("end_claims", "SELECT e.n FROM @ending", "IF 1 = 1\nSELECT e.n FROM @ending", "perhaps not once"),
    ("store_keyed", "UPDLOCK, HOLDLOCK, ROWLOCK", "HOLDLOCK, ROWLOCK", "wait for each other"),
    ("lock_due", "INDEX (qsidecar_due), FORCESEEK, ", "", "without an index"),
    ("lock_due", "j.due_at <= @now", "j.deadline <= @now", "nothing to seek by"),
    ("lock_due", "INDEX (qsidecar_due)", "INDEX (qsidecar_keys_job)", "has no index"),
    ("promote", "READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.id", "ROWLOCK) ON r.id", "the rows are not locked"),
    ("prune_keys", "FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.queue", "FORCESEEK) ON r.queue", "the rows are not locked"),
    ("claim", "j.position, CASE WHEN j.start_before <= @now THEN CONVERT(bigint, CASE WHEN j.on_expiry = 'delete' THEN 9223372036854775806 ELSE 9223372036854775807 END) ELSE DATALENGTH(j.payload) END", "j.position, 0", "the rows are not locked"),
    ("lock_due", "OPTION (KEEPFIXED PLAN)", "", "compiled again"),
    ("seal", "UPDATE [qsidecar].qsidecar_commits SET number = @seal_number + 1", "MERGE [qsidecar].qsidecar_commits SET number = @seal_number + 1", "cannot be read"),
    ("pause", "WHERE queue = @pause_queue;", "WHERE paused = 0;", "not by primary key"),
]


def unnoticed(goldens, schema, check):
    """What of all that the check does not complain about."""
    for name, old, new, word in BROKEN:
        text = (goldens / f"{name}.sql").read_text()
        if old not in text:
            yield f"{name}: {old!r} is no longer there to be broken"
            continue
        try:
            wrong = check(name, text.replace(old, new), schema)
        except Exception as e:  # noqa: BLE001
            wrong = [f"cannot be read: {e!r}"]
        if word is not None and not any(word in w for w in wrong):
            yield f"{name} with {new!r}: {wrong}"
