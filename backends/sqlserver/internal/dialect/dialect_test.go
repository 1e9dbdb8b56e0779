package dialect

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
)

// TestHostileNames shows that the names and texts of a config cannot end a name or a text.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	g := Dialect{Schema: "qsidecar", UTF8: true}
	wide, narrow := backends.Column{Kind: backends.TextColumn, Type: "nvarchar(9) COLLATE Latin1_General_CI_AS"}, backends.Column{Kind: backends.TextColumn, Type: "char(9) COLLATE Latin1_General_CI_AS"}
	number, truth := backends.Column{Kind: backends.NumberColumn, Type: "int"}, backends.Column{Kind: backends.BoolColumn, Type: "bit"}
	for got, want := range map[string]string{
		g.Name("a]; DROP TABLE x; --\x00"): "[a]]; DROP TABLE x; --]",
		g.Table("s]", "t].[u"):             "[s]]].[t]].[u]",
		g.Text("it's"):                     "N'it''s'",
		g.Text("a\x00"):                    "CONVERT(nvarchar(max), 0x61000000)",
		g.Constant("'; --", wide):          "N'''; --'",
		g.Constant("'; --", narrow):        "'''; --'",
		g.Constant("é'", narrow):           "CONVERT(varchar(8000), N'é''' COLLATE Latin1_General_CI_AS)",
		g.Constant("1; DROP", number):      "CONVERT(int, N'1; DROP')",
		g.Constant("+7", number):           "7",
		g.Constant("Yes", truth):           "1",
		g.Constant("1) OR (1=1", truth):    "CONVERT(bit, N'1) OR (1=1')",
		g.Constant("x", backends.Column{Kind: backends.BytesColumn, Type: "varbinary(9)"}):                        "0x78",
		g.Constant("2026-01-02T03:04:05Z", backends.Column{Kind: backends.TimeColumn, Type: "datetimeoffset(3)"}): "CONVERT(datetimeoffset(3), N'2026-01-02T03:04:05Z')",
		g.SidecarTable("qsidecar_leases"): "[qsidecar].qsidecar_leases",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	// A name that contains a mark's characters is not a mark.
	q, err := Compile("a1", &backends.Statement{Text: "SELECT 1 AS one FROM " + g.Name("a\x00n1\x00") + " WHERE x = " + g.IntArg(1), Args: []any{int64(1)}})
	if err != nil || q.Text != "SELECT 1 AS one FROM [an1] WHERE x = @a1_1" || len(q.Params) != 1 {
		t.Errorf("%+v, %v", q, err)
	}
	for _, st := range []*backends.Statement{
		{Text: "SELECT " + g.IntArg(2), Args: []any{int64(1)}}, {Text: "SELECT " + g.IntArg(1), Args: []any{"1"}}, {Text: "SELECT " + g.TextArg(1), Args: []any{[]string{"x"}}},
		{Text: "SELECT " + g.AnyOf(1, number), Args: []any{"x"}}, {Text: "SELECT " + g.TextArg(1), Args: []any{"\xff"}},
	} {
		if _, err := Compile("a1", st); err == nil {
			t.Errorf("%q with %v compiles", st.Text, st.Args)
		}
	}
}

