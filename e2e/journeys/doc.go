// Package journeys tests what most users do, end to end, at small sizes. `make test` runs it.
package journeys
