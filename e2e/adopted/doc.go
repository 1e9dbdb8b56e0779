// Package adopted tests queues in tables that another application owns, beside its own consumers.
package adopted
