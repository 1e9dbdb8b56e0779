// Package schedulefile reads the file that `qsidecar schedule apply` takes. Start reading at Parse.
package schedulefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// MaxSize is the most bytes of a file.
const MaxSize = 8 << 20

// file is the YAML.
type file struct {
	Source    string              `yaml:"source"`
	Version   int64               `yaml:"version"`
	Schedules map[string]schedule `yaml:"schedules"`
}

type schedule struct {
	Queue    string            `yaml:"queue"`
	Cron     string            `yaml:"cron"`
	Every    string            `yaml:"every"`
	Zone     string            `yaml:"tz"`
	Splay    string            `yaml:"splay"`
	Payload  any               `yaml:"payload"`
	Headers  map[string]string `yaml:"headers"`
	Priority int64             `yaml:"priority"`
	Missed   string            `yaml:"missed"`
	Overlap  string            `yaml:"overlap"`
}

// File is the content of a file.
type File struct {
	Source    string
	Version   int64
	Schedules []protocol.Schedule // by name, each with the source and the version
}

// Parse returns the content of a file.
func Parse(text []byte) (*File, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("the file has more than %d bytes: divide it, each part with a source of its own", MaxSize)
	}
	var f file
	if err := yaml.UnmarshalWithOptions(text, &f, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("%s", yaml.FormatError(err, false, true))
	}
	if f.Schedules == nil {
		return nil, errors.New("the file has no schedules: write them, or schedules: {} for none")
	}
	var problems []error
	to := &File{Source: f.Source, Version: f.Version}
	for _, name := range slices.Sorted(maps.Keys(f.Schedules)) {
		s, err := f.Schedules[name].convert()
		if err != nil {
			problems = append(problems, fmt.Errorf("schedules.%s: %w", name, err))
		}
		s.Name, s.Source, s.Version = name, f.Source, f.Version
		to.Schedules = append(to.Schedules, s)
	}
	return to, errors.Join(problems...)
}

func (s schedule) convert() (to protocol.Schedule, err error) {
	to = protocol.Schedule{Queue: s.Queue, Cron: s.Cron, Zone: s.Zone, Headers: s.Headers, Priority: s.Priority, Missed: s.Missed, Overlap: s.Overlap}
	if s.Queue == "" {
		return to, errors.New("queue is missing")
	}
	if to.EveryMS, err = milliseconds("every", s.Every); err != nil {
		return to, err
	}
	if to.SplayMS, err = milliseconds("splay", s.Splay); err != nil {
		return to, err
	}
	switch p := s.Payload.(type) {
	case nil:
	case string: // as in enqueue: text that isn't JSON becomes a JSON string
		if to.Payload = []byte(p); !json.Valid(to.Payload) {
			if to.Payload, err = json.Marshal(p); err != nil {
				return to, fmt.Errorf("payload: %w", err)
			}
		}
	default: // a map, a list, a number
		if to.Payload, err = json.Marshal(p); err != nil {
			return to, fmt.Errorf("payload: %w: write it as text", err)
		}
	}
	return to, nil
}

func milliseconds(field, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	d, err := textfmt.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", field, err)
	}
	if d <= 0 || d%time.Second != 0 {
		return 0, fmt.Errorf("%s is %s: use whole seconds, such as 90s, 15m or 1h", field, text)
	}
	return d.Milliseconds(), nil
}
