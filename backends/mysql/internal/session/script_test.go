package session

import "testing"

// TestText checks that lists and pieces of SQL are written in place of their question marks, and other arguments are passed on.
func TestText(t *testing.T) {
	t.Parallel()
	var p Script
	p.Add("SELECT ?, ? FROM t WHERE id IN (?) AND ? AND a = ?", 1, "x", IDs{7, 8},
		Part{SQL: "b IN (?) AND c = ? + ?", Args: []any{IDs{9}, 2, Part{SQL: "NOW()"}}}, "y")
	p.Add("SELECT 1")
	p.Text(" + ?", IDs{3})
	p.Add("SELECT 1 WHERE q IN (?)", Texts([]string{"k", "l"}))
	const want = "SELECT ?, ? FROM t WHERE id IN (7,8) AND b IN (9) AND c = ? + NOW() AND a = ?;\nSELECT 1 + 3;\nSELECT 1 WHERE q IN (?,?)"
	sql, args := p.plain()
	if sql != want {
		t.Errorf("got  %s\nwant %s", sql, want)
	}
	for i, want := range []any{int64(1), "x", int64(2), "y", "k", "l"} {
		if args[i] != want {
			t.Errorf("argument %d is %v, want %v", i, args[i], want)
		}
	}
}
