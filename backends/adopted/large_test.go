package adopted_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// claimUpTo claims with a limit of a payload, and returns the ids of the jobs.
func (k *kit) claimUpTo(limit int64, n int, queues ...string) (ids string) {
	k.Helper()
	c := k.claimOf(n, queues...)
	c.MaxPayload = limit
	res := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}).Claims[0]
	if res.Err != nil || len(res.Failed) > 0 {
		k.Errorf("claim of %v: %v %v", queues, res.Err, res.Failed)
	}
	for _, j := range res.Jobs {
		ids += j.Queue + j.ID + " "
	}
	return ids
}

// TestRowsThatAreTooLarge shows that rows above max_frame stay as they are, for the table's own consumers, and keep no other
// row from being claimed. The row is claimed when it is smaller, or when the limit is higher.
func TestRowsThatAreTooLarge(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		var ddl string
		tables := map[string]mapping.Table{}
		for name, columns := range map[string][]string{"a": {"body"}, "b": {"body", "more"}} {
			ddl += fmt.Sprintf("CREATE TABLE %s (id %s, state varchar(9) NOT NULL DEFAULT 'new', body varchar(4000) NOT NULL DEFAULT '', more varchar(4000), note varchar(4000));", name, serial(product))
			tables[name] = mapping.Table{
				Name: name, OnAck: mapping.Delete,
				Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Payload: columns, mapping.Headers: {"note"}},
				States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}, backends.StateDead: {Text: "dead"}},
			}
		}
		k := start(ddl, tables)
		large := strings.Repeat("x", 2000)
		k.sql("INSERT INTO a (body) VALUES " + strings.Repeat("('"+large+"'), ", 39) + "('" + large + "')")
		k.sql("INSERT INTO a (body) VALUES ('1'), ('2'), ('3'), ('4')")
		if got := k.claimUpTo(1000, 3, "a"); got != "a41 a42 a43 " {
			t.Errorf("behind 40 large rows it claimed %q", got)
		}
		k.wantRows("SELECT concat_ws('|', state, count(*)) FROM a GROUP BY state ORDER BY state", "busy|3", "new|41")
		all := k.Obstacles()
		if len(all) != 1 || all[0].Job != "1" || all[0].Doing != backends.DoingClaim || !strings.Contains(all[0].Err.Error(), "2000 bytes") || !strings.Contains(all[0].Err.Error(), "raise max_frame") {
			t.Errorf("obstacles %+v", all)
		}
		k.MaxPayload = 1000
		if found := k.findings("table"); !strings.Contains(found, "queues.a.table: 40 rows of") || !strings.Contains(found, "for example 1.") || strings.Contains(found, "queues.b.table") {
			t.Errorf("check finds %s", found)
		}

		forward := k.obstacleClock()
		k.sql("UPDATE a SET body = 'small' WHERE id IN (1, 7)") // 1 is the obstacle
		forward(time.Hour)
		if got := k.claimUpTo(1000, 9, "a"); got != "a1 a7 a44 " {
			t.Errorf("after the owner made two rows smaller it claimed %q", got)
		}
		if got := k.claimUpTo(1000, 9, "a"); got != "" {
			t.Errorf("it claimed %q", got)
		}
		if all := k.Obstacles(); len(all) != 1 || all[0].Job != "2" {
			t.Errorf("obstacles %+v", all)
		}
		k.sql("DELETE FROM a WHERE id = 2") // the table's own consumers worked it
		forward(time.Hour)
		if got := k.claimUpTo(2000, 50, "a"); strings.Count(got, "a") != 37 {
			t.Errorf("with a higher limit it claimed %q", got)
		}
		testwait.Until(t, "the claims notice that nothing is too large", func() bool { return k.claimUpTo(2000, 1, "a") == "" && len(k.Obstacles()) == 0 })

		control := strings.Repeat("\x01", 400) // its JSON text is six times as long
		k.sql("INSERT INTO b (body, note) VALUES ('" + control + "', NULL), ('2', '" + large + "'), ('3', 'n'), ('" + control + "', NULL), ('5', NULL)")
		for _, most := range []int{1, 9} {
			if got, want := k.claimUpTo(1000, most, "b"), map[int]string{1: "b3 ", 9: "b5 "}[most]; got != want {
				t.Errorf("it claimed %q, want %q", got, want)
			}
		}
		k.wantRows("SELECT concat_ws('|', id, state) FROM b ORDER BY id", "1|new", "2|new", "3|busy", "4|new", "5|busy")
		forward(time.Hour)
		var got string
		testwait.Until(t, "all are claimed with a higher limit", func() bool {
			got += k.claimUpTo(9000, 9, "a", "b")
			return strings.Contains(got, "b1 ") && strings.Contains(got, "b2 ") && strings.Contains(got, "b4 ")
		})
	})
}

// TestTxClaimOfRowsThatAreTooLarge is the same for claims in open transactions.
func TestTxClaimOfRowsThatAreTooLarge(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := kitB(t, on)
		k.sql("UPDATE worker_queue SET command = 'too large' WHERE id IN (1, 2)")
		if got := k.claimUpTo(5, 9, "b"); got != "b3 " {
			t.Errorf("it claimed %q", got)
		}
		k.wantRows(rowsB, "1|open|0", "2|open|0", "3|open|0")
		if all := k.Obstacles(); len(all) != 1 || all[0].Job != "1" {
			t.Errorf("obstacles %+v", all)
		}
		forward := k.obstacleClock()
		forward(time.Hour)
		var got string
		testwait.Until(t, "both are claimed with a higher limit", func() bool {
			got += k.claimUpTo(99, 9, "b")
			return got == "b1 b2 " && len(k.Obstacles()) == 0
		})
	})
}
