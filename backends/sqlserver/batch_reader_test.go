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
func (r *batchReader) word() string {
	if len(r.lines) == 0 {
		return ""
	}
	return strings.TrimSpace(r.lines[0])
}

func (r *batchReader) next() string {
	line := r.lines[0]
	r.lines = r.lines[1:]
	return line
}

func (r *batchReader) block() (steps []step, err error) {
	for len(r.lines) > 0 && r.word() != "END;" && r.word() != "END" {
		more, err := r.step()
		if err != nil {
			return nil, err
		}
		steps = append(steps, more...)
	}
	return steps, nil
}

// body reads the part after an IF, an ELSE or a WHILE: a block or one statement.
func (r *batchReader) body() ([]step, error) {
	if r.word() != "BEGIN" {
		return r.step()
	}
	r.next()
	steps, err := r.block()
	if err == nil && len(r.lines) == 0 {
		err = errors.New("a BEGIN without an END")
	}
	if err == nil {
		r.next()
	}
	return steps, err
}

func (r *batchReader) step() ([]step, error) {
	word := r.word()
	switch word {
	case "BREAK;", "CONTINUE;":
		r.next()
		return []step{{What: strings.ToLower(strings.TrimSuffix(word, ";"))}}, nil
	case "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;":
		r.next()
		return []step{{What: "rollback"}}, nil
	}
	if condition, ok := strings.CutPrefix(word, "IF "); ok {
		return r.conditional("if", condition)
	}
	if condition, ok := strings.CutPrefix(word, "WHILE "); ok {
		return r.conditional("while", condition)
	}
	var taken []string
	for len(r.lines) > 0 {
		taken = append(taken, r.next())
		if text := strings.TrimSpace(strings.Join(taken, "\n")); strings.HasSuffix(text, ";") {
			return r.statement(strings.TrimSuffix(text, ";"))
		}
	}
	return nil, fmt.Errorf("a statement without its semicolon: %q", taken)
}

func (r *batchReader) conditional(what, condition string) ([]step, error) {
	r.next()
	query, err := r.statement("SELECT CASE WHEN " + condition + " THEN 1 ELSE 0 END")
	if err != nil {
		return nil, err
	}
	s := step{What: what, Query: query[0].Query}
	if s.yes, err = r.body(); err != nil {
		return nil, err
	}
	if what == "if" && r.word() == "ELSE" {
		r.next()
		s.no, err = r.body()
	}
	return []step{s}, err
}