// TestTextsAsTimes shows that a text becomes a datetime by way of a datetime2, which accepts
// the forms of ISO 8601 in any language, and on Babelfish, too.
func TestTextsAsTimes(t *testing.T) {
	t.Parallel()
	g := Dialect{}
	of := func(kind string) backends.Column {
		return backends.Column{Name: "At", Kind: backends.TimeColumn, Type: kind}
	}
	text := mark(markText, 1)
	for got, want := range map[string]string{
		g.Constant("2026-01-02 03:04:05", of("datetime")):      "CONVERT(datetime, CONVERT(datetime2(7), N'2026-01-02 03:04:05', 121))",
		g.Constant("2026-01-02T03:04:05", of("smalldatetime")): "CONVERT(smalldatetime, CONVERT(datetime2(7), N'2026-01-02T03:04:05'))",
		g.Constant("2026-01-02 03:04:05", of("datetime2(3)")):  "CONVERT(datetime2(3), N'2026-01-02 03:04:05', 121)",
		g.Arg(1, of("datetime")):                               "CONVERT(datetime, CONVERT(datetime2(7), " + text + "))",
		g.ExactArg(1, of("smalldatetime")):                     "CONVERT(smalldatetime, CONVERT(datetime2(7), " + text + "))",
		g.Arg(1, of("datetimeoffset(3)")):                      "CONVERT(datetimeoffset(3), " + text + ")",
		g.Equals(1, of("datetime")):                            "[At] = TRY_CONVERT(datetime, TRY_CONVERT(datetime2(7), " + text + "))",
		g.AnyOf(1, of("datetime")):                             "[At] IN (" + listed(1, "TRY_CONVERT(datetime, TRY_CONVERT(datetime2(7), ", "))") + ")",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestTextsOfValues shows the texts by which rows are compared with leases, and values are kept. A text of the type
// nvarchar(max) would find no lease by its index, and a float needs 17 digits.
func TestTextsOfValues(t *testing.T) {
	t.Parallel()
	g := Dialect{}
	for kind, want := range map[string]string{
		"int": "CONVERT(nvarchar(4000), [c])", "bigint": "CONVERT(nvarchar(4000), [c])", "smallint": "CONVERT(nvarchar(4000), [c])", "bit": "CONVERT(nvarchar(4000), [c])",
		"decimal(18,0)": "CONVERT(nvarchar(4000), [c])", "uniqueidentifier": "CONVERT(nvarchar(4000), [c])",
		"float": "CONVERT(nvarchar(4000), [c], 3)", "real": "CONVERT(nvarchar(4000), [c], 3)",
		"money": "CONVERT(nvarchar(4000), [c], 126)", "smallmoney": "CONVERT(nvarchar(4000), [c], 126)", "datetime2(3)": "CONVERT(nvarchar(4000), [c], 126)",
		"smalldatetime": "CONVERT(nvarchar(4000), [c], 126)", "time(7)": "CONVERT(nvarchar(4000), [c], 126)",
		"xml": "CONVERT(nvarchar(max), [c])", "sql_variant": "CONVERT(nvarchar(max), [c])",
	} {
		if got := g.AsText(backends.Column{Name: "c", Type: kind}); got != want+bytewise {
			t.Errorf("%s: %s", kind, got)
		}
	}
}

// TestNULLs shows that each NULL has a type: Babelfish refuses one without.
func TestNULLs(t *testing.T) {
	t.Parallel()
	for letter, want := range map[string]any{markNumber: sql.NullInt64{}, markText: sql.NullString{}, markBytes: []byte(nil)} {
		if _, value, err := argument(letter, nil); err != nil || fmt.Sprintf("%T", value) != fmt.Sprintf("%T", want) {
			t.Errorf("the mark %q: a NULL of the type %T, want %T (%v)", letter, value, want, err)
		}
	}
}

// TestPrimaryKeys shows that a statement of all engines by a primary key names no index of that name.
func TestPrimaryKeys(t *testing.T) {
	t.Parallel()
	g := Dialect{Schema: "qsidecar"}
	for got, want := range map[string]string{
		g.UpdateByKey("t", "PRIMARY", "n = 1", "id = 2"):                                "UPDATE j SET n = 1 FROM t AS j WITH (FORCESEEK, ROWLOCK) WHERE id = 2",
		g.DeleteByKey("t", "PRIMARY", "id = 2"):                                         "DELETE j FROM t AS j WITH (FORCESEEK, ROWLOCK) WHERE id = 2",
		g.SelectByKey("n", "t", "PRIMARY", "id = 2", "", false):                         "SELECT n FROM t WITH (FORCESEEK, UPDLOCK, ROWLOCK) WHERE id = 2",
		strings.ReplaceAll(strings.ReplaceAll(g.KeyIs(1, 2), "\x00w", "@"), "\x00", ""): "queue = CONVERT(varchar(128), @1) AND name = CONVERT(varbinary(510), @2)",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
