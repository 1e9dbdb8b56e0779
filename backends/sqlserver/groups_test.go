package sqlserver

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
)

// endsOfNames are names of groups that differ at their ends. SQL Server takes those for equal that differ only in blanks there.
var endsOfNames = []string{"a", "a ", "a  ", "a \x01", "a  \x01", "a \x01\x01", "a\x01", "a\x01 ", " ", "  ", "\x01", "é", "é "}

// TestStoredGroups: the stored names are as different as the names, on a server that passes over blanks at the end.
func TestStoredGroups(t *testing.T) {
	t.Parallel()
	names := map[string]string{}
	for _, name := range endsOfNames {
		stored := storedGroup(name)
		if strings.HasSuffix(stored, " ") {
			t.Errorf("%q is stored as %q, which ends with a blank", name, stored)
		}
		if other, is := names[strings.TrimRight(stored, " ")]; is {
			t.Errorf("%q and %q are both stored as %q", name, other, stored)
		}
		names[stored] = name
		if got := givenGroup(stored); got != name {
			t.Errorf("%q is stored as %q and given as %q", name, stored, got)
		}
	}
}

// TestGroupsWithBlanks: such groups are different ones in the tables, and keep their names.
func TestGroupsWithBlanks(t *testing.T) {
	t.Parallel()
	s, _, _ := emulation(t, standIn(t), "blanks")
	var jobs []backends.NewJob
	for _, name := range endsOfNames {
		jobs = append(jobs, backends.NewJob{Queue: "q", Group: name}, backends.NewJob{Queue: "q", Group: name})
	}
	r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}})
	if err != nil {
		t.Fatal(err)
	}
	s.Admit(t.Context(), r.Groups)
	if st, err := s.Stats(t.Context(), "q"); err != nil || st[0].Ready != int64(len(endsOfNames)) || st[0].Blocked != int64(len(endsOfNames)) {
		t.Errorf("the statistics are %+v, %v, want %d groups with one ready job", st, err, len(endsOfNames))
	}
	for i, j := range jobs {
		views, err := s.Peek(t.Context(), backends.Peek{Queue: "q", IDs: []string{r.Writes[0].Stored[i].ID}, Max: 1})
		if err != nil || len(views) != 1 || views[0].Group != j.Group {
			t.Errorf("a job of the group %q: %+v, %v", j.Group, views, err)
		}
	}
	for _, name := range []string{"a\x00b", "a\xff"} {
		w := backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Group: name}}}
		if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{w}}); !backends.IsRefused(err) {
			t.Errorf("the group %q: %v, want it refused", name, err)
		}
	}
}
