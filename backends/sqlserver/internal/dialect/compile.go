package dialect

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
)

// Param is a parameter: its name without the @, its type and its value.
type Param struct {
	Name, Kind string
	Value      any
}

// Compiled is a statement with parameters instead of marks.
type Compiled struct {
	Text   string
	Params []Param
	Query  bool // it is a SELECT
	Key    bool // it puts a key into the table variable @NAME_key, whose column is id

	name string
}

// Compile replaces the marks of a statement by parameters, whose names begin with name.
func Compile(name string, st *backends.Statement) (*Compiled, error) {
	c := &Compiled{name: name}
	var b strings.Builder
	for i, part := range strings.Split(st.Text, "\x00") {
		if i%2 == 0 {
			b.WriteString(part)
			continue
		}
		if err := c.mark(&b, part[:1], part[1:], st.Args); err != nil {
			return nil, err
		}
	}
	c.Text = b.String()
	c.Query = strings.HasPrefix(c.Text, "SELECT ")
	return c, nil
}

// mark writes the text for a mark.
func (c *Compiled) mark(b *strings.Builder, letter, rest string, args []any) error {
	if letter == markKey {
		fmt.Fprintf(b, "OUTPUT %s INTO @%s_key", rest, c.name)
		c.Key = true
		return nil
	}
	rest, around, list := strings.Cut(rest, "\x02")
	n, err := strconv.Atoi(rest)
	if err != nil || n < 1 || n > len(args) {
		return fmt.Errorf("sqlserver: a statement has %d arguments, and names number %s", len(args), rest)
	}
	if list {
		return c.list(b, n, args[n-1], around)
	}
	return c.param(b, c.name+"_"+rest, letter, args[n-1])
}

// param writes a parameter. It is declared at its first use.
func (c *Compiled) param(b *strings.Builder, name, letter string, arg any) error {
	if !c.declared(name) {
		kind, value, err := argument(letter, arg)
		if err != nil {
			return err
		}
		c.Params = append(c.Params, Param{name, kind, value})
	}
	b.WriteString("@" + name)
	return nil
}

func (c *Compiled) declared(name string) bool {
	return slices.ContainsFunc(c.Params, func(p Param) bool { return p.Name == name })
}

// FewValues is the maximum number of list values that have a parameter each. The server then finds each row by its
// key, and meets no row that others have locked. For the values of a document it can choose to scan.
const FewValues = 64

// list writes a list's values. It repeats the last value up to a power of two, so that there are few different texts
// of statements.
func (c *Compiled) list(b *strings.Builder, n int, a any, around string) error {
	before, after, _ := strings.Cut(around, "\x02")
	all, ok := a.([]string)
	if !ok {
		return fmt.Errorf("sqlserver: argument %d of a statement is a %T, not a list", n, a)
	}
	name := fmt.Sprintf("%s_%d", c.name, n)
	switch {
	case len(all) == 0:
		b.WriteString("NULL")
		return nil
	case len(all) > FewValues:
		if !c.declared(name) {
			document, err := json.Marshal(all)
			if err != nil {
				return err
			}
			c.Params = append(c.Params, Param{name, "nvarchar(max)", mssql.NVarCharMax(document)})
		}
		b.WriteString("SELECT " + before + "v.value" + after + " FROM OPENJSON(@" + name + ") AS v")
		return nil
	}
	size := 1
	for size < len(all) {
		size *= 2
	}
	for i := range size {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(before)
		if err := c.param(b, fmt.Sprintf("%s_%d", name, i+1), markText, all[min(i, len(all)-1)]); err != nil {
			return err
		}
		b.WriteString(after)
	}
	return nil
}

// argument returns an argument's type and value. A text that fits is nvarchar(4000): for nvarchar(max) the server
// seeks in no index.
func argument(letter string, a any) (kind string, value any, err error) {
	switch v := a.(type) {
	case nil:
		switch letter { // Babelfish refuses a NULL without a type
		case markNumber:
			return "bigint", sql.NullInt64{}, nil
		case markBytes:
			return "varbinary(max)", []byte(nil), nil
		case markText:
			return "nvarchar(4000)", sql.NullString{}, nil
		}
	case int64:
		if letter == markNumber {
			return "bigint", v, nil
		}
	case []byte:
		if letter == markBytes {
			return "varbinary(max)", append([]byte{}, v...), nil // nil would be NULL
		}
	case string:
		switch {
		case letter == markBytes:
			return "varbinary(max)", []byte(v), nil
		case letter != markText:
		case !utf8.ValidString(v): // the driver would change it without an error
			return "", nil, backends.Refused(errors.New("a text for a text column is not valid UTF-8"))
		case len(v) <= 4000:
			return "nvarchar(4000)", mssql.NVarCharMax(v), nil
		default:
			return "nvarchar(max)", mssql.NVarCharMax(v), nil
		}
	}
	return "", nil, fmt.Errorf("sqlserver: an argument is a %T, where a statement has the mark %q", a, letter)
}
