package sqlserver

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldens returns all batches as they are sent: one for each piece, which ends with the mark of a commit if it
// writes, and some of several pieces.
func goldens() map[string]string {
	s := render(defaultSchema)
	all := map[string]string{
		"schema":      migrate.SQL(defaultSchema, "", 0),
		"begin":       s.begin + "\n",
		"greet":       s.greet + "\n",
		"meta":        migrate.In(defaultSchema, migrate.MetaSQL()) + "\n",
		"commit":      commitSQL + "\n",
		"rollback":    rollbackSQL + "\n",
		"schema_lock": migrate.LockSQL + "\n",

		"examine_settings": s.examine["examine_settings"] + "\n",
		"examine_rights":   strings.Replace(s.examine["examine_rights"], "{RIGHTS}", "  (N'[qsidecar].qsidecar_jobs', 'OBJECT', 'SELECT')", 1) + "\n",
		"examine_indexes":  s.examine["examine_indexes"] + "\n",
		"examine_triggers": s.examine["examine_triggers"] + "\n",
		"behind":           s.behind + "\n",
		"draw":             s.draw + "\n",
		"examine_overdue":  s.examine["examine_overdue"] + "\n",
	}
	add := func(name string, pieces ...*piece) {
		var calls []call
		for _, p := range pieces {
			calls = append(calls, call{piece: p})
		}
		text, declarations := s.batch(calls)
		sets := 0
		for _, p := range pieces {
			sets += p.sets
		}
		all[name] = fmt.Sprintf("-- parameters: %s\n-- result sets: %d\n%s\n", declarations, sets, text)
	}
	for _, p := range s.all {
		switch {
		case p == s.mark, p == s.zone, p == s.line, p == s.brief:
			continue // they are at the beginning or the end of others
		case strings.Contains(p.text, "@wrote"):
			add(p.name, p, s.mark)
		default:
			add(p.name, p)
		}
	}
	add("commit_usual", s.store, s.ack, s.claim, s.host, s.mark)
	add("commit_all", s.storeKeyed, s.ack, s.deliver, s.lock, s.renewClaims, s.endClaims, s.claim, s.host, s.mark)
	return all
}

const goldenDir = "testdata/golden"

// TestGolden compares every batch with its golden file, which was reviewed when it last changed.
func TestGolden(t *testing.T) {
	t.Parallel()
	want := goldens()
	if *update {
		if err := os.RemoveAll(goldenDir); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(goldenDir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(goldenDir, name+".sql"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(goldenDir, "*.sql"))
	if err != nil || len(files) != len(want) {
		t.Errorf("%d golden files for %d statements (%v): go test -run TestGolden -update", len(files), len(want), err)
	}
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join(goldenDir, name+".sql"))
		if err != nil {
			t.Error(err)
		} else if string(got) != text {
			t.Errorf("%s is not what its golden file says: look at it, then go test -run TestGolden -update", name)
		}
	}
}
