package transcript

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// vars are the captured values of a run by their names, without the $.
type vars map[string]any

// freshQueues are the variables that a run starts with: names of queues that no other run uses.
var freshQueues = []string{"q", "q2", "q3"}

func newVars() vars {
	v := vars{}
	for _, name := range freshQueues {
		v[name] = "t-" + strings.ToLower(rand.Text()[:12]) + "-" + name
	}
	return v
}

// Patterns that capture nothing.
const (
	anything = "$_"  // any value
	optional = "$?"  // any value, or an absent field
	rest     = "..." // as a key: other fields are allowed
)

// isVar reports whether s is a variable "$name". "$$…" is the text "$…".
func isVar(s string) (name string, ok bool) {
	if !strings.HasPrefix(s, "$") || strings.HasPrefix(s, "$$") {
		return "", false
	}
	return s[1:], true
}

// fill replaces each string "$name" in a client's message by the captured value.
func (v vars) fill(m map[string]any) (filled map[string]any, changed bool, err error) {
	out, changed, err := v.fillValue(m)
	if err != nil {
		return nil, false, err
	}
	return out.(map[string]any), changed, nil
}

func (v vars) fillValue(val any) (out any, changed bool, err error) {
	switch val := val.(type) {
	case string:
		if strings.HasPrefix(val, "$$") {
			return val[1:], true, nil
		}
		name, ok := isVar(val)
		if !ok {
			return val, false, nil
		}
		if out, ok = v[name]; !ok {
			return nil, false, fmt.Errorf("$%s was not captured yet", name)
		}
		return out, true, nil
	case map[string]any:
		m := make(map[string]any, len(val))
		for k, el := range val {
			filled, c, err := v.fillValue(el)
			if err != nil {
				return nil, false, err
			}
			m[k], changed = filled, changed || c
		}
		return m, changed, nil
	case []any:
		list := make([]any, len(val))
		for i, el := range val {
			filled, c, err := v.fillValue(el)
			if err != nil {
				return nil, false, err
			}
			list[i], changed = filled, changed || c
		}
		return list, changed, nil
	default:
		return val, false, nil
	}
}

// match compares a server's value with a pattern and captures variables. path is the location of
// the value, for errors.
func (v vars) match(path string, want, got any) error {
	switch want := want.(type) {
	case map[string]any:
		m, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: got %s, want a map", path, show(got))
		}
		return v.matchMap(path, want, m)
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return fmt.Errorf("%s: got %s, want a list of %d", path, show(got), len(want))
		}
		for i := range want {
			if err := v.match(fmt.Sprintf("%s[%d]", path, i), want[i], list[i]); err != nil {
				return err
			}
		}
		return nil
	case string:
		if name, ok := isVar(want); ok {
			return v.matchVar(path, name, got)
		}
		if strings.HasPrefix(want, "$$") {
			want = want[1:]
		}
		if want != got {
			return fmt.Errorf("%s: got %s, want %q", path, show(got), want)
		}
		return nil
	default:
		if !equal(want, got) {
			return fmt.Errorf("%s: got %s, want %s", path, show(got), show(want))
		}
		return nil
	}
}

func (v vars) matchMap(path string, want, got map[string]any) error {
	_, others := want[rest]
	for _, k := range slices.Sorted(maps.Keys(want)) {
		el, ok := got[k]
		switch {
		case k == rest, want[k] == optional && !ok:
			continue
		case !ok:
			return fmt.Errorf("%s.%s is missing", path, k)
		}
		if err := v.match(path+"."+k, want[k], el); err != nil {
			return err
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok && !others {
			return fmt.Errorf("%s.%s is not expected", path, k)
		}
	}
	return nil
}

// matchVar matches "$_", "$?", "$name" (captured at its first use, equal at later ones) and
// "$>name" (a number greater than the captured one).
func (v vars) matchVar(path, name string, got any) error {
	switch {
	case "$"+name == anything, "$"+name == optional:
		return nil
	case strings.HasPrefix(name, ">"):
		return v.matchGreater(path, name[1:], got)
	}
	old, ok := v[name]
	if !ok {
		v[name] = got
		return nil
	}
	if !equal(old, got) {
		return fmt.Errorf("%s: got %s, want $%s = %s", path, show(got), name, show(old))
	}
	return nil
}

func (v vars) matchGreater(path, name string, got any) error {
	a, okA := v[name].(json.Number)
	b, okB := got.(json.Number)
	if !okA || !okB {
		return fmt.Errorf("%s: got %s, want a number greater than $%s = %s", path, show(got), name, show(v[name]))
	}
	x, errA := a.Int64()
	y, errB := b.Int64()
	if errA != nil || errB != nil || y <= x {
		return fmt.Errorf("%s: got %v, want more than $%s = %v", path, b, name, a)
	}
	return nil
}

func equal(a, b any) bool { return reflect.DeepEqual(a, b) }
