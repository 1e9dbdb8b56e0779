package sqltext

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
)

const file = `-- A file.

-- fragment: old
-- What is old.
at < :before

-- name: find
-- Finds rows.
SELECT '{}', 'a :text', "a :name", x::int, {constant} FROM t WHERE {old} AND n = :n AND ({old})

-- fragment: limited
-- with end: OFFSET 0
LIMIT {n} {end}

-- name: plain
-- with n: :max + {more}
-- with more: 1
-- with end: not this one
SELECT {n} {limited} {end}
`

func read(number string) *Text {
	return Read(fstest.MapFS{"sql/a.sql": {Data: []byte(file)}}, number, map[string]string{"constant": "7"})
}

func TestPlaceholders(t *testing.T) {
	t.Parallel()
	for number, want := range map[string]string{
		"$": `SELECT '{}', 'a :text', "a :name", x::int, 7 FROM t WHERE at < $2 AND n = $1 AND (at < $2)`,
		"?": `SELECT '{}', 'a :text', "a :name", x::int, 7 FROM t WHERE at < ?2 AND n = ?1 AND (at < ?2)`,
		"":  `SELECT '{}', 'a :text', "a :name", x::int, 7 FROM t WHERE at < ? AND n = ? AND (at < ?)`,
	} {
		text, params := read(number), "n before"
		if number == "" {
			params = "before n before"
		}
		if got := text.Get("find", params); got != want {
			t.Errorf("%q\ngot  %s\nwant %s", number, got, want)
		}
		shown := map[string]string{"$": "$1", "?": "?1", "": "?"}[number]
		if got := text.Get("plain", strings.Repeat("max ", 2-min(len(number), 1))); got != fmt.Sprintf("SELECT %[1]s + 1 LIMIT %[1]s + 1 OFFSET 0 not this one", shown) {
			t.Errorf("got %s", got)
		}
		if got := text.Done(); len(got) != 2 || got[0] != want {
			t.Errorf("all: %q", got)
		}
	}
}

// TestDeclared checks that a statement comes with its comments and those of its fragments.
func TestDeclared(t *testing.T) {
	t.Parallel()
	text := Read(fstest.MapFS{"sql/a.sql": {Data: []byte("-- fragment: part\n-- @b int\n@b\n-- name: x\n-- @a bigint\n-- sets 1\nSELECT @a + {part}")}}, "@", nil)
	if got, comments := text.Declared("x"); got != "SELECT @a + @b" || strings.Join(comments, ", ") != "@a bigint, sets 1, @b int" {
		t.Errorf("got %q, %q", got, comments)
	}
}

// TestWhatDoesNotAgree checks that each kind of mistake panics with its name.
func TestWhatDoesNotAgree(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]func(){
		`no statement "other"`:                       func() { read("$").Get("other", "") },
		`passes no parameter "before"`:               func() { read("$").Get("find", "n") },
		`no parameter "more"`:                        func() { read("$").Get("find", "n before more") },
		`no parameter "n", or the program passes it`: func() { read("$").Get("find", "n before n") },
		`in this order`:                              func() { read("").Get("find", "n before before") },
		`nothing uses "`: func() {
			text := read("$")
			text.Get("plain", "max")
			text.Done()
		},
		`nothing uses "other"`: func() {
			text := Read(fstest.MapFS{"sql/a.sql": {Data: []byte("-- name: x\n-- with other: 1\n2")}}, "$", nil)
			text.Get("x", "")
			text.Done()
		},
		`nothing uses "left"`: func() {
			Read(fstest.MapFS{"sql/a.sql": {Data: []byte("-- fragment: left\nx")}}, "$", nil).Done()
		},
		`two "x"`:           func() { Read(fstest.MapFS{"sql/a.sql": {Data: []byte("-- name: x\n1\n-- name: x\n2")}}, "$", nil) },
		"no name before it": func() { Read(fstest.MapFS{"sql/a.sql": {Data: []byte("SELECT 1")}}, "$", nil) },
		"sqltext: no files": func() { Read(fstest.MapFS{}, "$", nil) },
		"no fragment {loop}": func() {
			Read(fstest.MapFS{"sql/a.sql": {Data: []byte("-- name: x\n{loop}\n-- fragment: loop\n{loop}")}}, "$", nil).Get("x", "")
		},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("got %s, want %s", got, want)
				}
			}()
			f()
		}()
	}
}
