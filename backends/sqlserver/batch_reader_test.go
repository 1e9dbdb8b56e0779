package sqlserver

import (
	"errors"
	"fmt"
	"strings"
)

// batchReader reads a batch line by line into steps. It relies on the style of this package: each statement ends with
// a semicolon at the end of a line, and the condition of an IF or WHILE is on the line of the keyword.
type batchReader struct {
	lines     []string
	statement func(text string) ([]step, error)
}

// readBatch returns the steps of a batch. statement translates one of its statements.
func readBatch(text string, statement func(text string) ([]step, error)) ([]step, error) {
	r := &batchReader{statement: statement}
	for line := range strings.Lines(text) {
		if word := strings.TrimSpace(line); word != "" && !strings.HasPrefix(word, "--") {
			r.lines = append(r.lines, strings.TrimSuffix(line, "\n"))
		}
	}
	steps, err := r.block()
	if err == nil && len(r.lines) > 0 {
		err = fmt.Errorf("an END too many: %q", r.lines[0])
	}
	return steps, err
}

// word is the next line, "" at the end.
func (b *batchReader) word() string {
	if len(b.lines) == 0 {
		return ""
	}
	return strings.TrimSpace(b.lines[0])
}

func (b *batchReader) next() string {
	line := b.lines[0]
	b.lines = b.lines[1:]
	return line
}

func (b *batchReader) block() (steps []step, err error) {
	for len(b.lines) > 0 && b.word() != "END;" && b.word() != "END" {
		more, err := b.step()
		if err != nil {
			return nil, err
		}
		steps = append(steps, more...)
	}
	return steps, nil
}

// body reads the part after an IF, an ELSE or a WHILE: a block or one statement.
func (b *batchReader) body() ([]step, error) {
	if b.word() != "BEGIN" {
		return b.step()
	}
	b.next()
	steps, err := b.block()
	if err == nil && len(b.lines) == 0 {
		err = errors.New("a BEGIN without an END")
	}
	if err == nil {
		b.next()
	}
	return steps, err
}

func (b *batchReader) step() ([]step, error) {
	word := b.word()
	switch word {
	case "BREAK;", "CONTINUE;":
		b.next()
		return []step{{What: strings.ToLower(strings.TrimSuffix(word, ";"))}}, nil
	case "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;":
		b.next()
		return []step{{What: "rollback"}}, nil
	}
	if condition, ok := strings.CutPrefix(word, "IF "); ok {
		return b.conditional("if", condition)
	}
	if condition, ok := strings.CutPrefix(word, "WHILE "); ok {
		return b.conditional("while", condition)
	}
	var taken []string
	for len(b.lines) > 0 {
		taken = append(taken, b.next())
		if text := strings.TrimSpace(strings.Join(taken, "\n")); strings.HasSuffix(text, ";") {
			return b.statement(strings.TrimSuffix(text, ";"))
		}
	}
	return nil, fmt.Errorf("a statement without its semicolon: %q", taken)
}

func (b *batchReader) conditional(what, condition string) ([]step, error) {
	b.next()
	query, err := b.statement("SELECT CASE WHEN " + condition + " THEN 1 ELSE 0 END")
	if err != nil {
		return nil, err
	}
	s := step{What: what, Query: query[0].Query}
	if s.yes, err = b.body(); err != nil {
		return nil, err
	}
	if what == "if" && b.word() == "ELSE" {
		b.next()
		s.no, err = b.body()
	}
	return []step{s}, err
}
