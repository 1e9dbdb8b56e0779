package adopted

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
)

// TestNoRowInErrors checks that the error of a violated constraint names the constraint, and that
// neither the worker nor the log gets the values of the row.
func TestNoRowInErrors(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	s.Queues = `  q: {table: letters, columns: {id: id, payload: body, state: state}, states: {ready: new, claimed: sendin, done: sent}}` + "\n"
	databases.Owners(t, p.URL).Script(`CREATE TABLE letters (id serial PRIMARY KEY, body text, state text CONSTRAINT known CHECK (state IN ('new', 'sending', 'sent')));
		INSERT INTO letters (body, state) VALUES ('private words', 'new')`)
	a := s.Start("a")
	c := a.Dial()
	if r := c.Exchange(kit.Msg{"op": "claim", "queue": "q"}); r.Error != nil || len(r.Jobs) > 0 {
		t.Errorf("a claim: %+v, want no job, because the row is left out", r)
	}
	shown := fmt.Sprintf("%+v", c.Exchange(kit.Msg{"op": "status"}).Databases)
	if !strings.Contains(shown, "known") || strings.Contains(shown, "private words") {
		t.Errorf("the status has %s, want the constraint and not the row", shown)
	}
	if log := a.Log(); strings.Contains(log, "private words") || !strings.Contains(log, "known") {
		t.Errorf("the log has %s", log)
	}
}
