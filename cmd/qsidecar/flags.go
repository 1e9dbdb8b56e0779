package main

import (
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
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
