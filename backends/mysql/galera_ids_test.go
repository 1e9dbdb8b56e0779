package mysql

import (
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestGaleraIDsWhileNodesChange: when a node joins or leaves, the others change auto_increment_increment, also between two statements of a
// transaction. A producer gets the ids that the jobs have, and keys belong to their jobs.
func TestGaleraIDsWhileNodesChange(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	t.Parallel()
	g := startGalera(t)
	node := g.Nodes[0]
	name := node.Database(t)
	s := open(t, Options{URL: node.URL(name), rowWait: testwait.Limit})
	holder := connect(t, node, name)
	runSQL(t, holder, "CREATE TABLE gate (id INT PRIMARY KEY, n INT NOT NULL)", "INSERT INTO gate VALUES (1, 0)",
		"CREATE TRIGGER wait AFTER INSERT ON qsidecar_jobs FOR EACH ROW UPDATE gate SET n = n + 1 WHERE id = 1",
		"BEGIN", "UPDATE gate SET n = n - 1 WHERE id = 1")
	jobs := []backends.NewJob{{Queue: "q", Payload: []byte("0")}, {Queue: "q", Payload: []byte("1"), Key: "k1", KeyTTL: time.Hour}, {Queue: "q", Payload: []byte("2"), Key: "k2", KeyTTL: time.Hour}}
	results := make(chan backends.Results, 1)
	go func() {
		r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}})
		if err != nil {
			t.Error(err)
		}
		results <- r
	}()
	testwait.Until(t, "the INSERT waits", func() bool {
		return numberOf(t, node, "information_schema", "SELECT VARIABLE_VALUE FROM GLOBAL_STATUS WHERE VARIABLE_NAME = 'Innodb_row_lock_current_waits'") == 1
	})
	must(t, node, name, "SET GLOBAL auto_increment_increment = 7")
	runSQL(t, holder, "ROLLBACK")
	r := testwait.Receive(t, "the enqueue ends", results)
	if t.Failed() {
		return
	}
	for i, j := range r.Writes[0].Stored {
		if n := numberOf(t, node, name, fmt.Sprintf("SELECT COUNT(*) FROM qsidecar_jobs WHERE id = %s AND payload = '%d'", j.ID, i)); n != 1 {
			t.Errorf("the producer got the id %s for job %d, which has another one", j.ID, i)
		}
		if key := jobs[i].Key; key != "" && numberOf(t, node, name, "SELECT job FROM qsidecar_keys WHERE `key` = '"+key+"'") != numberOf(t, node, name, fmt.Sprintf("SELECT id FROM qsidecar_jobs WHERE payload = '%d'", i)) {
			t.Errorf("the key %s belongs to another job", key)
		}
	}
}
