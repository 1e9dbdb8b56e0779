// Package dialect writes T-SQL for adopted tables, the queues in tables that another program
// owns. Dialect implements backends.Dialect. Compile turns a statement that is written with it
// into a batch's text and parameters.
//
// The package may use package backends. It opens no connection. Start reading with Dialect.
package dialect

import (
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf16"

	"github.com/qsidecar/qsidecar/backends"
)

// Dialect implements backends.Dialect. Its texts have marks instead of arguments, which Compile turns into
// parameters. A mark is a letter and the argument's number between two NULs.
//
// Names and constants come from other programs. They can contain anything but NULs, which no name and no text of
// T-SQL has.
type Dialect struct {
	Schema   string       // of the sidecar's own tables
	UTF8     bool         // the server has UTF-8 collations: from 2019 on
	Hintless *atomic.Bool // true: no hints, because the server refused them; nil: hints are used
}

var _ backends.HintDialect = Dialect{}

// QuoteName returns an identifier in brackets.
func QuoteName(s string) string { return "[" + strings.ReplaceAll(s, "]", "]]") + "]" }

// QuoteText returns a literal of an nvarchar.
func QuoteText(s string) string { return "N'" + strings.ReplaceAll(s, "'", "''") + "'" }

// The letters of marks: what one stands for, and the type of its argument.
const (
	markNumber = "n" // bigint
	markText   = "w" // nvarchar
	markBytes  = "b" // varbinary
	markList   = "l" // a list of texts; see listed
	markKey    = "k" // in an INSERT: the expression that it returns
)

func mark(letter string, n int) string { return "\x00" + letter + strconv.Itoa(n) + "\x00" }

// listed returns the mark of a list, with the texts before and after each value.
func listed(n int, before, after string) string {
	return mark(markList, n)[:len(mark(markList, n))-1] + "\x02" + before + "\x02" + after + "\x00"
}

// bytewise is a collation that compares texts as they are stored. In inUTF8 they are UTF-8.
const (
	bytewise = " COLLATE Latin1_General_100_BIN2"
	inUTF8   = " COLLATE Latin1_General_100_CI_AS_SC_UTF8"
)

// Name implements backends.Dialect.
func (d Dialect) Name(identifier string) string {
	return QuoteName(strings.ReplaceAll(identifier, "\x00", "")) // no name has one
}

// Table implements backends.Dialect.
func (d Dialect) Table(schema, name string) string {
	if schema == "" {
		return d.Name(name)
	}
	return d.Name(schema) + "." + d.Name(name)
}

// SidecarTable implements backends.Dialect.
func (d Dialect) SidecarTable(table string) string { return QuoteName(d.Schema) + "." + table }

// Text writes a literal with a NUL in hex.
func (d Dialect) Text(literal string) string {
	if !strings.Contains(literal, "\x00") {
		return QuoteText(literal)
	}
	var raw []byte
	for _, unit := range utf16.Encode([]rune(literal)) {
		raw = append(raw, byte(unit), byte(unit>>8))
	}
	return "CONVERT(nvarchar(max), 0x" + hex.EncodeToString(raw) + ")"
}

var (
	wholeNumber = regexp.MustCompile(`^-?[0-9]{1,38}$`)
	plainText   = regexp.MustCompile(`^[\x01-\x7e]*$`)
	textForm    = regexp.MustCompile(`^(n?)(char|varchar|text)(?:\(([0-9]+|max)\))?(?: COLLATE (\w+))?$`)
)

// writtenAs describes how a column's type stores its texts.
type writtenAs struct {
	national  bool   // its texts are UTF-16; otherwise of the collation's code page
	padded    bool   // with blanks, to its length
	old       bool   // TEXT and NTEXT, which cannot be compared
	size      string // as in the type; empty: the type has none
	collation string // with the word COLLATE; empty: a column of the sidecar's own
}

func writtenOf(c backends.Column) writtenAs {
	m := textForm.FindStringSubmatch(c.Type)
	if m == nil || c.Type == "text" {
		return writtenAs{national: true, size: "4000", collation: bytewise} // the sidecar's own
	}
	t := writtenAs{national: m[1] == "n", padded: m[2] == "char", old: m[2] == "text", size: m[3]}
	if m[4] != "" {
		t.collation = " COLLATE " + m[4]
	}
	return t
}

// wide returns the type of the column's texts in UTF-16.
func (w writtenAs) wide() string {
	if n, err := strconv.Atoi(w.size); err == nil && n <= 4000 {
		return "nvarchar(" + w.size + ")"
	}
	return "nvarchar(max)"
}

// like returns a text in the column's own type, so that an index on it can be used. A letter that the code page lacks
// becomes a question mark. The comparison by bytes then finds no match.
func (w writtenAs) like(expression string) string {
	if w.national {
		return expression + w.collation
	}
	size := w.size
	if size == "" || size == "max" {
		return "CONVERT(varchar(max), " + expression + w.collation + ")"
	}
	return "CONVERT(varchar(8000), " + expression + w.collation + ")"
}

