package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/internal/occurrence"
	"github.com/qsidecar/qsidecar/protocol"
)

// MaxSchedulesFile is the most bytes of a file of schedules.
const MaxSchedulesFile = 8 << 20

// schedulesFile is a file for `qsidecar schedule apply`.
type schedulesFile struct {
	Source    string                    `yaml:"source"`
	Version   int                       `yaml:"version"`
	Schedules map[string]scheduleConfig `yaml:"schedules"`
}

type scheduleConfig struct {
	Queue    string            `yaml:"queue"`
	Cron     string            `yaml:"cron"`
	Every    wholeSeconds      `yaml:"every"`
	Zone     string            `yaml:"tz"`
	Splay    wholeSeconds      `yaml:"splay"`
	Payload  any               `yaml:"payload"`
	Headers  map[string]string `yaml:"headers"`
	Priority int               `yaml:"priority"`
	Missed   string            `yaml:"missed"`
	Overlap  string            `yaml:"overlap"`
}

// wholeSeconds is a duration of whole seconds.
type wholeSeconds duration

func (w *wholeSeconds) parse(s string) error {
	if err := (*duration)(w).parse(s); err != nil {
		return err
	}
	if d := time.Duration(*w); d <= 0 || d%time.Second != 0 {
		return fmt.Errorf("%s isn't whole seconds: write a duration such as 90s, 15m or 1h", s)
	}
	return nil
}

// SchedulesFile is the content of a file of schedules.
type SchedulesFile struct {
	Source    string
	Version   int64
	Schedules []protocol.Schedule // by name, each with the source and the version
}

// ParseSchedules returns the content of a file of schedules. Its error lists each problem with its line.
func ParseSchedules(name string, text []byte) (*SchedulesFile, error) {
	if len(text) > MaxSchedulesFile {
		return nil, Errorf("%s has more than %d bytes: divide it, each part with a source of its own", name, MaxSchedulesFile)
	}
	var f schedulesFile
	d := &yamlDecoder{name: name, src: string(text)}
	d.decode(&f)
	if d.keyTokens["schedules"] == nil && len(d.problems) == 0 {
		d.add(nil, "the file has no schedules: write them, or schedules: {} for none")
	}
	to := &SchedulesFile{Source: f.Source, Version: int64(f.Version)}
	for _, name := range slices.Sorted(maps.Keys(f.Schedules)) {
		path := join("schedules", name)
		s := f.Schedules[name].convert(path, d)
		s.Name, s.Source, s.Version = name, f.Source, int64(f.Version)
		to.Schedules = append(to.Schedules, s)
	}
	if err := d.err(); err != nil {
		return nil, &Error{err}
	}
	return to, nil
}

// convert returns the schedule of the protocol. The server checks what it doesn't.
func (s scheduleConfig) convert(path string, d *yamlDecoder) protocol.Schedule {
	to := protocol.Schedule{Queue: s.Queue, Cron: s.Cron, Zone: s.Zone, Headers: s.Headers, Priority: int64(s.Priority), Missed: s.Missed, Overlap: s.Overlap,
		EveryMS: time.Duration(s.Every).Milliseconds(), SplayMS: time.Duration(s.Splay).Milliseconds()}
	bad := d.reportAt
	if s.Queue == "" {
		bad(path+".queue", "it is missing: name the queue of its jobs")
	}
	switch {
	case d.unread[join(path, "every")] || d.unread[path]:
	case s.Cron == "" && s.Every == 0:
		bad(path, "it has no time: write cron or every")
	case s.Cron != "" && s.Every != 0:
		bad(join(path, "every"), "cron and every exclude each other: leave one of them out")
	default:
		_, err := occurrence.Parse(occurrence.Rule{Cron: s.Cron, Every: time.Duration(s.Every), Zone: s.Zone, Splay: time.Duration(s.Splay)})
		if wrong, ok := errors.AsType[*occurrence.Error](err); ok {
			bad(join(path, wrong.Field), "%v", wrong)
		}
	}
	var err error
	switch p := s.Payload.(type) {
	case nil:
	case string: // as in enqueue: text that isn't JSON becomes a JSON string
		if to.Payload = []byte(p); !json.Valid(to.Payload) {
			to.Payload, err = json.Marshal(p)
		}
	default: // a map, a list, a number
		to.Payload, err = json.Marshal(p)
	}
	if err != nil {
		bad(join(path, "payload"), "%v: write it as text", err)
	}
	return to
}
