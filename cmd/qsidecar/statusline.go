package main

import (
	"cmp"
	"context"

	"github.com/qsidecar/qsidecar/internal/statusline"
)

// progress shows the progress of a command until stop is called, if stderr is a terminal.
func (a *app) progress(ctx context.Context, text func(context.Context) string) (stop func()) {
	if !a.terminal(a.errOut) {
		return func() {}
	}
	return statusline.Show(ctx, a.errOut, cmp.Or(a.progressTick, statusline.Interval), text)
}

// working is the progress of a command whose remaining work is not known.
func working(what string) func(context.Context) string {
	return func(context.Context) string { return what + " …" }
}
