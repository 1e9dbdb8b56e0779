// Package engines has the engines that the benchmark supports: their servers, and the direct SQL that a sidecar is compared with.
package engines

import (
	"fmt"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"strings"
)

// All are the engines that the benchmark supports.
var All = []measure.Engine{postgresEngine, mysqlEngine, mariadbEngine, sqliteEngine}

// Names returns the names of all engines, with commas between.
func Names() string {
	var names []string
	for _, e := range All {
		names = append(names, e.Name)
	}
	return strings.Join(names, ",")
}

// Named returns the engines of a list of names.
func Named(list string) (found []measure.Engine, err error) {
	for name := range strings.SplitSeq(list, ",") {
		n := len(found)
		for _, e := range All {
			if e.Name == name {
				found = append(found, e)
			}
		}
		if len(found) == n {
			return nil, fmt.Errorf("no engine %q: there are %s", name, Names())
		}
	}
	return found, nil
}
