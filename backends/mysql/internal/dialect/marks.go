package dialect

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// Marks stand for arguments in the SQL of a backends.Dialect. Each is between two NULs: a letter, and the
// number of the argument. The mark of a list also has the text before and after each value.
const (
	markValue   = "v"
	markNumber  = "n" // whole numbers, which are passed as texts
	markList    = "l"
	markNumbers = "m"
	answerMark  = "\x00a\x00" // before the expression whose value an INSERT returns
)

func mark(letter string, n int, around ...string) string {
	return "\x00" + letter + strings.Join(append([]string{strconv.Itoa(n)}, around...), "\x02") + "\x00"
}

// CutAnswer splits the SQL of Insert into the statement and the expression for the new row's id. For
// other SQL, the expression is empty.
func CutAnswer(text string) (statement, answer string) {
	statement, answer, _ = strings.Cut(text, answerMark)
	return statement, answer
}

// Append appends SQL of the Dialect to the last statement of a script, with arguments in place of marks.
func Append(p *session.Script, text string, args []any) error {
	for i, part := range strings.Split(text, "\x00") {
		if i%2 == 0 {
			p.Literal(part)
			continue
		}
		fields := strings.Split(part[1:], "\x02")
		n, err := strconv.Atoi(fields[0])
		if err != nil || n < 1 || n > len(args) {
			return fmt.Errorf("%w: a statement has %d arguments, and names number %s", session.ErrProgram, len(args), fields[0])
		}
		letter := part[:1]
		all, list := args[n-1].([]string)
		if list != (letter == markList || letter == markNumbers) {
			return fmt.Errorf("%w: argument %d of a statement is a %T", session.ErrProgram, n, args[n-1])
		}
		if list {
			appendList(p, letter, all, fields[1:])
		} else {
			appendValue(p, letter, args[n-1])
		}
	}
	return nil
}

func appendValue(p *session.Script, letter string, a any) {
	if text, ok := a.(string); ok && letter == markNumber && digits.MatchString(text) {
		p.Text(text)
		return
	}
	p.Text("?", a)
}

// appendList appends values. It leaves out values of a list of numbers that are not numbers.
func appendList(p *session.Script, letter string, all, around []string) {
	before, after := "", ""
	if len(around) == 2 {
		before, after = around[0], around[1]
	}
	comma := ""
	for _, text := range all {
		switch {
		case letter == markList:
			p.Text(comma+before+"?"+after, text)
		case digits.MatchString(text):
			p.Text(comma + text)
		default:
			continue
		}
		comma = ", "
	}
	if comma == "" {
		p.Text("NULL")
	}
}
