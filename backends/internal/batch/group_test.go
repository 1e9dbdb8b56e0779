package batch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
)

func on(jobs ...string) (l []backends.Lease) {
	for _, j := range jobs {
		l = append(l, backends.Lease{Job: j})
	}
	return l
}

func key(k string) []backends.NewJob { return []backends.NewJob{{Queue: "q", Key: k}} }

// TestGrouped: a group has each job once, and no key whose first job may not be
// stored.
func TestGrouped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		writes []backends.Write
		want   string // the writes' numbers, a group in brackets
	}{
		"nothing in common": {[]backends.Write{backends.Ack{Leases: on("1", "2")}, backends.Nack{Leases: on("3")}, backends.Enqueue{Jobs: key("a")}}, "[0 1 2]"},
		"a job twice":       {[]backends.Write{backends.Extend{Leases: on("1")}, backends.Ack{Leases: on("2")}, backends.Ack{Leases: on("1")}}, "[0 1][2]"},
		"twice in a write":  {[]backends.Write{backends.Ack{Leases: on("1", "2", "1")}}, "[0][0]"},
		"a key twice":       {[]backends.Write{backends.Enqueue{Jobs: key("a")}, backends.Enqueue{Jobs: key("a")}}, "[0 1]"},
		"its ack may be lost": {[]backends.Write{backends.Ack{Leases: on("1"), Enqueue: key("a")}, backends.Enqueue{Jobs: key("a")},
			backends.Enqueue{Jobs: key("b")}}, "[0][1 2]"},
	} {
		got := ""
		for _, g := range Grouped(c.writes) {
			var numbers []int
			for _, p := range g {
				numbers = append(numbers, p.N)
			}
			got += fmt.Sprint(numbers)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestLeasesSort(t *testing.T) {
	t.Parallel()
	var l Leases
	for i, j := range []string{"30", "nonsense", "10", "020"} {
		l.Add(i, backends.Lease{Job: j, Token: backends.Token{Number: uint64(i)}}, 0)
	}
	if order := l.Sort(); fmt.Sprint(order, l.ID, l.Of, l.Number) != "[1 3 2 0] [0 0 10 30] [1 3 2 0] [1 3 2 0]" {
		t.Error(order, l.ID, l.Of, l.Number)
	}
}

func TestReadHeaders(t *testing.T) {
	t.Parallel()
	h := ReadHeaders(`{"a": "x\n", "n": 1.50, "o": {"b": null}, "null": null}`)
	if fmt.Sprint(h) != `map[a:x
 n:1.50 null:null o:{"b": null}]` {
		t.Error(h)
	}
	deep := `{"a": ` + strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001) + `}`
	for _, text := range []string{"[1]", deep} {
		if h := ReadHeaders(text); len(h) != 1 || h[""] != text {
			t.Errorf("%.10s is read as %d headers", text, len(h))
		}
	}
}