// isText reports whether the column is compared as a text.
func isText(c backends.Column) bool {
	return c.Kind == backends.TextColumn || c.Kind == backends.JSONColumn && textForm.MatchString(c.Type)
}

// Constant returns a literal of the column's own type, so that an index on it, also a filtered one, can be used.
func (d Dialect) Constant(literal string, c backends.Column) string {
	switch {
	case c.Kind == backends.BoolColumn:
		switch strings.ToLower(literal) {
		case "true", "t", "yes", "y", "on", "1":
			return "1"
		case "false", "f", "no", "n", "off", "0":
			return "0"
		}
	case c.Kind == backends.NumberColumn:
		if n := strings.TrimPrefix(literal, "+"); wholeNumber.MatchString(n) {
			return n
		}
	case isText(c):
		t := writtenOf(c)
		switch {
		case t.national:
			return d.Text(literal)
		case plainText.MatchString(literal):
			return QuoteText(literal)[1:]
		}
		return t.like(d.Text(literal))
	case c.Kind == backends.BytesColumn:
		return "0x" + hex.EncodeToString([]byte(literal))
	case c.Kind == backends.TimeColumn && !strings.HasPrefix(c.Type, "datetimeoffset") && !strings.ContainsAny(literal, "Tt"):
		return converted("CONVERT", c, d.Text(literal)+", 121")
	}
	return converted("CONVERT", c, d.Text(literal))
}

// converted returns a text as a value of the column's type. function is CONVERT or TRY_CONVERT. A text is converted
// to a datetime or a smalldatetime through a datetime2. Otherwise the login's language decides which number is the
// month of 2026-02-03 10:00, and Babelfish does not accept a text with a T.
func converted(function string, c backends.Column, text string) string {
	if c.Type == "datetime" || c.Type == "smalldatetime" {
		text = function + "(datetime2(7), " + text + ")"
	}
	return function + "(" + c.Type + ", " + text + ")"
}

// Arg does not cut a value that is too long for the column. The server refuses it.
func (d Dialect) Arg(n int, c backends.Column) string {
	switch {
	case c.Kind == backends.BytesColumn:
		return mark(markBytes, n)
	case isText(c):
		if t := writtenOf(c); !t.national {
			return "CONVERT(varchar(max), " + mark(markText, n) + t.collation + ")"
		}
		return mark(markText, n)
	case c.Type == "xml" || c.Type == "json":
		return mark(markText, n)
	}
	return converted("CONVERT", c, mark(markText, n))
}

// ExactArg refuses letters that a code page lacks, which the server would turn into question
// marks. It converts a text that is not a number to a number, which is an error.
func (d Dialect) ExactArg(n int, c backends.Column) string {
	t := writtenOf(c)
	if !isText(c) || t.national || !Narrow(c) {
		return d.Arg(n, c)
	}
	value := mark(markText, n)
	return "CASE WHEN CONVERT(nvarchar(max), " + d.Arg(n, c) + ")" + bytewise + " = " + value + bytewise + " THEN " + d.Arg(n, c) +
		" ELSE CONVERT(varchar(max), CONVERT(int, " + d.Text("the code page of the column "+c.Name+" lacks letters of the text ") + " + LEFT(" + value + ", 40))) END"
}

// Narrow reports whether the column's texts are of a code page that is not UTF-8.
func Narrow(c backends.Column) bool {
	t := writtenOf(c)
	return isText(c) && !t.national && !strings.HasSuffix(t.collation, "_UTF8")
}

// IntArg implements backends.Dialect.
func (d Dialect) IntArg(n int) string { return mark(markNumber, n) }

// TextArg implements backends.Dialect.
func (d Dialect) TextArg(n int) string { return mark(markText, n) }

// KeyIs is the condition that a row of qsidecar_keys has the queue and the key that are two arguments. The key's column has its bytes. Without
// a conversion the server would convert the column of the queue.
func (d Dialect) KeyIs(queue, key int) string {
	return "queue = CONVERT(varchar(128), " + d.TextArg(queue) + ") AND name = CONVERT(varbinary(510), " + d.TextArg(key) + ")"
}

// bare returns a text without its column's padding.
func (w writtenAs) bare(expression string) string {
	if w.padded {
		return "RTRIM(" + expression + ")"
	}
	return expression
}

// Equals also compares bytes, because the server ignores blanks at the end of a text.
func (d Dialect) Equals(n int, c backends.Column) string {
	if !isText(c) {
		return d.Name(c.Name) + " = " + converted("TRY_CONVERT", c, mark(markText, n))
	}
	t := writtenOf(c)
	value := t.bare(mark(markText, n))
	same := d.AsText(c) + " = " + value + bytewise
	if t.old {
		return same
	}
	return "(" + d.Name(c.Name) + " = " + t.like(value) + " AND " + same + ")"
}

