package check

import (
	"errors"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// Host examines the paths of the sockets, and whether other hosts can reach the admin
// listener. It creates nothing.
func Host(c *config.Config) (found backends.Findings) {
	places := make([]string, 0, len(c.Listen)+1)
	for _, l := range c.Listen {
		places = append(places, l.Socket)
	}
	if c.Admin.Listen.IsUnix() {
		places = append(places, string(c.Admin.Listen))
	}
	for _, path := range places {
		err := unixsocket.CheckPath(path)
		place, known := errors.AsType[*unixsocket.PathError](err)
		switch {
		case err == nil:
		case known && !place.Foreign:
			found.AddError("socket", path+": "+place.Problem, place.Fix)
		case known: // it depends on the user that runs serve
			found.AddWarning("socket", path+": "+place.Problem, "see that serve runs as that user, and run check as that user too; or "+place.Fix)
		default:
			found.AddWarning("socket", path+": its path cannot be examined: "+err.Error(), "run check as the user that serve runs as")
		}
	}
	if text, do := c.Admin.Advice(); text != "" {
		found.AddWarning("admin", text, do)
	}
	return found
}
