package core

import (
	"fmt"
	"strings"
	"testing"
)

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
