// Package plan reads the plans that SQL Server shows as SHOWPLAN_XML, and finds the steps that make the cost of a
// claim grow with the tables. Package diagnose and the tests use it. It depends on the texts of the claim's
// statements and the names of the sidecar's indexes.
package plan

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Operator is a step of a plan in SHOWPLAN_XML.
type Operator struct {
	Name    string // PhysicalOp
	Depth   int    // how many operators are around it
	Table   string // without brackets; empty: none
	Index   string // the same
	Ordered bool   // rows come in the order of the index
}

// Statement is a statement of a batch with its plan.
type Statement struct {
	Text      string
	Operators []Operator
}

// Read reads the plans of a batch: all steps of each statement.
func Read(text string) (all []Statement, err error) {
	d := xml.NewDecoder(strings.NewReader(text))
	// The document names UTF-16 as its encoding. The driver has converted it to UTF-8.
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	var open []int // the enclosing operators, as indexes of the last statement's list
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		switch t := token.(type) {
		case xml.StartElement:
			open = startElement(t, &all, open)
		case xml.EndElement:
			if t.Name.Local == "RelOp" && len(open) > 0 {
				open = open[:len(open)-1]
			}
		}
	}
}

func startElement(t xml.StartElement, all *[]Statement, open []int) []int {
	value := func(name string) string {
		for _, a := range t.Attr {
			if a.Name.Local == name {
				return a.Value
			}
		}
		return ""
	}
	if strings.HasPrefix(t.Name.Local, "Stmt") {
		*all = append(*all, Statement{Text: value("StatementText")})
		return nil
	}
	if len(*all) == 0 {
		return open
	}
	last := &(*all)[len(*all)-1]
	if t.Name.Local == "RelOp" {
		last.Operators = append(last.Operators, Operator{Name: value("PhysicalOp"), Depth: len(open)})
		return append(open, len(last.Operators)-1)
	}
	if len(open) == 0 {
		return open
	}
	op := &last.Operators[open[len(open)-1]]
	switch t.Name.Local {
	case "IndexScan":
		op.Ordered = value("Ordered") == "1" || value("Ordered") == "true"
	case "Object":
		if op.Index == "" {
			op.Index = unquoted(value("Index"))
		}
		if op.Table == "" {
			op.Table = unquoted(value("Table"))
		}
	}
	return open
}

// SortsBeforeTop reports whether the i-th step sorts rows that no TOP has bounded. After a TOP it sorts only the
// chosen rows, to store them.
func (s Statement) SortsBeforeTop(i int) bool {
	if !strings.HasSuffix(s.Operators[i].Name, "Sort") {
		return false
	}
	for _, o := range s.Operators[i+1:] {
		if o.Depth <= s.Operators[i].Depth {
			return true
		}
		if o.Name == "Top" {
			return false
		}
	}
	return true
}

// unquoted returns a name without brackets.
func unquoted(name string) string {
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		return strings.ReplaceAll(name[1:len(name)-1], "]]", "]")
	}
	return name
}

// ClaimFaults returns the steps that make the cost of a claim, or the number of its locks, grow with the table. seeks
// is the number of statements that seek as they should.
func ClaimFaults(text string) (faults []string, seeks int, err error) {
	all, err := Read(text)
	if err != nil {
		return nil, 0, err
	}
	takes := 0
	for _, p := range all {
		picks := strings.Contains(p.Text, "INSERT INTO @claim_picked") && strings.Contains(p.Text, "qsidecar_ready")
		take := strings.HasPrefix(strings.TrimSpace(p.Text), "UPDATE j SET state = 'claimed'")
		if !picks && !take {
			continue
		}
		sought := false
		for i, o := range p.Operators {
			switch {
			case picks && p.SortsBeforeTop(i):
				faults = append(faults, "rows are sorted before they are picked, which locks all of them")
			case strings.HasSuffix(o.Name, "Scan") && strings.HasPrefix(o.Index, "qsidecar_"):
				faults = append(faults, fmt.Sprintf("a %s of %s", o.Name, o.Index))
			case picks && o.Name == "Index Seek" && o.Index == "qsidecar_ready" && o.Ordered,
				take && o.Name == "Clustered Index Seek" && o.Index == "qsidecar_jobs_id":
				sought = true
			}
		}
		switch {
		case !sought && picks:
			faults = append(faults, "rows are picked without an ordered seek in qsidecar_ready")
		case !sought && take:
			faults = append(faults, "rows are not taken by primary key")
		case picks:
			seeks++
		default:
			takes++
		}
	}
	if seeks == 0 && len(faults) == 0 || takes == 0 && len(faults) == 0 {
		return nil, 0, errors.New("it does not show the claim's statements")
	}
	return slices.Compact(faults), seeks, nil
}