// AnyOf implements backends.Dialect.
func (d Dialect) AnyOf(n int, c backends.Column) string {
	among := func(what, value string) string {
		before, after, _ := strings.Cut(value, "{}")
		return what + " IN (" + listed(n, before, after) + ")"
	}
	if !isText(c) {
		return among(d.Name(c.Name), converted("TRY_CONVERT", c, "{}"))
	}
	t := writtenOf(c)
	value := t.bare("{}")
	same := among(d.AsText(c), value+bytewise)
	switch {
	case t.old:
		return same
	case t.collation == bytewise && t.size == "4000": // the sidecar's own columns have this collation
		return among(d.Name(c.Name), "CONVERT(nvarchar(4000), {})"+bytewise)
	}
	if t.national {
		value = "CONVERT(" + t.wide() + ", " + value + ")"
	}
	return "(" + among(d.Name(c.Name), t.like(value)) + " AND " + same + ")"
}

// ToText writes times in a form that is read back without a change.
func (d Dialect) ToText(expression string) string {
	return "CONVERT(nvarchar(max), " + expression + ", 126)"
}

// styled finds the types that a plain conversion does not keep exactly, and floating those of which only style 3 keeps
// all digits: https://learn.microsoft.com/sql/t-sql/functions/cast-and-convert-transact-sql. The texts of these and of
// plain types are short. A text that is nvarchar(max) would find no lease by its index.
var (
	styled   = regexp.MustCompile(`^(date|time|smalldatetime|money|smallmoney)`)
	floating = regexp.MustCompile(`^(float|real)`)
	plain    = regexp.MustCompile(`^(bit|tinyint|smallint|int|bigint|decimal|numeric|uniqueidentifier)`)
)

// characters returns a value of the column as a text.
func (d Dialect) characters(value string, c backends.Column) string {
	switch {
	case !isText(c) && styled.MatchString(c.Type):
		return "CONVERT(nvarchar(4000), " + value + ", 126)"
	case !isText(c) && floating.MatchString(c.Type):
		return "CONVERT(nvarchar(4000), " + value + ", 3)"
	case !isText(c) && plain.MatchString(c.Type):
		return "CONVERT(nvarchar(4000), " + value + ")"
	case !isText(c):
		return "CONVERT(nvarchar(max), " + value + ")"
	}
	t := writtenOf(c)
	value = t.bare(value)
	if t.national && !t.old {
		return value
	}
	return "CONVERT(" + t.wide() + ", " + value + ")"
}

// AsText implements backends.Dialect.
func (d Dialect) AsText(c backends.Column) string {
	return d.characters(d.Name(c.Name), c) + bytewise
}

// RowKey implements backends.Dialect.
func (d Dialect) RowKey(key []backends.Column) string {
	if len(key) == 1 {
		return d.AsText(key[0])
	}
	all := make([]string, len(key))
	for i, c := range key {
		all[i] = `REPLACE(REPLACE(` + d.AsText(c) + `, N'\', N'\\'), N',', N'\,')`
	}
	return "(" + strings.Join(all, " + N',' + ") + ")"
}

// AsBytes implements backends.Dialect.
func (d Dialect) AsBytes(c backends.Column) string {
	switch {
	case c.Kind == backends.BytesColumn && c.Type == "image":
		return "CONVERT(varbinary(max), " + d.Name(c.Name) + ")"
	case c.Kind == backends.BytesColumn:
		return d.Name(c.Name)
	}
	return d.characters(d.Name(c.Name), c)
}

// TextLength returns the length in UTF-8, or in UTF-16 if the server has no UTF-8.
func (d Dialect) TextLength(text string) string {
	if d.UTF8 {
		text = "CONVERT(varchar(max), (" + text + ")" + inUTF8 + ")"
	}
	return "DATALENGTH(" + text + ")"
}

// ByteLength implements backends.Dialect.
func (d Dialect) ByteLength(c backends.Column) string {
	if c.Kind == backends.BytesColumn {
		return "DATALENGTH(" + d.AsBytes(c) + ")"
	}
	return d.TextLength(d.AsBytes(c))
}

// Integer implements backends.Dialect.
func (d Dialect) Integer(number string) string { return "CONVERT(bigint, " + number + ")" }

// Insert uses OUTPUT with INTO, because OUTPUT alone fails if the table has a trigger.
func (d Dialect) Insert(table string, names, values []string, id backends.Column) string {
	sql := "INSERT INTO " + table
	if len(names) > 0 {
		sql += " (" + strings.Join(names, ", ") + ")"
	}
	sql += " \x00" + markKey + d.characters("inserted."+d.Name(id.Name), id) + "\x00 "
	if len(names) == 0 {
		return sql + "DEFAULT VALUES"
	}
	return sql + "VALUES (" + strings.Join(values, ", ") + ")"
}

// Fence returns the first of a thousand numbers that the batch drew.
func (d Dialect) Fence() string { return "@adopt_line" }

// Paused implements backends.Dialect.
func (d Dialect) Paused(queue string) string {
	return "EXISTS (SELECT 1 FROM " + d.SidecarTable("qsidecar_queues") + " AS p WHERE p.queue = CONVERT(varchar(128), " + queue + ") AND p.paused = 1)"
}

// IsAlive implements backends.Dialect.
func (d Dialect) IsAlive(sidecar string) string {
	return "EXISTS (SELECT 1 FROM " + d.SidecarTable("qsidecar_sidecars") + " AS h WHERE h.sidecar = " + sidecar + " AND h.dead = 0)"
}
