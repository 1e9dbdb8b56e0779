package backends

import (
	"strings"
	"testing"
)

var (
	testMapping = Mapping{
		Table:   "my jobs",
		Columns: map[string]string{"id": "item_id"},
		States:  map[State]string{StateReady: "it's waiting"},
		Indexes: map[string]string{"ready": "by_state"},
	}
	testDialect = Quoting{
		Name: func(s string) string { return `"` + s + `"` },
		Text: func(s string) string { return `'` + strings.ReplaceAll(s, `'`, `''`) + `'` },
		Use:  func(s string) string { return "USE " + s },
	}
)

func TestRender(t *testing.T) {
	t.Parallel()
	got, err := testMapping.Render(testDialect, `SELECT {id} FROM {jobs} {@ready}{@other} WHERE s = {=ready}`)
	want := `SELECT "item_id" FROM "my jobs" USE by_state WHERE s = 'it''s waiting'`
	if err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

func TestRenderNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for statement, word := range map[string]string{
		"SELECT {payload}": `"payload"`, "WHERE s = {=dead}": `"=dead"`, "SELECT {id": "not closed",
	} {
		if got, err := testMapping.Render(testDialect, statement); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %q, %v; want an error that names %s", statement, got, err, word)
		}
	}
}
