package config

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Changes lists the differences between two configs by the keys of the file. It doesn't show
// the URLs of a database, which can contain a password.
func Changes(before, after Config) (all []string) {
	oldKeys, newKeys := flat(before), flat(after)
	removed := sections(oldKeys, newKeys)
	added := sections(newKeys, oldKeys)
	for _, s := range slices.Sorted(maps.Keys(removed)) {
		what := " removed"
		if _, others := after.Queues["*"]; strings.HasPrefix(s, "queues.") && !others {
			what += ": requests about this queue get unknown_queue, and its jobs wait"
			if s == "queues.*" {
				what = " removed: requests about queues that aren't in the config get unknown_queue, and their jobs wait"
			}
		}
		all = append(all, s+what)
	}
	for _, s := range slices.Sorted(maps.Keys(added)) {
		all = append(all, s+" added")
	}
	keys := maps.Clone(oldKeys)
	maps.Copy(keys, newKeys)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if oldKeys[key] == newKeys[key] || within(key, removed) || within(key, added) {
			continue
		}
		if strings.HasSuffix(key, ".url") || strings.HasSuffix(key, ".replica_url") {
			all = append(all, key+" changed")
			continue
		}
		all = append(all, fmt.Sprintf("%s: %s → %s", key, cmp.Or(oldKeys[key], "none"), cmp.Or(newKeys[key], "none")))
	}
	return all
}

// Settings lists all keys of a config with their values, also those at their defaults, without passwords.
func Settings(c *Config) (all []string) {
	keys := flat(*c)
	names := slices.Sorted(maps.Keys(keys))
	for i, key := range names {
		if section, ok := strings.CutSuffix(key, "."); !ok {
			all = append(all, masked(key+": "+strings.Join(strings.Fields(keys[key]), " ")))
		} else if i+1 == len(names) || !strings.HasPrefix(names[i+1], key) {
			all = append(all, section+": {}") // all of its keys are at their defaults
		}
	}
	return all
}

func within(key string, sections map[string]bool) bool {
	for s := range sections {
		if key == s || strings.HasPrefix(key, s+".") || strings.HasPrefix(key, s+"[") {
			return true
		}
	}
	return false
}

// sections returns the queues, databases and sockets that only the first config has.
func sections(of, other map[string]string) map[string]bool {
	lacks := map[string]bool{}
	for key := range of {
		if s, ok := strings.CutSuffix(key, "."); ok {
			if _, has := other[key]; !has {
				lacks[s] = true
			}
		}
	}
	return lacks
}

// flat returns every scalar of the config by its path. A queue, database or socket also has
// an entry of its own: its path and a dot.
func flat(c Config) map[string]string {
	out := map[string]string{}
	flatten(out, "", reflect.ValueOf(c))
	return out
}

func flatten(out map[string]string, path string, v reflect.Value) {
	set := false // also if it has the zero value
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v, set = v.Elem(), true
	}
	var leaf any
	if v.CanInterface() { // an unexported embedded struct cannot, but its fields can
		leaf = v.Interface()
	}
	switch l := leaf.(type) {
	case listenConfig:
		path = "listen " + l.Socket // a socket is identified by its path, not by its position
		path = strings.TrimSuffix(path, " ")
		out[path+"."] = ""
	case queueConfig, Database:
		out[path+"."] = ""
	case TableName, onAckConfig, tokenConfig, queueOrder, numberRange:
		if !v.IsZero() {
			out[path] = fmt.Sprint(leafText(l))
		}
		return
	case []allowConfig:
		out[path] = allowText(l)
		return
	case stringList:
		if len(l) > 0 {
			out[path] = "[" + strings.Join(l, ", ") + "]"
		}
		return
	case fileMode:
		out[path] = fmt.Sprintf("%04o", l)
		return
	case fmt.Stringer:
		out[path] = l.String()
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		flattenStruct(out, path, v, leaf)
	case reflect.Map:
		for _, key := range v.MapKeys() {
			flatten(out, join(path, key.String()), v.MapIndex(key))
		}
	case reflect.Slice:
		for i := range v.Len() {
			flatten(out, fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	default:
		if set || !v.IsZero() {
			out[path] = fmt.Sprint(v.Interface())
		}
	}
}

// flattenStruct is flatten for a struct. leaf is its value, if it can be read.
func flattenStruct(out map[string]string, path string, v reflect.Value, leaf any) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch key := f.Tag.Get("yaml"); {
		case key != "":
			flatten(out, join(path, key), v.Field(i))
		case f.Anonymous:
			if q, ok := leaf.(queueConfig); ok && !q.adopts() {
				continue // the keys of adopted tables
			}
			flatten(out, path, v.Field(i))
		}
	}
}

// allowText returns a socket's rules on one line. A nil list allows everything.
func allowText(rules []allowConfig) string {
	if rules == nil {
		return "everything, to any client"
	}
	all := make([]string, len(rules))
	for i, r := range rules {
		var keys []string
		for _, key := range []struct {
			name string
			list stringList
		}{{"users", r.Users}, {"groups", r.Groups}, {"ops", r.Ops}, {"queues", r.Queues}} {
			if key.list != nil {
				keys = append(keys, key.name+": ["+strings.Join(key.list, ", ")+"]")
			}
		}
		all[i] = "{" + strings.Join(keys, ", ") + "}"
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// leafText returns a leaf in a form close to that of the file.
func leafText(leaf any) any {
	switch l := leaf.(type) {
	case TableName:
		return strings.TrimPrefix(l.Schema+"."+l.Name, ".")
	case onAckConfig:
		if l.Archive.Name != "" {
			return "archive " + fmt.Sprint(leafText(l.Archive))
		}
		return l.word
	case tokenConfig:
		if l.Value != nil {
			return l.Column + " " + l.Value.Text
		}
		return fmt.Sprintf("%s %d-%d", l.Column, l.Range.from, l.Range.to)
	case numberRange:
		return fmt.Sprintf("%d-%d", l.from, l.to)
	case queueOrder:
		if len(l.columns) == 0 {
			return string(l.order)
		}
		var all []string
		for _, c := range l.columns {
			text := c.Column
			if c.Descending {
				text += " desc"
			}
			all = append(all, text)
		}
		return strings.Join(all, ", ")
	}
	return leaf
}
