package adopted_test

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestOthersToken: check reports rows that show the sidecar's token without a claim of a sidecar, and
// no others.
func TestOthersToken(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		ids := map[mapping.Role][]string{mapping.ID: {"id"}}
		k := on.newKit(t, `CREATE TABLE things (id int PRIMARY KEY, status int NOT NULL DEFAULT 1, pid varchar(9) NULL);
			CREATE TABLE mails (id int PRIMARY KEY, taken int NULL);
			INSERT INTO things (id) VALUES (1), (2), (3), (4); INSERT INTO mails (id) VALUES (1), (2), (3), (4)`, map[string]mapping.Table{
			"things": {Name: "things", Token: &mapping.Token{Column: "pid", Text: "sidecar"},
				Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"status"}},
				States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "1"}, backends.StateClaimed: {Text: "2"}, backends.StateDone: {Text: "3"}}},
			"mails": {Name: "mails", Columns: ids, Token: &mapping.Token{Column: "taken", From: 900, To: 999}, OnAck: mapping.Delete},
		})
		for _, q := range []string{"things", "mails"} {
			k.write(backends.Ack{Leases: leases(k.one(q))}, 0)
			k.write(backends.Nack{Leases: leases(k.one(q)), Error: "x"}, 0)
			k.one(q)
		}
		k.sql("UPDATE things SET status = 2, pid = '7' WHERE id = 4; UPDATE mails SET taken = 899 WHERE id = 4")
		if found := k.findings("token"); found != "" {
			t.Errorf("of its own: %s", found)
		}
		k.sql("UPDATE things SET pid = 'sidecar' WHERE id = 4; UPDATE mails SET taken = 999 WHERE id = 4")
		found := k.findings("token")
		if strings.Count(found, "claimed them (4)") != 2 || !strings.Contains(found, "queues.things.token: ") || !strings.Contains(found, "queues.mails.token: ") {
			t.Errorf("of others: %q", found)
		}
	})
}
