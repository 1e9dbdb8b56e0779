package session

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
)

// Script collects statements that go to the server in one packet.
type Script struct {
	// BeforeNext, if it is not nil, is called once before the next statement is added.
	BeforeNext func()

	sql   strings.Builder
	args  []any
	size  int64 // estimated size of the arguments in the packet
	reads []func(r *Result) error
}

// Add appends a statement that returns no rows.
func (s *Script) Add(sql string, args ...any) {
	s.Complete()
	if s.sql.Len() > 0 {
		s.sql.WriteString(";\n")
	}
	s.Text(sql, args...)
}

// Complete calls BeforeNext if that is still due.
func (s *Script) Complete() {
	if f := s.BeforeNext; f != nil {
		s.BeforeNext = nil
		f()
	}
}

// Query appends a statement with a result set, which can be empty. read reads its rows.
func (s *Script) Query(read func(r *Result) error, sql string, args ...any) {
	s.Add(sql, args...)
	s.Reads(read)
}

// Reads makes the last statement one with a result set.
func (s *Script) Reads(read func(r *Result) error) { s.reads = append(s.reads, read) }

// Each appends a query and calls f for each row.
func (s *Script) Each(f func(r *Result), sql string, args ...any) {
	s.Query(func(r *Result) error {
		for {
			ok, err := r.Next()
			if err != nil || !ok {
				return err
			}
			f(r)
		}
	}, sql, args...)
}

// Int appends a query and stores the number of its last row; NULL is 0.
func (s *Script) Int(n *int64, sql string, args ...any) {
	s.Each(func(r *Result) { *n = r.Int(0) }, sql, args...)
}

// Bool appends a query and stores whether the number of its last row is not 0.
func (s *Script) Bool(b *bool, sql string, args ...any) {
	s.Each(func(r *Result) { *b = r.Int(0) != 0 }, sql, args...)
}

// Ints appends a query and appends the numbers of its first column to all.
func (s *Script) Ints(all *[]int64, sql string, args ...any) {
	s.Each(func(r *Result) { *all = append(*all, r.Int(0)) }, sql, args...)
}

// IDs is a list of ids as the value of a parameter, for IN (…).
type IDs []int64

// Part is a piece of SQL with arguments as the value of a parameter: rows, or an expression whose length depends on values.
type Part struct {
	SQL  string
	Args []any
}

// Text appends SQL to the last statement. It writes IDs and Parts in place of their question marks.
func (s *Script) Text(sql string, args ...any) {
	at := 0 // after the last question mark
	for _, a := range args {
		switch v := a.(type) {
		case IDs:
			sql, at = s.before(sql, at), 0
			s.sql.WriteString(List(v))
		case Part:
			sql, at = s.before(sql, at), 0
			s.Text(v.SQL, v.Args...)
		default:
			at += strings.IndexByte(sql[at:], '?') + 1
			s.arg(a)
		}
	}
	s.sql.WriteString(sql)
}

// before appends SQL up to the first question mark from a position on, and returns what follows it.
func (s *Script) before(sql string, from int) (after string) {
	at := from + strings.IndexByte(sql[from:], '?')
	s.sql.WriteString(sql[:at])
	return sql[at+1:]
}

// hidden stands for a question mark that is not a placeholder. No name and no text contains NUL.
const hidden = "\x00\x01"

// Literal appends SQL whose question marks stand for themselves.
func (s *Script) Literal(sql string) { s.Text(strings.ReplaceAll(sql, "?", hidden)) }

func (s *Script) arg(a any) {
	switch v := a.(type) {
	case int:
		a = int64(v)
	case Instant:
		a = v.SQL()
	case []byte:
		s.size += 2 * int64(len(v))
	case string:
		s.size += 2 * int64(len(v))
	}
	s.args = append(s.args, a)
}

// Empty reports whether the script has no statement.
func (s *Script) Empty() bool { return s.sql.Len() == 0 }

// Size estimates the script's size in a packet, in bytes.
func (s *Script) Size() int64 { return int64(s.sql.Len()) + s.size + 24*int64(len(s.args)) }

// Prepend puts a statement without arguments and rows before the others.
func (s *Script) Prepend(sql string) {
	rest := s.sql.String()
	s.sql.Reset()
	s.sql.WriteString(sql + ";\n" + rest)
}

// plain returns the SQL and arguments for the driver. If the SQL contains hidden question marks, plain
// writes the arguments into the text, because the driver would take each question mark for an argument.
func (s *Script) plain() (sql string, args []any) {
	sql = s.sql.String()
	if !strings.Contains(sql, hidden) {
		return sql, s.args
	}
	var b strings.Builder
	for _, a := range s.args {
		before, after, _ := strings.Cut(sql, "?")
		b.WriteString(strings.ReplaceAll(before, hidden, "?"))
		switch v := a.(type) {
		case nil:
			b.WriteString("NULL")
		case []byte:
			if v == nil {
				b.WriteString("NULL")
			} else {
				fmt.Fprintf(&b, "x'%x'", v)
			}
		case string:
			b.WriteString(migrate.QuoteText(v))
		default: // numbers
			fmt.Fprint(&b, v)
		}
		sql = after
	}
	b.WriteString(strings.ReplaceAll(sql, hidden, "?"))
	return b.String(), nil
}

// List joins numbers with commas, for IN (…) and for functions with many arguments.
func List(numbers []int64) string {
	b := make([]byte, 0, 21*len(numbers))
	for i, n := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(b)
}

// Texts returns a list of texts, for IN (…).
func Texts[T string | []byte](all []T) Part {
	args := make([]any, len(all))
	for i, text := range all {
		args[i] = text
	}
	return Part{SQL: strings.TrimSuffix(strings.Repeat("?,", len(all)), ","), Args: args}
}
