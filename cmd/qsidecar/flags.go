package main

import (
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// durationFlag is a duration with a range. It implements pflag.Value.
type durationFlag struct {
	d        time.Duration
	set      bool
	min, max time.Duration
}

func (f *durationFlag) Set(s string) error {
	d, err := textfmt.ParseDuration(s)
	if err != nil {
		return err
	}
	if d < f.min || d > f.max {
		return fmt.Errorf("%s is outside %s to %s", s, textfmt.FormatDuration(f.min), textfmt.FormatDuration(f.max))
	}
	f.d, f.set = d, true
	return nil
}

func (f *durationFlag) String() string {
	if !f.set && f.d == 0 {
		return ""
	}
	return textfmt.FormatDuration(f.d)
}

func (f *durationFlag) Type() string { return "duration" }

// instantFlag is an instant. It implements pflag.Value.
type instantFlag struct {
	at  time.Time
	set bool
}

// instantLayouts are how people write an instant. Those without a zone are in the host's.
var instantLayouts = []string{time.RFC3339, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04"}

func (i *instantFlag) Set(s string) error {
	for _, layout := range instantLayouts {
		at, err := time.ParseInLocation(layout, s, time.Local)
		if err != nil {
			continue
		}
		if ms := at.UnixMilli(); ms < 0 || ms > protocol.MaxRunAt {
			return fmt.Errorf("%s is outside the years 1970 to 9999", s)
		}
		i.at, i.set = at, true
		return nil
	}
	return fmt.Errorf("%q is not a time: write it as 2027-01-31 18:30, or with a zone as 2027-01-31T18:30Z", s)
}

func (i *instantFlag) String() string {
	if !i.set {
		return ""
	}
	return i.at.Format(time.RFC3339)
}

func (i *instantFlag) Type() string { return "time" }
