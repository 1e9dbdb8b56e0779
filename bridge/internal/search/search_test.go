package search

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// store returns a backend with jobs of queue q and their ids.
func store(t *testing.T, jobs ...backends.NewJob) (*memory.Backend, []string) {
	t.Helper()
	b := memory.New()
	t.Cleanup(func() { _ = b.Close() })
	for i := range jobs {
		jobs[i].Queue = "q"
	}
	r, err := b.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}})
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, len(jobs))
	for i, s := range r.Writes[0].Stored {
		ids[i] = s.ID
	}
	return b, ids
}

func search(t *testing.T, peek func(context.Context, backends.Peek) ([]backends.View, error), p backends.Peek, q Query) (found []string, r Result) {
	t.Helper()
	p.Queue, p.State = "q", backends.StateReady
	r, err := Jobs(t.Context(), peek, p, &q, NewBudget())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Views {
		found = append(found, v.ID)
	}
	return found, r
}

func TestPagesShowEachJobOnce(t *testing.T) {
	jobs := make([]backends.NewJob, MaxJobs+20)
	for i := range jobs {
		jobs[i].Payload = fmt.Appendf(nil, "%d.", i)
	}
	b, ids := store(t, jobs...)
	p := backends.Peek{Max: 7}
	var all []string
	for pages := 0; ; pages++ {
		found, r := search(t, b.Peek, p, Query{Text: "99."})
		if all = append(all, found...); r.After == "" {
			break
		}
		if len(found) < p.Max && r.Scanned != MaxJobs {
			t.Fatalf("%d jobs after %d were read, and there are more", len(found), r.Scanned)
		}
		p.After = r.After
	}
	var want []string
	for i := 99; i < len(ids); i += 100 {
		want = append(want, ids[i])
	}
	if !slices.Equal(all, want) {
		t.Errorf("found %d jobs, want %d", len(all), len(want))
	}
}

// TestJobsThatLeave shows that a search goes on if jobs that it listed are gone.
func TestJobsThatLeave(t *testing.T) {
	b, ids := store(t, make([]backends.NewJob, 2*pageJobs+5)...)
	gone := 0
	found, r := search(t, func(ctx context.Context, p backends.Peek) ([]backends.View, error) {
		if len(p.IDs) > 0 && gone == 0 { // all of the second page, and the end of the first
			var err error
			var n int64
			if n, _, err = b.Command(ctx, backends.Command{Kind: backends.Delete, Queue: "q", IDs: ids[pageJobs-2 : 2*pageJobs]}); err != nil {
				return nil, err
			}
			gone = int(n)
		}
		return b.Peek(ctx, p)
	}, backends.Peek{Max: len(ids)}, Query{Headers: map[string]string{}})
	if want := slices.Delete(slices.Clone(ids), pageJobs-2, 2*pageJobs); !slices.Equal(found, want) || r.After != "" || r.Scanned != len(ids) {
		t.Errorf("found %d of %d, read %d, after %q", len(found), len(want), r.Scanned, r.After)
	}
}

func TestBytesAreLimited(t *testing.T) {
	large := []byte(strings.Repeat("x", PageBytes+1))
	jobs := make([]backends.NewJob, 70)
	for i := range jobs {
		jobs[i].Payload = large
	}
	b, ids := store(t, jobs...)
	if _, r := search(t, b.Peek, backends.Peek{Max: 99}, Query{Text: "y"}); r.Scanned != maxBytes/PageBytes || r.After != ids[r.Scanned-1] {
		t.Errorf("%d jobs of 1 MiB were read, after %q", r.Scanned, r.After)
	}
	found, r := search(t, b.Peek, backends.Peek{Max: 99, MaxBytes: 3*PageBytes + 9}, Query{Text: "x"})
	if len(found) != 3 || r.After != ids[2] {
		t.Errorf("%d jobs of 1 MiB fit 3 MiB, after %q", len(found), r.After)
	}
	if found, r = search(t, b.Peek, backends.Peek{Max: 99, MaxBytes: 1}, Query{Text: "x"}); len(found) != 1 || r.After != ids[0] {
		t.Errorf("%d jobs if none fits, after %q", len(found), r.After)
	}
}

func TestMatches(t *testing.T) {
	v := &backends.View{Key: "user-17", Payload: []byte("p\xffyload"), Headers: map[string]string{"a": "1", "empty": ""}}
	for _, c := range []struct {
		q    Query
		want bool
	}{
		{Query{}, true}, {Query{Key: "user-17"}, true}, {Query{Key: "user-1"}, false},
		{Query{Text: "yload"}, true}, {Query{Text: "YLOAD"}, false}, {Query{Text: "r-1"}, true}, {Query{Text: "1"}, true}, {Query{Text: "a"}, true},
		{Query{Text: "empty"}, false}, // the name of a header
		{Query{Headers: map[string]string{"a": "1"}}, true}, {Query{Headers: map[string]string{"a": "2"}}, false},
		{Query{Headers: map[string]string{"empty": ""}}, true}, {Query{Headers: map[string]string{"none": ""}}, false},
		{Query{Text: "yload", Headers: map[string]string{"a": "2"}}, false},
	} {
		if got := c.q.matches(v); got != c.want {
			t.Errorf("%+v: %v", c.q, got)
		}
	}
}
