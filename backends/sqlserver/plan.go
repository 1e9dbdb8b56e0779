package sqlserver

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// operator is a step of a plan in SHOWPLAN_XML.
type operator struct {
	what    string // PhysicalOp
	depth   int    // in how many others
	table   string // without brackets; empty: none
	index   string // the same
	ordered bool   // rows come in the index's order
}

// planned is a statement of a batch with its plan.
type planned struct {
	text      string
	operators []operator
}

// readShowplan reads the plans of a batch: of each statement all its steps.
func readShowplan(text string) (all []planned, err error) {
	d := xml.NewDecoder(strings.NewReader(text))
	// The document calls itself UTF-16; the driver has made UTF-8 of it.
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	var open []int // operators within each other: their places in the last statement's list
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

func startElement(t xml.StartElement, all *[]planned, open []int) []int {
	value := func(name string) string {
		for _, a := range t.Attr {
			if a.Name.Local == name {
				return a.Value
			}
		}
		return ""
	}
	if strings.HasPrefix(t.Name.Local, "Stmt") {
		*all = append(*all, planned{text: value("StatementText")})
		return nil
	}
	if len(*all) == 0 {
		return open
	}
	last := &(*all)[len(*all)-1]
	if t.Name.Local == "RelOp" {
		last.operators = append(last.operators, operator{what: value("PhysicalOp"), depth: len(open)})
		return append(open, len(last.operators)-1)
	}
	if len(open) == 0 {
		return open
	}
	op := &last.operators[open[len(open)-1]]
	switch t.Name.Local {
	case "IndexScan":
		op.ordered = value("Ordered") == "1" || value("Ordered") == "true"
	case "Object":
		if op.index == "" {
			op.index = unquoted(value("Index"))
		}
		if op.table == "" {
			op.table = unquoted(value("Table"))
		}
	}
	return open
}

// sortsBeforeTop: the i-th step sorts, and no TOP has bounded what it gets. Behind a TOP it
// sorts the chosen rows alone, to store them.
func (p planned) sortsBeforeTop(i int) bool {
	if !strings.HasSuffix(p.operators[i].what, "Sort") {
		return false
	}
	for _, o := range p.operators[i+1:] {
		if o.depth <= p.operators[i].depth {
			return true
		}
		if o.what == "Top" {
			return false
		}
	}
	return true
}

// unquoted is a name without brackets.
func unquoted(name string) string {
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		return strings.ReplaceAll(name[1:len(name)-1], "]]", "]")
	}
	return name
}

// claimFaults are what makes a claim's cost, or what it locks, grow with the table;
// seeks is in how many statements it seeks as it should.
func claimFaults(text string) (faults []string, seeks int, err error) {
	all, err := readShowplan(text)
	if err != nil {
		return nil, 0, err
	}
	takes := 0
	for _, p := range all {
		picks := strings.Contains(p.text, "INSERT INTO @claim_picked") && strings.Contains(p.text, "qsidecar_ready")
		take := strings.HasPrefix(strings.TrimSpace(p.text), "UPDATE j SET state = 'claimed'")
		if !picks && !take {
			continue
		}
		sought := false
		for i, o := range p.operators {
			switch {
			case picks && p.sortsBeforeTop(i):
				faults = append(faults, "rows are sorted before they are picked, which locks all of them")
			case strings.HasSuffix(o.what, "Scan") && strings.HasPrefix(o.index, "qsidecar_"):
				faults = append(faults, fmt.Sprintf("a %s of %s", o.what, o.index))
			case picks && o.what == "Index Seek" && o.index == "qsidecar_ready" && o.ordered,
				take && o.what == "Clustered Index Seek" && o.index == "qsidecar_jobs_id":
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
