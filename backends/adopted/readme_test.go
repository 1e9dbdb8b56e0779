package adopted_test

import (
	"os"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestPlainReaders: consumers that claim without a lock, as the README describes, can claim a row that
// a sidecar has claimed. The sidecar notices.
func TestPlainReaders(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "Its own readers, one for each type:\n\n```sql\n")
	lines := strings.Split(rest, "\n")
	read, take, done := lines[0], lines[1], lines[3]
	k := newKit(t, `CREATE TABLE MsgQueue (MsgId int PRIMARY KEY, MsgTypeCode char(3) NOT NULL, State char(1) NOT NULL DEFAULT 'N', CreateTime timestamp NOT NULL DEFAULT localtimestamp,
		Msg text NULL, ReaderCode varchar(20) NULL, TakenTime timestamp NULL, DoneTime timestamp NULL);
		INSERT INTO MsgQueue VALUES (1, 'ORD'), (2, 'INV')`, map[string]mapping.Table{"orders": {
		Name: "msgqueue",
		Columns: map[mapping.Role][]string{mapping.ID: {"msgid"}, mapping.Payload: {"msg"}, mapping.State: {"state"}, mapping.CreatedAt: {"createtime"},
			mapping.Worker: {"readercode"}, mapping.ClaimedAt: {"takentime"}, mapping.FinishedAt: {"donetime"}},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "N"}, backends.StateClaimed: {Text: "A"}, backends.StateDone: {Text: "C"}, backends.StateDead: {Text: "E"}},
		Where:  map[string]mapping.Value{"msgtypecode": {Text: "ORD"}},
	}})
	var id int
	if err := k.c.QueryRow(t.Context(), read).Scan(&id); err != nil {
		t.Fatal(err)
	}
	job := k.one("orders") // between the reader's statements
	if job.ID != "1" || len(k.claim("orders", 2)) != 0 {
		t.Errorf("%+v", job)
	}
	if _, err := k.c.Exec(t.Context(), take, id, "reader"); err != nil {
		t.Fatal(err)
	}
	k.write(backends.Ack{Leases: leases(job)}, 1)
	k.wantRows("SELECT state || readercode FROM MsgQueue WHERE MsgId = 1", "Areader")
	if _, err := k.c.Exec(t.Context(), done, id); err != nil {
		t.Fatal(err)
	}
	k.wantRows("SELECT state || readercode FROM MsgQueue WHERE MsgId = 1", "Creader")
}
