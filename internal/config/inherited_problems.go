package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
)

// problemsByKey are what is wrong with the defaults, by key. A queue that takes a wrong one
// from there is not wrong itself.
type problemsByKey map[string]string

type reportFunc = func(path, format string, args ...any)

// noting is bad, and keeps what is told of the section.
func (p problemsByKey) recording(section string, bad reportFunc) reportFunc {
	return func(path, format string, args ...any) {
		p[strings.TrimPrefix(path, section+".")] = fmt.Sprintf(format, args...)
		bad(path, format, args...)
	}
}

// leftOut is bad for a queue without what is told of the defaults already.
func (p problemsByKey) withoutInherited(section string, q *queueConfig, bad reportFunc) reportFunc {
	return func(path, format string, args ...any) {
		key := strings.TrimPrefix(path, section+".")
		if told, ok := p[key]; ok && told == fmt.Sprintf(format, args...) && !q.sets(key) {
			return
		}
		bad(path, format, args...)
	}
}

// states reports whether the queue has a word of its own for a key of the defaults.
func (q *queueConfig) sets(key string) bool {
	section, _, _ := strings.Cut(key, ".")
	v, ok := fieldOf(reflect.ValueOf(q).Elem(), section)
	return ok && !v.IsZero()
}

// samePath reports whether two paths are one, as far as their texts tell.
func samePath(a, b string) bool { return filepath.Clean(a) == filepath.Clean(b) }

// asOther tells how else a path is written.
func spelledAs(path, other string) string {
	if path == other {
		return ""
	}
	return " (as " + other + ")"
}

// checkGroup reports a socket's group that this host does not know.
func checkGroup(path, group string, bad reportFunc) {
	if group == "" {
		return
	}
	if _, err := accountID(group, "group", lookupGroup); err != nil {
		bad(path+".group", "%v", err)
	}
}
