package config

import (
	"reflect"
	"strings"

	"github.com/goccy/go-yaml/token"
)

// renamedKeys maps keys of earlier drafts of the config to what replaces them, by the section
// that contained them.
var renamedKeys = map[reflect.Type]map[string]string{
	reflect.TypeFor[Database](): {
		"host_lease": "it is called sidecar_timeout now",
		"max_held":   "it is called max_transactions now",
	},
	reflect.TypeFor[limitsConfig](): {
		"held":     "it is called jobs_per_connection now",
		"buffered": "it is called buffer_memory now",
	},
	reflect.TypeFor[defaultsConfig](): {"keep": useRetention, "keep_dead": useRetention},
	reflect.TypeFor[queueConfig](): {
		"keep":      useRetention,
		"keep_dead": useRetention,
		"hold":      "it is called claim_mode now: write claim_mode: update or claim_mode: transaction",
	},
}

const useRetention = "write retention: {done: …, dead: …}"

// unknownKey reports a key that the section doesn't have.
func (d *yamlDecoder) unknownKey(section reflect.Type, key string, at *token.Token) {
	if now, ok := renamedKeys[section][key]; ok {
		d.add(at, "unknown key %s: %s", keyText(key), now)
	} else {
		d.add(at, "unknown key %s; known here: %s", keyText(key), strings.Join(keysOf(section), ", "))
	}
	d.problems[len(d.problems)-1].unknownKey = true
}
