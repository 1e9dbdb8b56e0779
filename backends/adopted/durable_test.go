package adopted_test

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestWritesAreSynced: PostgreSQL does not wait for the disk if a commit has only claims, and waits
// for it otherwise. The engine's TestAnsweredIsOnDisk proves that synced writes survive a crash.
func TestWritesAreSynced(t *testing.T) {
	t.Parallel()
	k := newKit(t, systemE+`;
		DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = on', current_database()); END$$;
		CREATE TABLE seen (at serial, what text);
		CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
			INSERT INTO seen (what) SELECT TG_OP || CASE WHEN TG_OP = 'UPDATE' THEN ' ' || NEW.state ELSE '' END || ' ' || current_setting('synchronous_commit');
			RETURN NULL; END$$;
		CREATE TRIGGER see AFTER INSERT OR UPDATE ON my_queue FOR EACH ROW EXECUTE FUNCTION see()`,
		map[string]mapping.Table{"e": tableE()})
	jobs := k.claim("e", 3)
	k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
	k.write(backends.Nack{Leases: leases(jobs[1]), Dead: true}, 0)
	k.write(backends.Release{Leases: leases(jobs[2]), Uncounted: true}, 0)
	k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "e", Payload: []byte("{}")}}}, 0)
	k.write(backends.Ack{Leases: leases(k.one("e")), Enqueue: []backends.NewJob{{Queue: "e", Payload: []byte("{}")}}}, 0)
	k.write(backends.Nack{Leases: leases(k.one("e")), Delay: time.Hour, HasDelay: true}, 0)
	if n, _, err := k.Command(t.Context(), backends.Command{Kind: backends.Retry, Queue: "e", All: true}); n != 1 || err != nil {
		t.Errorf("retry: %d, %v", n, err)
	}
	k.wantRows("SELECT what FROM seen ORDER BY at",
		"UPDATE processing off", "UPDATE processing off", "UPDATE processing off",
		"UPDATE done on", "UPDATE error on", "UPDATE waiting on", "INSERT on",
		"UPDATE processing off", "UPDATE done on", "INSERT on",
		"UPDATE processing off", "UPDATE waiting on", "UPDATE waiting on")
}
