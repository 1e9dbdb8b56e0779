package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// OpenKey returns a text of everything that a database is opened with. While the text is the
// same, an open database can stay in use.
func (c *Config) OpenKey(name string) (string, error) {
	d := c.Databases[name]
	d.SidecarTimeout, d.RestartGrace = 0, nil // only the bridge uses them
	out := map[string]string{"max_frame": c.MaxFrame.String()}
	flatten(out, "database", reflect.ValueOf(d))
	for q, queue := range c.Queues {
		if queue.adopts() && c.databaseOf(queue) == name {
			flatten(out, "queues."+q, reflect.ValueOf(queue))
			out["queues."+q+".limit"] = fmt.Sprint(queue.withDefaults(c.Defaults).MaxAttempts)
		}
	}
	password, err := d.ReadPassword()
	if err != nil {
		return "", err
	}
	out["password"] = password
	var all []string
	for _, key := range slices.Sorted(maps.Keys(out)) {
		all = append(all, fmt.Sprintf("%q=%q", key, out[key]))
	}
	return strings.Join(all, " "), nil
}
